"""Decoders whose first layers are dense and whose other layers have routed and shared experts: GLM-4.5 and its kin.

Class defaults and rules are those of the configuration classes of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvcli.model.families.latent_blocks import prediction_blocks
from kvcli.model.families.moe_blocks import (
    Block,
    combine,
    decoder,
    fill,
    gated_mlp,
    read_experts,
    read_sliding,
    read_sparse,
    read_tied,
    refuse,
    routed,
)
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters

GLM4: dict[str, object] = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "first_k_dense_replace": 1,
}
SOLAR: dict[str, object] = {
    **GLM4,
    "vocab_size": 196608,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "head_dim": 128,
    "moe_intermediate_size": 1280,
    "first_k_dense_replace": 0,
}
DOTS1: dict[str, object] = {
    "vocab_size": 152064,
    "hidden_size": 4608,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "sliding_window": 4096,
}
EXAONE: dict[str, object] = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "sliding_window": 4096,
    "moe_intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
}
ERNIE: dict[str, object] = {
    "vocab_size": 103424,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_num_shared_experts": 2,
}
HY3: dict[str, object] = {
    "vocab_size": 120832,
    "hidden_size": 4096,
    "intermediate_size": 13312,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536,
    "num_experts": 192,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
}
AFMOE: dict[str, object] = {
    "vocab_size": 200192,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "head_dim": 128,
    "max_position_embeddings": 16384,
    "sliding_window": 1024,
    "moe_intermediate_size": 1408,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
}
COHERE2: dict[str, object] = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
ROUTED = ("n_routed_experts", "num_local_experts")
COUNT = ("num_experts", "num_local_experts")


def read_glm4_moe(fields: Fields) -> ModelParts:
    keys = fill(fields, GLM4, ROUTED)
    norm = "head" if keys.boolean("use_qk_norm", False) else ""
    parts = _first_dense(keys, Block(qkv_bias=keys.boolean("attention_bias", False), qk_norm=norm), read_tied(keys))
    return replace(parts, mtp=prediction_blocks(keys, parts.hidden_size, parts.layers[-1]))


def read_glm4v_moe(fields: Fields) -> ModelParts:
    """Biases by default and no q/k norm. Its outer class also obeys an inner tie flag, as files before release 5 had it."""
    keys = fill(fields, {**GLM4, "vocab_size": 151424, "max_position_embeddings": 65536}, ROUTED)
    refuse(keys, "use_qk_norm", True)
    tied = read_tied(keys) or keys.boolean("tie_word_embeddings", False)
    return _first_dense(keys, Block(qkv_bias=keys.boolean("attention_bias", True)), tied)


def read_solar_open(fields: Fields) -> ModelParts:
    """Experts in every layer."""
    keys = fill(fields, SOLAR, ROUTED)
    refuse(keys, "use_qk_norm", True)
    if keys.integer("first_k_dense_replace", minimum=0):
        raise keys.bad("first_k_dense_replace", "this family's class has no dense layers")
    return _first_dense(keys, Block(qkv_bias=keys.boolean("attention_bias", False)), read_tied(keys))


def read_dots1(fields: Fields) -> ModelParts:
    """The class names no expert counts, so a file must."""
    keys = fill(fields, DOTS1)
    layers = read_layer_count(keys)
    first = keys.integer("max_window_layers", default=62, minimum=0)
    on = keys.has("sliding_window")
    sliding = read_sliding(keys, layers, [on and index >= first for index in range(layers)])
    bias = keys.boolean("attention_bias", False)
    return _first_dense(keys, Block(qkv_bias=bias, output_bias=bias, qk_norm="head"), read_tied(keys), sliding)


def _first_dense(keys: Fields, block: Block, tied: bool, sliding: Sequence[bool] | None = None) -> ModelParts:
    """`first_k_dense_replace` dense layers, then experts."""
    first = keys.integer("first_k_dense_replace", default=0, minimum=0)
    sparse = [index >= first for index in range(read_layer_count(keys))]
    return _shared(keys, block, sparse, tied, ROUTED, "n_shared_experts", sliding)


def read_exaone_moe(fields: Fields) -> ModelParts:
    """Every fourth layer is full; published files spell the pattern "LLLG"."""
    keys = fill(fields, EXAONE, COUNT)
    layers = read_layer_count(keys)
    sliding = read_sliding(keys, layers, _pattern(keys, layers))
    first = keys.integer("first_k_dense_replace", default=1, minimum=0)
    sparse = read_sparse(keys, layers, [index >= first for index in range(layers)])
    return _shared(keys, Block(qk_norm="head"), sparse, read_tied(keys), COUNT, "num_shared_experts", sliding)


def _pattern(keys: Fields, layers: int) -> list[bool]:
    """Sliding layers of a period (an integer p: every p-th layer is full) or of a repeated string of L and G."""
    if not keys.has("sliding_window"):
        return [False] * layers
    if isinstance(keys.values.get("sliding_window_pattern"), str):
        text = keys.text("sliding_window_pattern", "")
        if not text or set(text) - {"L", "G"}:
            raise keys.bad("sliding_window_pattern", "it must be a number or a string of L and G")
        return [text[index % len(text)] == "L" for index in range(layers)]
    period = keys.integer("sliding_window_pattern", default=4)
    return [(index + 1) % period != 0 for index in range(layers)]


def read_ernie4_5_moe(fields: Fields) -> ModelParts:
    """Experts from `moe_layer_start_index` to `moe_layer_end_index`, every `moe_layer_interval`-th; routing bias is a parameter."""
    keys = fill(fields, ERNIE, ("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok"))
    layers = read_layer_count(keys)
    first = keys.integer("moe_layer_start_index", default=1, minimum=0)
    last = keys.integer("moe_layer_end_index", default=-1, minimum=-1)
    step = keys.integer("moe_layer_interval", default=1)
    hidden_size = keys.integer("hidden_size")
    bias = keys.boolean("use_bias", False)

    def feed_forward(layer: Fields, index: int) -> LayerParameters:
        if (index + 1) % step or index < first or index > (layers - 1 if last == -1 else last):
            return gated_mlp(hidden_size, layer.integer("intermediate_size"), bias)
        names = ("moe_k", "num_experts_per_tok")
        experts = read_experts(layer, ("moe_num_experts", "num_experts"), "moe_intermediate_size", names)
        width = experts.width * layer.integer("moe_num_shared_experts", minimum=0)
        shared = gated_mlp(hidden_size, width, bias) if width else LayerParameters()
        return combine(routed(hidden_size, experts, router_vectors=experts.num_experts), shared)

    # the output matrix has a bias too
    final = hidden_size + keys.integer("vocab_size") * bias
    return decoder(keys, feed_forward, Block(qkv_bias=bias, output_bias=bias), read_tied(keys, default=True), final=final)


def read_hy_v3(fields: Fields) -> ModelParts:
    keys = fill(fields, HY3, COUNT)
    layers = read_layer_count(keys)
    bias = keys.boolean("attention_bias", False)
    sparse = read_sparse(keys, layers, [index > 0 for index in range(layers)])
    block = Block(qkv_bias=bias, output_bias=bias, qk_norm="head")
    mlp_bias = keys.boolean("mlp_bias", False)
    return _shared(keys, block, sparse, read_tied(keys), COUNT, "num_shared_experts", mlp_bias=mlp_bias)


def read_afmoe(fields: Fields) -> ModelParts:
    """Trinity: gated attention, four norms a layer, and a routing bias that is a parameter."""
    keys = fill(fields, AFMOE, COUNT)
    layers = read_layer_count(keys)
    period = keys.integer("global_attn_every_n_layers", default=4)
    sliding = read_sliding(keys, layers, [(index + 1) % period != 0 for index in range(layers)])
    first = keys.integer("num_dense_layers", default=1, minimum=0)
    bias = keys.boolean("attention_bias", False)
    block = Block(qkv_bias=bias, output_bias=bias, qk_norm="head", gate="element", norms=4)
    sparse = [index >= first for index in range(layers)]
    return _shared(keys, block, sparse, read_tied(keys), COUNT, "num_shared_experts", sliding, router_bias=True)


def _shared(
    keys: Fields,
    block: Block,
    sparse: Sequence[bool],
    tied: bool,
    count: tuple[str, ...],
    shared_key: str,
    sliding: Sequence[bool] | None = None,
    mlp_bias: bool = False,
    router_bias: bool = False,
) -> ModelParts:
    """Dense layers of `intermediate_size`, experts of `moe_intermediate_size`, `shared_key` shared ones of the same width."""
    hidden_size = keys.integer("hidden_size")

    def feed_forward(layer: Fields, index: int) -> LayerParameters:
        if not sparse[index]:
            return gated_mlp(hidden_size, layer.integer("intermediate_size"), mlp_bias)
        experts = read_experts(layer, count, "moe_intermediate_size")
        width = experts.width * layer.integer(shared_key, minimum=0)
        return combine(
            routed(hidden_size, experts, router_vectors=experts.num_experts * router_bias),
            gated_mlp(hidden_size, width, mlp_bias) if width else LayerParameters(),
        )

    return decoder(keys, feed_forward, block, tied, sliding)


def read_cohere2_moe(fields: Fields) -> ModelParts:
    """One norm a layer. The dense prefix has its own window pattern, and the pattern of the rest starts after it."""
    keys = fill(fields, COHERE2, COUNT)
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")
    prefix = min(keys.integer("first_k_dense_replace", default=0, minimum=0), layers)
    before, after = keys.integer("prefix_dense_sliding_window_pattern", default=1), keys.integer("sliding_window_pattern", default=4)
    rule = [(index + 1) % before != 0 if index < prefix else (index - prefix + 1) % after != 0 for index in range(layers)]
    sparse = read_sparse(keys, layers, [index >= prefix for index in range(layers)])

    def feed_forward(layer: Fields, index: int) -> LayerParameters:
        inner = layer.integer("intermediate_size")
        if not sparse[index]:
            return gated_mlp(hidden_size, layer.integer("prefix_dense_intermediate_size", default=inner))
        shared = gated_mlp(hidden_size, inner * layer.integer("num_shared_experts", default=0, minimum=0))
        return combine(routed(hidden_size, read_experts(layer, COUNT, "intermediate_size")), shared)

    bias = keys.boolean("attention_bias", False)
    block = Block(qkv_bias=bias, output_bias=bias, norms=1)
    return decoder(keys, feed_forward, block, read_tied(keys, default=True), read_sliding(keys, layers, rule))
