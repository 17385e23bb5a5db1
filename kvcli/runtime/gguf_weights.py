"""Weights out of a GGUF file, dequantised once to the compute dtype (through the `gguf` package, all its types)."""

from __future__ import annotations

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from kvcli.errors import BadInput, NotModelled
from kvcli.model.gguf.header import GgufHeader
from kvcli.model.spec import Decoder, ModelSpec
from kvcli.runtime.weights import LayerWeights, NormWeights, Weights


def load_gguf(header: GgufHeader, spec: ModelSpec, decoder: Decoder, dtype: torch.dtype, device: torch.device) -> Weights:
    """All weights of the file. Raises BadInput where a tensor is missing or has another shape than the metadata says."""
    return _Loader(header, decoder, dtype, device).load(spec)


class _Loader:
    def __init__(self, header: GgufHeader, decoder: Decoder, dtype: torch.dtype, device: torch.device) -> None:
        self.header, self.decoder, self.dtype, self.device = header, decoder, dtype, device
        self.infos = {tensor.name: tensor for tensor in header.tensors}
        # a plain view of the map: the subclass costs more than the arithmetic
        self.data = np.asarray(np.memmap(header.path, dtype=np.uint8, mode="r"))

    def load(self, spec: ModelSpec) -> Weights:
        hidden = self.decoder.hidden_size
        embedding = self.tensor("token_embd.weight", spec.vocab_size, hidden)
        factors = self.optional("rope_freqs.weight")
        return Weights(
            embedding=embedding,
            positions=self.tensor("position_embd.weight", spec.lookups // hidden, hidden) if spec.lookups else None,
            layers=tuple(self.layer(f"blk.{index}.") for index in range(spec.num_hidden_layers)),
            final_norm=self.norm("output_norm"),
            head=embedding if spec.tied else self.tensor("output.weight", spec.vocab_size, hidden),
            rope_factors=factors,
        )

    def layer(self, block: str) -> LayerWeights:
        d = self.decoder
        query, key = d.num_attention_heads * d.head_dim, d.num_key_value_heads * d.head_dim
        up_parts = [("ffn_up", d.intermediate_size)]
        if d.gated_mlp and f"{block}ffn_gate.weight" in self.infos:
            up_parts.insert(0, ("ffn_gate", d.intermediate_size))
        elif d.gated_mlp:
            up_parts = [("ffn_up", 2 * d.intermediate_size)]  # the file has them fused, gate first
        qkv_parts = [("attn_q", query), ("attn_k", key), ("attn_v", key)]
        if f"{block}attn_qkv.weight" in self.infos:
            qkv_parts = [("attn_qkv", query + 2 * key)]
        return LayerWeights(
            attention_norm=self.norm(f"{block}attn_norm"),
            qkv=self.rows(block, qkv_parts, d.hidden_size),
            qkv_bias=self.biases(block, qkv_parts) if d.qkv_bias else None,
            query_norm=self.tensor(f"{block}attn_q_norm.weight", d.head_dim) if d.qk_norm else None,
            key_norm=self.tensor(f"{block}attn_k_norm.weight", d.head_dim) if d.qk_norm else None,
            output=self.tensor(f"{block}attn_output.weight", d.hidden_size, query),
            output_bias=self.optional(f"{block}attn_output.bias"),
            mlp_norm=self.norm(f"{block}ffn_norm"),
            up=self.rows(block, up_parts, d.hidden_size),
            up_bias=self.biases(block, up_parts) if d.mlp_bias else None,
            down=self.tensor(f"{block}ffn_down.weight", d.hidden_size, d.intermediate_size),
            down_bias=self.optional(f"{block}ffn_down.bias"),
        )

    def rows(self, block: str, parts: list[tuple[str, int]], columns: int) -> Tensor:
        """Projections that read the same input, stacked by rows."""
        return torch.cat([self.tensor(f"{block}{name}.weight", count, columns) for name, count in parts])

    def biases(self, block: str, parts: list[tuple[str, int]]) -> Tensor:
        return torch.cat([self.tensor(f"{block}{name}.bias", count) for name, count in parts])

    def norm(self, name: str) -> NormWeights:
        bias = self.tensor(f"{name}.bias", self.decoder.hidden_size) if self.decoder.norm == "layer" else None
        return NormWeights(self.tensor(f"{name}.weight", self.decoder.hidden_size), bias)

    def optional(self, name: str) -> Tensor | None:
        return self.tensor(name, *reversed(self.infos[name].shape)) if name in self.infos else None

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor in the compute dtype; `shape` is torch's, rows first."""
        info = self.infos.get(name)
        if info is None:
            raise BadInput(f"{self.header.path.name} has no tensor {name!r}", hint="the file may be incomplete", code="missing_tensor")
        if tuple(reversed(info.shape)) != shape:
            raise BadInput(
                f"{self.header.path.name}: {name} has shape {tuple(reversed(info.shape))}, the metadata says {shape}", code="tensor_shape"
            )
        raw = self.data[info.offset : info.offset + info.size_bytes]
        try:
            values = dequantize(raw.reshape(*shape[:-1], -1), GGMLQuantizationType(info.type_id))
        except (NotImplementedError, ValueError, KeyError):
            text = f"{self.header.path.name}: the gguf package cannot read {info.dtype.name} tensors"
            raise NotModelled(text, code="tensor_type") from None
        # copied, since the array may still look into the read-only file
        return torch.tensor(np.asarray(values, dtype=np.float32)).to(device=self.device, dtype=self.dtype)
