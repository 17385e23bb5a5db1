"""Layers: their parameters, their cache records, and sums over them.

A model is a short list of groups of identical layers, each with the records of what one layer must remember.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kvcli.dtypes import DType, KvTypes
from kvcli.model.cache_records import Attention, CacheRecord


class LayerParameters(NamedTuple):
    """Parameter counts of one layer.

    `query` … `mlp` and `router` are matrices that every token is multiplied with (`mixer`: those of recurrent, convolution and
    linear-attention blocks; `mlp`: dense MLP and shared experts). `expert` is one routed expert's matrices. `norms` and
    `vectors` (biases, decays, sinks, convolution weights, …) are read but not multiplied; `expert_vectors` are those of one
    routed expert. `replicated` of the matrices above are whole on each tensor-parallel rank, as are routers and norms: latent
    down-projections, indexers.
    """

    query: int = 0
    key_value: int = 0
    attention_output: int = 0
    mlp: int = 0
    norms: int = 0
    vectors: int = 0
    mixer: int = 0
    router: int = 0
    expert: int = 0
    expert_vectors: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    replicated: int = 0

    @property
    def attention(self) -> int:
        return self.query + self.key_value + self.attention_output

    @property
    def every_token_matrices(self) -> int:
        """Matrices outside routed experts."""
        return self.attention + self.mixer + self.mlp + self.router

    @property
    def matrices(self) -> int:
        """All matrices, every routed expert included."""
        return self.every_token_matrices + self.expert * self.num_experts

    @property
    def active_matrices(self) -> int:
        """Matrices one token is multiplied with."""
        return self.every_token_matrices + self.expert * self.experts_per_token

    @property
    def total(self) -> int:
        return self.matrices + self.norms + self.vectors + self.expert_vectors * self.num_experts

    @property
    def active(self) -> int:
        """Parameters read for one token: k experts of E."""
        return self.active_matrices + self.norms + self.vectors + self.expert_vectors * self.experts_per_token


#: One layer: its records and its parameters.
Layer = tuple[tuple[CacheRecord, ...], LayerParameters]


class PredictionBlocks(NamedTuple):
    """Blocks that predict further tokens (MTP), beside the decoder: `blocks` times `layer`, `joins` matrices that join the hidden
    state with a word's embedding, and `norms`. `tables` are copies of the word tables that published files hold with each.
    """

    blocks: int
    layer: Layer
    joins: int
    norms: int
    tables: int = 0

    @property
    def parameters(self) -> int:
        """Of all blocks, without copies of tables that the decoder has."""
        return self.blocks * (self.layer[1].total + self.joins + self.norms)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` identical layers, the first of them at index `first` of the model (not necessarily contiguous)."""

    first: int
    count: int
    records: tuple[CacheRecord, ...]
    parameters: LayerParameters

    @property
    def attention(self) -> Attention:
        """The record of a layer that is attention alone, as in every model the built-in transformer computes."""
        (record,) = self.records
        if not isinstance(record, Attention):
            raise TypeError(f"{record.kind} is not plain attention")
        return record

    def needed_bytes(self, tokens: int, kv: KvTypes) -> int:
        """Of one sequence, all layers of the group."""
        return self.count * sum(record.needed_bytes(tokens, kv) for record in self.records)


def group_layers(layers: Iterable[Layer]) -> tuple[tuple[LayerGroup, ...], tuple[int, ...]]:
    """Groups of equal layers in the order of their first appearance, and for each layer the index of its group."""
    seen: dict[Layer, list[int]] = {}
    for index, layer in enumerate(layers):
        seen.setdefault(layer, []).append(index)
    groups = tuple(LayerGroup(indices[0], len(indices), *layer) for layer, indices in seen.items())
    order = [0] * sum(group.count for group in groups)
    for number, indices in enumerate(seen.values()):
        for index in indices:
            order[index] = number
    return groups, tuple(order)


def cache_bytes(groups: Iterable[LayerGroup], context_tokens: int, kv: KvTypes) -> int:
    """Bytes that attention must keep for one sequence of `context_tokens` tokens, constant states aside.

    The sum over layers of what each record needs; for attention heads x (key row + value row) x visible tokens. Where all
    layers are equal, K and V have one width and one type and no layer has a window, it is 2 x L x n_kv x d_head x n x bytes.
    """
    return sum(group.needed_bytes(context_tokens, kv) for group in groups)


def state_bytes(groups: Iterable[LayerGroup], dtype: DType, encoder_tokens: int = 0) -> int:
    """Bytes of one sequence that do not grow: recurrent and convolution states, cross-attention keys and values."""
    return sum(group.count * record.state_bytes(dtype, encoder_tokens) for group in groups for record in group.records)


def read_bytes(groups: Iterable[LayerGroup], context_tokens: int, kv: KvTypes) -> int:
    """Bytes of one sequence's cache that a decode step reads, states aside."""
    return sum(group.count * record.read_bytes(context_tokens, kv) for group in groups for record in group.records)


def written_bytes(groups: Iterable[LayerGroup], kv: KvTypes) -> int:
    """Bytes a decode step adds to one sequence's cache, states aside."""
    return sum(group.count * record.written_bytes(kv) for group in groups for record in group.records)
