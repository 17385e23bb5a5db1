"""MiMo-V2-Flash: K and V heads of different widths, sliding layers with twice the KV heads and a sink a head.

Published files call the window `sliding_window`; transformers reads their `sliding_window_size` as the tokens before the query,
so its window is one larger. A file without that key has transformers' own number in `sliding_window`.
"""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families.moe_blocks import (
    Block,
    attention_block,
    combine,
    fill,
    gated_mlp,
    layer_fields,
    model_parts,
    read_experts,
    read_sliding,
    read_sparse,
    read_tied,
    read_window,
    refuse,
    routed,
)
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer

DEFAULTS: dict[str, object] = {
    "vocab_size": 152576,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
}
COUNT = ("n_routed_experts", "num_local_experts")


def read_mimo_v2_flash(fields: Fields) -> ModelParts:
    keys = fill(fields, DEFAULTS, COUNT)
    if not keys.has("sliding_window"):
        size = keys.optional_integer("sliding_window_size")
        keys = Fields({**keys.values, "sliding_window": 129 if size is None else size}, keys.where, keys.outer)
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")
    for key, unknown in (("add_full_attention_sink_bias", True), ("add_swa_attention_sink_bias", False)):
        refuse(keys, key, unknown)
    if keys.integer("n_shared_experts", default=0, minimum=0):
        raise keys.bad("n_shared_experts", "this family's class has no shared expert")
    pattern, experts_in = keys.integers("hybrid_layer_pattern", layers), keys.integers("moe_layer_freq", layers)
    rule = [index > 0 and (index + 1) % 6 != 0 for index in range(layers)] if pattern is None else [bool(mark) for mark in pattern]
    sliding = read_sliding(keys, layers, rule)
    sparse_rule = [index > 0 for index in range(layers)] if experts_in is None else [bool(mark) for mark in experts_in]
    sparse = read_sparse(keys, layers, sparse_rule)
    bias = keys.boolean("attention_bias", False)
    result: list[Layer] = []
    for index, layer in enumerate(layer_fields(keys, layers)):
        record = _attention(layer, sliding[index])
        if sparse[index]:
            feed_forward = routed(hidden_size, read_experts(layer, COUNT, "moe_intermediate_size"))
        else:
            feed_forward = gated_mlp(hidden_size, layer.integer("intermediate_size"))
        block = Block(qkv_bias=bias, sinks=sliding[index])
        result.append(((record,), combine(attention_block(hidden_size, record, block), feed_forward)))
    return model_parts(keys, result, read_tied(keys), hidden_size)


def _attention(keys: Fields, sliding: bool) -> Attention:
    """A sliding layer has the dims of the `swa_` keys; absent, those of full layers and twice their KV heads."""
    heads, kv_heads = keys.integer("num_attention_heads"), keys.integer("num_key_value_heads")
    key_dim, value_dim = keys.integer("head_dim"), keys.integer("v_head_dim")
    if sliding:
        heads = keys.integer("swa_num_attention_heads", default=heads)
        kv_heads = keys.integer("swa_num_key_value_heads", default=2 * kv_heads)
        key_dim, value_dim = keys.integer("swa_head_dim", default=key_dim), keys.integer("swa_v_head_dim", default=value_dim)
    if heads % kv_heads:
        raise keys.bad("num_key_value_heads", f"{kv_heads} KV heads do not divide {heads} attention heads")
    kept = keys.integer("sliding_window_size", default=-1) if sliding else -1
    return Attention(heads, kv_heads, key_dim, value_dim, window_tokens=read_window(keys, sliding), transformers_keeps=kept)
