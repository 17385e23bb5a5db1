"""Layers and what each must remember: the records every planner, engine rule and check reads.

A model is a short list of groups of identical layers. A layer holds cache records; a record answers for n tokens. Only
elements and tokens live here, bytes appear when types are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kvcli.dtypes import KvTypes


class Attention(NamedTuple):
    """Softmax attention over cached keys and values.

    `window_tokens` counts the tokens a query sees, itself included; None means all of them.
    """

    num_attention_heads: int
    num_key_value_heads: int
    key_dim: int
    value_dim: int
    window_tokens: int | None = None

    @property
    def kind(self) -> str:
        return "full_attention" if self.window_tokens is None else "sliding_attention"

    def visible_tokens(self, context_tokens: int) -> int:
        """Tokens the newest query sees when `context_tokens` are in the cache, itself included: min(n, w)."""
        return context_tokens if self.window_tokens is None else min(context_tokens, self.window_tokens)

    def visible_pairs(self, cached_tokens: int, new_tokens: int) -> int:
        """Query-key pairs of a causal pass over `new_tokens` after `cached_tokens`: the sum of visible tokens."""
        last = cached_tokens + new_tokens
        window = last if self.window_tokens is None else self.window_tokens
        growing = max(0, min(last, window) - cached_tokens)
        return growing * (2 * cached_tokens + growing + 1) // 2 + (new_tokens - growing) * window

    def token_bytes(self, kv: KvTypes) -> int:
        """Bytes of one token in one layer: heads x (key row + value row).

        Raises BadInput where a head's row does not fill the blocks of the type.
        """
        return self.num_key_value_heads * (kv.key.bytes_for(self.key_dim) + kv.value.bytes_for(self.value_dim))

    @property
    def pair_flops(self) -> int:
        """FLOPs for one query against one visible token: 2 A (dk + dv), scores and weighted sum."""
        return 2 * self.num_attention_heads * (self.key_dim + self.value_dim)


class LayerParameters(NamedTuple):
    """Parameter counts of one layer. The first four are matrices, which are multiplied; the last two are not."""

    query: int
    key_value: int
    attention_output: int
    mlp: int
    norms: int
    biases: int = 0

    @property
    def attention(self) -> int:
        return self.query + self.key_value + self.attention_output

    @property
    def matrices(self) -> int:
        return self.attention + self.mlp

    @property
    def total(self) -> int:
        return self.matrices + self.norms + self.biases


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` identical layers, the first of them at index `first` of the model (not necessarily contiguous)."""

    first: int
    count: int
    attention: Attention
    parameters: LayerParameters


def group_layers(layers: Iterable[tuple[Attention, LayerParameters]]) -> tuple[LayerGroup, ...]:
    """Groups equal layers, in the order of their first appearance."""
    seen: dict[tuple[Attention, LayerParameters], list[int]] = {}
    for index, layer in enumerate(layers):
        seen.setdefault(layer, []).append(index)
    return tuple(LayerGroup(indices[0], len(indices), *layer) for layer, indices in seen.items())


def cache_bytes(groups: Iterable[LayerGroup], context_tokens: int, kv: KvTypes) -> int:
    """Bytes that attention must keep for one sequence of `context_tokens` tokens.

    The sum over layers of heads x (key row + value row) x visible tokens. Where all layers are equal, K and V have one
    width and one type and no layer has a window, it is 2 x L x n_kv x d_head x n x bytes.
    """
    return sum(group.count * group.attention.token_bytes(kv) * group.attention.visible_tokens(context_tokens) for group in groups)


def each_layer(groups: Iterable[LayerGroup]) -> Iterator[LayerGroup]:
    """One group reference a layer; for loops over the layers of small models."""
    for group in groups:
        for _ in range(group.count):
            yield group
