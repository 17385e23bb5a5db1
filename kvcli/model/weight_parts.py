"""Bytes of a model's weights by what devices do with them: who holds a share, who holds all of it.

Where each matrix goes is Megatron's column- and row-parallel rule, as vLLM, SGLang and TensorRT-LLM apply it: projections by
heads, MLPs by columns, experts by expert; what is small, or common to all heads, is whole on each device.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli.model.cache_records import Attention
from kvcli.model.layers import LayerGroup
from kvcli.model.state_records import Recurrent


class ByUse(NamedTuple):
    """Parameters, or bytes, of one layer.

    `whole`: norms, routers, latent down-projections, indexers, biases that are added after a sum over devices. `heads`: query and
    output projections and mixers. `groups`: the projections of Mamba-2's B and C, by group. `key_value`: by KV head. `mlp`:
    dense MLPs and shared experts. `experts`: all routed experts.
    """

    whole: int = 0
    heads: int = 0
    groups: int = 0
    key_value: int = 0
    mlp: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        return sum(self)

    def plus(self, other: ByUse, times: int = 1) -> ByUse:
        return ByUse(*(mine + times * added for mine, added in zip(self, other, strict=True)))


class WeightParts(NamedTuple):
    """Bytes of all weights: `layers` in the model's order, and around them.

    `table` is the input table, which is also the head where tied (`head` is then 0); `word_tables` are other tables with a row a
    word, `lookups` tables with other rows; `rest` final norms and matrices shared by layers; `encoder` what runs once a source.
    """

    layers: tuple[ByUse, ...]
    table: int = 0
    head: int = 0
    word_tables: int = 0
    lookups: int = 0
    rest: int = 0
    encoder: int = 0

    @property
    def total(self) -> int:
        return sum(layer.total for layer in self.layers) + sum(self[1:])


def matrices_by_use(hidden_size: int, group: LayerGroup) -> ByUse:
    """Parameters of one layer's matrices. Routed experts are all of them."""
    p = group.parameters
    index_keys = sum(hidden_size * record.index_dim for record in group.records if isinstance(record, Attention))
    by_group = sum(hidden_size * record.group_channels for record in group.records if isinstance(record, Recurrent))
    outside = p.every_token_matrices - p.router - p.mlp - by_group
    # the projections that make latent rows' keys and values of heads are the heads' own
    key_value = p.key_value - index_keys if any(isinstance(record, Attention) for record in group.records) else 0
    return ByUse(
        whole=p.router + p.replicated,
        heads=outside - p.replicated - key_value,
        groups=by_group,
        key_value=key_value,
        mlp=p.mlp,
        experts=p.expert * p.num_experts,
    )


def vectors_by_use(group: LayerGroup) -> ByUse:
    """Parameters of one layer that are no matrices.

    Biases of queries, keys and values go with them, what a mixer has beside matrices with its heads. Of the rest, small as it is,
    biases of MLPs' columns and sinks are counted whole.
    """
    p = group.parameters
    experts = p.expert_vectors * p.num_experts
    if any(isinstance(record, Recurrent) for record in group.records):
        by_group = sum(r.group_channels * r.conv_kernel for r in group.records if isinstance(r, Recurrent))
        return ByUse(whole=p.norms, heads=p.vectors - by_group, groups=by_group, experts=experts)
    heads = key_value = 0
    for record in group.records:
        if isinstance(record, Attention) and record.owns_cache:
            query = record.num_attention_heads * record.key_dim
            keys = record.num_key_value_heads * (record.key_dim + record.value_dim)
            if p.vectors >= query + keys:
                heads, key_value = query, keys
    return ByUse(whole=p.norms + p.vectors - heads - key_value, heads=heads, key_value=key_value, experts=experts)
