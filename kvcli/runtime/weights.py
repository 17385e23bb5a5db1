"""Weights of the built-in transformer: one frozen record a layer, from a GGUF file or random.

Matrices are [out, in]. Projections that read the same input are fused, so that a step launches fewer operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvcli.model.spec import Decoder, ModelSpec


@dataclass(frozen=True, slots=True)
class NormWeights:
    """`bias` is None in an RMSNorm."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """`qkv` [(A + 2G) d, H]; `up` is gate and up [2I, H] in a gated MLP, else [I, H]; `down` [H, I]."""

    attention_norm: NormWeights
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: NormWeights
    up: Tensor
    up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Weights:
    """`head` is `embedding` itself when tied. `rope_factors` come with some GGUF files."""

    embedding: Tensor
    positions: Tensor | None
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights
    head: Tensor
    rope_factors: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device


def random_weights(spec: ModelSpec, decoder: Decoder, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Weights:
    """Weights of the model's exact shape. Their scale keeps activations near one, so that numbers stay finite."""
    generator = torch.Generator(device=device).manual_seed(seed)
    d, hidden = decoder, decoder.hidden_size
    query, key = d.num_attention_heads * d.head_dim, d.num_key_value_heads * d.head_dim
    up_rows = d.intermediate_size * (2 if d.gated_mlp else 1)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.empty((rows, columns), dtype=dtype, device=device).normal_(0, columns**-0.5, generator=generator)

    def bias(size: int, present: bool) -> Tensor | None:
        return torch.empty(size, dtype=dtype, device=device).normal_(0, 0.02, generator=generator) if present else None

    def norm(size: int = hidden) -> NormWeights:
        ones = torch.ones(size, dtype=dtype, device=device)
        return NormWeights(ones, torch.zeros_like(ones) if d.norm == "layer" else None)

    def head_norm() -> Tensor | None:
        return torch.ones(d.head_dim, dtype=dtype, device=device) if d.qk_norm else None

    layers = tuple(
        LayerWeights(
            attention_norm=norm(),
            qkv=matrix(query + 2 * key, hidden),
            qkv_bias=bias(query + 2 * key, d.qkv_bias),
            query_norm=head_norm(),
            key_norm=head_norm(),
            output=matrix(hidden, query),
            output_bias=bias(hidden, d.attention_output_bias),
            mlp_norm=norm(),
            up=matrix(up_rows, hidden),
            up_bias=bias(up_rows, d.mlp_bias),
            down=matrix(hidden, d.intermediate_size),
            down_bias=bias(hidden, d.mlp_bias),
        )
        for _ in range(spec.num_hidden_layers)
    )
    embedding = matrix(spec.vocab_size, hidden)
    rows = spec.lookups // hidden
    return Weights(
        embedding=embedding,
        positions=matrix(rows, hidden) if rows else None,
        layers=layers,
        final_norm=norm(),
        head=embedding if spec.tied else matrix(spec.vocab_size, hidden),
    )
