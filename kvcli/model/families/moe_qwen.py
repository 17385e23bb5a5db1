"""Qwen's decoders with experts, and Flint, which has their keys: experts in the layers that `decoder_sparse_step` picks.

Class defaults and rules are those of the configuration classes of transformers 5.23.
"""

from __future__ import annotations

from kvcli.model.families.moe_blocks import Block, combine, decoder, fill, gated_mlp, read_experts, read_sliding, read_tied, routed
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters

COUNT = ("num_experts", "num_local_experts")

QWEN2: dict[str, object] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
}
QWEN3: dict[str, object] = {
    **QWEN2,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
QWEN3_VL: dict[str, object] = {**QWEN2, "max_position_embeddings": 128000}
QWEN3_OMNI: dict[str, object] = {
    **QWEN3,
    "vocab_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "sliding_window": None,
}
FLINT: dict[str, object] = {
    **QWEN2,
    "vocab_size": 150144,
    "intermediate_size": 6144,
    "num_hidden_layers": 49,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 262144,
    "sliding_window": 513,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_tok": 6,
    "head_dim": 128,
}


def read_qwen2_moe(fields: Fields) -> ModelParts:
    """Its window, once switched on, is in the even layers below `max_window_layers` (Qwen2 has it above)."""
    keys = _window_switch(fill(fields, QWEN2, COUNT))
    layers = read_layer_count(keys)
    first_full = keys.integer("max_window_layers", default=28, minimum=0)
    on = keys.has("sliding_window")
    sliding = read_sliding(keys, layers, [on and index % 2 == 0 and index < first_full for index in range(layers)])
    return _qwen(keys, Block(qkv_bias=keys.boolean("qkv_bias", True)), sliding, shared_gate=True)


def read_qwen3_moe(fields: Fields) -> ModelParts:
    """Its window, once switched on, is in every layer."""
    keys = _window_switch(fill(fields, QWEN3, COUNT))
    return _qwen3(keys, keys.has("sliding_window"))


def read_qwen3_vl_moe(fields: Fields) -> ModelParts:
    return _qwen3(_without_window(fill(fields, QWEN3_VL, COUNT)), False)


def read_qwen3_omni_moe(fields: Fields) -> ModelParts:
    """The thinker's decoder; talker and code-to-wave models are other decoders."""
    keys = fill(fields, QWEN3_OMNI, COUNT)
    return _qwen3(keys, keys.has("sliding_window"))


def _qwen3(keys: Fields, window: bool) -> ModelParts:
    layers = read_layer_count(keys)
    bias = keys.boolean("attention_bias", False)
    return _qwen(keys, Block(qkv_bias=bias, output_bias=bias, qk_norm="head"), read_sliding(keys, layers, [window] * layers))


def read_flint(fields: Fields) -> ModelParts:
    """Full attention in the first two layers, every fourth and the last; the first two have no experts. Sinks everywhere."""
    keys = fill(fields, FLINT, COUNT)
    layers = read_layer_count(keys)
    sliding = read_sliding(keys, layers, [index >= 2 and index % 4 != 1 and index != layers - 1 for index in range(layers)])
    bias = keys.boolean("attention_bias", False)
    block = Block(qkv_bias=bias, output_bias=bias, qk_norm="head", sinks=True)
    return _qwen(keys, block, sliding, shared_gate=False, dense_layers=[0, 1])


def _window_switch(keys: Fields) -> Fields:
    return keys if keys.boolean("use_sliding_window", False) else _without_window(keys)


def _without_window(keys: Fields) -> Fields:
    return Fields({**keys.values, "sliding_window": None}, keys.where, keys.outer)


def _qwen(
    keys: Fields, block: Block, sliding: list[bool], shared_gate: bool | None = None, dense_layers: list[int] | None = None
) -> ModelParts:
    """`shared_gate` None: no shared expert; True: one whose output a row of H weights scales."""
    hidden_size = keys.integer("hidden_size")
    step = keys.integer("decoder_sparse_step", default=1)
    listed = keys.integers("mlp_only_layers")
    dense = (dense_layers or []) if listed is None else listed
    any_experts = all(keys.values.get(key) != 0 for key in COUNT)

    def feed_forward(layer: Fields, index: int) -> LayerParameters:
        if index in dense or not any_experts or (index + 1) % step:
            return gated_mlp(hidden_size, layer.integer("intermediate_size"))
        experts = routed(hidden_size, read_experts(layer, COUNT, "moe_intermediate_size"), router_rows=int(bool(shared_gate)))
        if shared_gate is None:
            return experts
        return combine(experts, gated_mlp(hidden_size, layer.integer("shared_expert_intermediate_size")))

    return decoder(keys, feed_forward, block, read_tied(keys), sliding)
