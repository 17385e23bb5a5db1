"""Muse-Spark and Muse-Glimmer: windows with every fourth layer full, counted back from the last, and gated attention.

Their q/k norm has no weights. Class defaults are those of transformers 5.23; the experts of Spark work in a width of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcli.model.families.moe_blocks import Block, combine, decoder, fill, gated_mlp, read_experts, read_sliding, read_sparse, read_tied
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters

SPARK: dict[str, object] = {
    "vocab_size": 202048,
    "hidden_size": 8192,
    "intermediate_size": 16384,
    "num_hidden_layers": 62,
    "num_attention_heads": 128,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "max_position_embeddings": 1048576,
    "sliding_window": 2048,
    "moe_intermediate_size": 4096,
    "moe_hidden_size": 4096,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
}
GLIMMER: dict[str, object] = {
    "vocab_size": 202048,
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "sliding_window": 2048,
}


def read_muse_glimmer(fields: Fields) -> ModelParts:
    keys = fill(fields, GLIMMER)
    hidden_size = keys.integer("hidden_size")
    return _muse(keys, lambda layer, index: gated_mlp(hidden_size, layer.integer("intermediate_size")), 4, read_tied(keys))


def read_muse_spark(fields: Fields) -> ModelParts:
    """Three norms with weights and two residual gates a layer. The class ties no matrices, whatever the flag says."""
    keys = fill(fields, SPARK)
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")
    sparse = read_sparse(keys, layers, [True] * layers)

    def feed_forward(layer: Fields, index: int) -> LayerParameters:
        gates = LayerParameters(vectors=2 * hidden_size)
        if not sparse[index]:
            return combine(gates, gated_mlp(hidden_size, layer.integer("intermediate_size")))
        experts = read_experts(layer, ("num_local_experts",), "moe_intermediate_size")
        inner = layer.integer("moe_hidden_size")
        moe = LayerParameters(
            router=experts.num_experts * hidden_size,
            mlp=2 * hidden_size * inner,  # into the experts' width and back
            norms=2 * inner,
            expert=3 * inner * experts.width,
            num_experts=experts.num_experts,
            experts_per_token=experts.experts_per_token,
        )
        return combine(gates, moe)

    return _muse(keys, feed_forward, 3, tied=False)


def _muse(keys: Fields, feed_forward: Callable[[Fields, int], LayerParameters], norms: int, tied: bool) -> ModelParts:
    layers = read_layer_count(keys)
    sliding = read_sliding(keys, layers, [(layers - 1 - index) % 4 != 0 for index in range(layers)])
    bias = keys.boolean("attention_bias", False)
    return decoder(keys, feed_forward, Block(qkv_bias=bias, output_bias=bias, gate="element", norms=norms), tied, sliding)
