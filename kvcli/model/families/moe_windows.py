"""Decoders with windows and experts in layers that lists name: Laguna, Mellum, Beam, Kolibri, Step.

Class defaults and rules are those of the configuration classes of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcli.model.cache_records import Attention
from kvcli.model.families.moe_blocks import (
    Block,
    attention_block,
    combine,
    decoder,
    fill,
    gated_mlp,
    layer_fields,
    model_parts,
    one_of,
    read_attention,
    read_experts,
    read_kinds,
    read_sliding,
    read_sparse,
    read_tied,
    refuse,
    routed,
)
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

LAGUNA: dict[str, object] = {
    "vocab_size": 100352,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
MELLUM: dict[str, object] = {
    "vocab_size": 98304,
    "hidden_size": 2304,
    "intermediate_size": 7168,
    "num_hidden_layers": 28,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": 1024,
    "moe_intermediate_size": 896,
    "num_experts": 64,
    "num_experts_per_tok": 8,
}
BEAM: dict[str, object] = {
    "vocab_size": 151936,
    "hidden_size": 5120,
    "intermediate_size": 20480,
    "num_hidden_layers": 52,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "sliding_window": 512,
    "moe_intermediate_size": 2560,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
KOLIBRI: dict[str, object] = {
    "vocab_size": 128000,
    "hidden_size": 2560,
    "num_hidden_layers": 50,
    "num_attention_heads": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "sliding_window": 513,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 384,
    "num_experts_per_tok": 6,
}
STEP: dict[str, object] = {
    "vocab_size": 128815,
    "hidden_size": 4096,
    "intermediate_size": 11264,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 128000,
    "moe_intermediate_size": 1280,
    "share_expert_dim": 1280,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
}
COUNT = ("num_experts", "num_local_experts")
STEP_COUNT = ("n_routed_experts", "moe_num_experts", "num_local_experts")
STEP_TOP = ("num_experts_per_tok", "moe_top_k")
STEP_GROUPS = ("num_key_value_heads", "num_attention_groups")
STEP_SHARED = ("share_expert_dim", "share_expert_dims")


def read_laguna(fields: Fields) -> ModelParts:
    """Each layer may have its own number of query heads; the attention is gated by head, or by element where `gating` says so."""
    keys = fill(fields, LAGUNA, COUNT)
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")
    heads = keys.integers("num_attention_heads_per_layer", layers, minimum=1)
    gating = keys.values.get("gating", True)
    if not isinstance(gating, bool | str):
        raise keys.bad("gating", "it must be true, false or a name")
    # false does not remove the gate: the class then builds the one by element
    bias = keys.boolean("attention_bias", False)
    block = Block(qkv_bias=bias, output_bias=bias, qk_norm="head", gate="head" if gating in (True, "per-head") else "element")
    sliding = read_sliding(keys, layers, [False] * layers)
    sparse = read_sparse(keys, layers, [index > 0 for index in range(layers)])
    result: list[Layer] = []
    for index, layer in enumerate(layer_fields(keys, layers)):
        own = layer if heads is None else Fields({**layer.values, "num_attention_heads": heads[index]}, layer.where, layer.outer)
        record = read_attention(own, hidden_size, sliding[index])
        feed_forward = _listed(layer, hidden_size, sparse[index], shared=True, router_bias=True)
        result.append(((record,), combine(attention_block(hidden_size, record, block), feed_forward)))
    return model_parts(keys, result, read_tied(keys), hidden_size)


def read_mellum(fields: Fields) -> ModelParts:
    keys = fill(fields, MELLUM, COUNT)
    layers = read_layer_count(keys)
    bias = keys.boolean("attention_bias", False)
    block = Block(qkv_bias=bias, output_bias=bias, qk_norm="head")
    return _by_lists(keys, block, [False] * layers, [True] * layers)


def read_beam(fields: Fields) -> ModelParts:
    """Gated attention with a bias a head, four norms, no shared expert; every sixth layer and the last are full."""
    keys = fill(fields, BEAM, COUNT)
    layers = read_layer_count(keys)
    bias = keys.boolean("attention_bias", False)
    block = Block(qkv_bias=bias, output_bias=bias, qk_norm="head", gate="element", gate_bias=True, norms=4)
    sliding = [(index + 1) % 6 != 0 and index != layers - 1 for index in range(layers)]
    return _by_lists(keys, block, sliding, [index >= 3 for index in range(layers)])


def read_kolibri1(fields: Fields) -> ModelParts:
    keys = fill(fields, KOLIBRI, COUNT)
    layers = read_layer_count(keys)
    sliding = [(index + 1) % 5 != 0 for index in range(layers)]
    read_kinds(keys, "mlp_layer_types", layers, ("sparse",))  # the class has no dense layers
    return _by_lists(keys, Block(qk_norm="head", norms=4), sliding, [True] * layers, shared=True)


def _by_lists(keys: Fields, block: Block, sliding: Sequence[bool], sparse: Sequence[bool], shared: bool = False) -> ModelParts:
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")
    chosen = read_sparse(keys, layers, sparse)
    windows = read_sliding(keys, layers, sliding)
    return decoder(keys, lambda layer, index: _listed(layer, hidden_size, chosen[index], shared, False), block, read_tied(keys), windows)


def _listed(layer: Fields, hidden_size: int, sparse: bool, shared: bool, router_bias: bool) -> LayerParameters:
    if not sparse:
        return gated_mlp(hidden_size, layer.integer("intermediate_size"))
    experts = read_experts(layer, COUNT, "moe_intermediate_size")
    blocks = [routed(hidden_size, experts, router_vectors=experts.num_experts * router_bias)]
    if shared:
        blocks.append(gated_mlp(hidden_size, layer.integer("shared_expert_intermediate_size")))
    return combine(*blocks)


def read_step3p5(fields: Fields) -> ModelParts:
    """Attention gated by head; sliding layers may have other query heads. Lists may run on into the MTP blocks."""
    keys = fill(fields, STEP, STEP_COUNT, STEP_TOP, STEP_GROUPS, STEP_SHARED)
    refuse(keys, "use_head_wise_attn_gate", False)
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")
    sliding = read_sliding(keys, layers, [False] * layers)
    sparse = read_sparse(keys, layers, _step_experts(keys, layers))
    bias, mlp_bias = keys.boolean("attention_bias", False), keys.boolean("mlp_bias", False)
    block = Block(qkv_bias=bias, output_bias=bias, qk_norm="head", gate="head")
    result: list[Layer] = []
    for index, layer in enumerate(layer_fields(keys, layers)):
        record = _step_attention(layer, hidden_size, sliding[index])
        if sparse[index]:
            experts = routed(hidden_size, read_experts(layer, STEP_COUNT, "moe_intermediate_size", STEP_TOP))
            feed_forward = combine(experts, gated_mlp(hidden_size, one_of(layer, STEP_SHARED), mlp_bias))
        else:
            feed_forward = gated_mlp(hidden_size, layer.integer("intermediate_size"), mlp_bias)
        result.append(((record,), combine(attention_block(hidden_size, record, block), feed_forward)))
    return model_parts(keys, result, read_tied(keys), hidden_size)


def _step_experts(keys: Fields, layers: int) -> list[bool]:
    """From layer 3 on, or the layers that the older key `moe_layers_enum` lists."""
    listed = keys.values.get("moe_layers_enum")
    if listed is None:
        return [index >= 3 for index in range(layers)]
    if isinstance(listed, str):
        parts = [part for part in listed.split(",") if part.strip()]
        if not all(part.strip().isdecimal() for part in parts):
            raise keys.bad("moe_layers_enum", "it must list layer numbers")
        return [index in {int(part) for part in parts} for index in range(layers)]
    return [index in (keys.integers("moe_layers_enum") or ()) for index in range(layers)]


def _step_attention(keys: Fields, hidden_size: int, sliding: bool) -> Attention:
    """Heads of a sliding layer: `num_sliding_attention_heads`, or the older `attention_other_setting`, unless the layer has its own."""
    values = {**keys.values, "num_key_value_heads": one_of(keys, STEP_GROUPS)}
    if sliding and not keys.has("per_layer_config"):
        other = keys.mapping("attention_other_setting")
        for key in ("num_attention_groups", "num_key_value_heads", "head_dim"):
            same = values["num_key_value_heads"] if key != "head_dim" else keys.values["head_dim"]
            if other.has(key) and other.integer(key) != same:
                raise other.bad(key, "kvcli knows sliding layers of this family with other query heads only")
        default = other.integer("num_attention_heads", default=keys.integer("num_attention_heads"))
        values["num_attention_heads"] = keys.integer("num_sliding_attention_heads", default=default)
    return read_attention(Fields(values, keys.where, keys.outer), hidden_size, sliding)
