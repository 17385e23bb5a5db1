"""The built-in decoder: embeddings, layers of attention and MLP, final norm, head. Shapes stand beside the tensors.

B sequences, T new tokens, A query heads, G KV heads, D head dim, n visible tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvcli.errors import NotModelled
from kvcli.model.spec import Decoder, ModelSpec
from kvcli.runtime.attention import attend
from kvcli.runtime.caches import Cache, DynamicCache, NoCache, StaticCache
from kvcli.runtime.linear import linear
from kvcli.runtime.rope import RotaryTable
from kvcli.runtime.weights import LayerWeights, NormWeights, Weights

#: activation names of configs -> the GELU form, or None for SiLU
_ACTIVATIONS = {"silu": None, "swish": None, "gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


def runnable_decoder(spec: ModelSpec) -> Decoder:
    """The decoder of a model that the built-in transformer can compute. Raises NotModelled otherwise."""
    if spec.decoder is None:
        raise NotModelled(f"the built-in transformer cannot compute {spec.model_type} models", code="not_runnable")
    if spec.decoder.activation not in _ACTIVATIONS:
        raise NotModelled(f"the built-in transformer does not know the activation {spec.decoder.activation!r}", code="not_runnable")
    return spec.decoder


class Transformer:
    """A model ready to compute. `positions` bounds the sequence length of its rotary table."""

    def __init__(self, spec: ModelSpec, weights: Weights, positions: int) -> None:
        self.spec = spec
        self.decoder = runnable_decoder(spec)
        self.weights = weights
        self.windows = spec.windows
        rope = self.decoder.rope
        self.rotary = RotaryTable(rope, positions, weights.dtype, weights.device, weights.rope_factors) if rope else None

    @property
    def device(self) -> torch.device:
        return self.weights.device

    def new_cache(self, kind: str, batch_size: int, capacity: int) -> Cache:
        """An empty cache of that kind for `capacity` tokens of each sequence."""
        d = self.decoder
        if kind == "none":
            return NoCache()
        if kind == "dynamic":
            return DynamicCache(self.windows)
        return StaticCache(self.windows, batch_size, d.num_key_value_heads, d.head_dim, capacity, self.weights.dtype, self.device)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, cache: Cache, all_logits: bool = False) -> Tensor:
        """Logits for `tokens` [B, T] that follow the cached ones: [B, V] of the last token, or [B, T, V]."""
        start = cache.length
        x = F.embedding(tokens, self.weights.embedding)  # [B, T, H]
        if self.weights.positions is not None:
            x = x + self.weights.positions[start : start + tokens.shape[1]]
        for index, layer in enumerate(self.weights.layers):
            x = x + self._attention(index, layer, self._norm(x, layer.attention_norm), cache, start)
            x = x + self._mlp(layer, self._norm(x, layer.mlp_norm))
        cache.advance(tokens.shape[1])
        if not all_logits:
            x = x[:, -1]
        return linear(self._norm(x, self.weights.final_norm), self.weights.head)

    def _attention(self, index: int, layer: LayerWeights, x: Tensor, cache: Cache, start: int) -> Tensor:
        d, (batch, tokens, _) = self.decoder, x.shape
        heads, kv_heads = d.num_attention_heads, d.num_key_value_heads
        fused = linear(x, layer.qkv, layer.qkv_bias).view(batch, tokens, heads + 2 * kv_heads, d.head_dim).transpose(1, 2)
        query, keys, values = torch.split(fused, [heads, kv_heads, kv_heads], dim=1)  # [B, A | G | G, T, D]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = F.rms_norm(query, (d.head_dim,), layer.query_norm, d.norm_eps)
            keys = F.rms_norm(keys, (d.head_dim,), layer.key_norm, d.norm_eps)
        if self.rotary is not None:
            query, keys = self.rotary.rotate(query, start), self.rotary.rotate(keys, start)
        keys, values = cache.update(index, keys, values)  # [B, G, n, D]
        out = attend(query, keys, values, self.windows[index])  # [B, A, T, D]
        return linear(out.transpose(1, 2).reshape(batch, tokens, heads * d.head_dim), layer.output, layer.output_bias)

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        up = linear(x, layer.up, layer.up_bias)
        if self.decoder.gated_mlp:
            gate, up = up.chunk(2, dim=-1)
            up = self._activate(gate) * up
        else:
            up = self._activate(up)
        return linear(up, layer.down, layer.down_bias)

    def _activate(self, x: Tensor) -> Tensor:
        gelu = _ACTIVATIONS[self.decoder.activation]
        return F.silu(x) if gelu is None else F.gelu(x, approximate=gelu)

    def _norm(self, x: Tensor, norm: NormWeights) -> Tensor:
        d = self.decoder
        if d.norm == "layer":
            return F.layer_norm(x, (d.hidden_size,), norm.weight, norm.bias, d.norm_eps)
        return F.rms_norm(x, (d.hidden_size,), norm.weight, d.norm_eps)
