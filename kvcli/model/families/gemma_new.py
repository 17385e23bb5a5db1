"""Gemma-3n and Gemma-4: last layers that reuse earlier keys and values, per-layer embeddings, and full layers of other dims.

Class defaults and rules are those of transformers 5.23. A per-layer embedding is a table of which a step reads one row a token.
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
    read_attention,
    read_experts,
    read_sliding,
    read_tied,
    routed,
)
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

GEMMA3N: dict[str, object] = {
    "vocab_size": 262400,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "altup_num_inputs": 4,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}
GEMMA4: dict[str, object] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "global_head_dim": 512,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
}
UNIFIED: dict[str, object] = {**GEMMA4, "max_position_embeddings": 262144, "sliding_window": 1024, "hidden_size_per_layer_input": 0}


def read_gemma3n(fields: Fields) -> ModelParts:
    """Each layer has AltUp (four streams of which one is computed), a low-rank LAuReL path and its own embedding's projections."""
    keys = fill(fields, GEMMA3N)
    layers = read_layer_count(keys)
    hidden, rank, inputs = keys.integer("hidden_size"), keys.integer("laurel_rank"), keys.integer("altup_num_inputs")
    sliding = read_sliding(keys, layers, [(index + 1) % 5 != 0 for index in range(layers)])
    owner = _owners(keys, layers, sliding)
    widths = _widths(keys, layers)
    bias = keys.boolean("attention_bias", False)
    extras = LayerParameters(
        # LAuReL; AltUp's router, prediction and correction
        mlp=2 * hidden * rank + hidden * inputs + inputs**3 + inputs**2,
        norms=2 * hidden,
        vectors=hidden,
    )
    block = Block(qkv_bias=bias, output_bias=bias, qk_norm="head", norms=4)
    per_layer = _per_layer_embedding(keys, hidden)
    result: list[Layer] = []
    for index, layer in enumerate(layer_fields(keys, layers)):
        record = read_attention(layer, hidden, sliding[index])._replace(owns_cache=owner[index])
        parts = attention_block(hidden, record, block), gated_mlp(hidden, widths[index]), extras, per_layer
        result.append(((record,), combine(*parts)))
    # projections into the other streams and back
    return _with_embedding(keys, result, hidden, shared=2 * (inputs - 1) * hidden * hidden)


def _widths(keys: Fields, layers: int) -> list[int]:
    """MLP widths: one, or a list with one for each layer."""
    if isinstance(keys.values.get("intermediate_size"), list):
        return keys.integers("intermediate_size", layers, minimum=1) or []
    return [keys.integer("intermediate_size")] * layers


def read_gemma4(fields: Fields) -> ModelParts:
    return _gemma4(fill(fields, GEMMA4), experts=fields.boolean("enable_moe_block", False))


def read_gemma4_unified(fields: Fields) -> ModelParts:
    """Neither experts nor per-layer embeddings."""
    for key in ("enable_moe_block", "hidden_size_per_layer_input"):
        if fields.values.get(key):
            raise fields.bad(key, "this family's class has no such block")
    return _gemma4(fill(fields, UNIFIED), experts=False)


def _gemma4(keys: Fields, experts: bool) -> ModelParts:
    """The last layer is full whatever the list says. With experts, a dense MLP runs beside them."""
    layers = read_layer_count(keys)
    hidden = keys.integer("hidden_size")
    sliding = read_sliding(keys, layers, [(index + 1) % 6 != 0 for index in range(layers)])
    sliding[-1] = False
    keys = _bidirectional(keys)
    owner = _owners(keys, layers, sliding)
    # keys and values of full layers may come from one projection; both are cached, after different norms
    one_projection = keys.boolean("attention_k_eq_v", False)
    double = keys.boolean("use_double_wide_mlp", False)
    bias = keys.boolean("attention_bias", False)
    block = Block(qkv_bias=bias, output_bias=bias, qk_norm="head", norms=4)
    per_layer = _per_layer_embedding(keys, hidden)
    result: list[Layer] = []
    for index, layer in enumerate(layer_fields(keys, layers)):
        record = _gemma4_attention(layer, hidden, sliding[index], one_projection)._replace(owns_cache=owner[index])
        attention = attention_block(hidden, record, block)
        if one_projection and not sliding[index] and owner[index]:
            width = record.num_key_value_heads * record.value_dim
            attention = attention._replace(key_value=attention.key_value - hidden * width, vectors=attention.vectors - width * bias)
        inner = layer.integer("intermediate_size") * (2 if double and not owner[index] else 1)
        parts = [attention, gated_mlp(hidden, inner), per_layer]
        if experts:
            found = read_experts(layer, ("num_experts",), "moe_intermediate_size", ("top_k_experts",))
            # the router scales its input and each expert's weight
            parts += [routed(hidden, found, router_vectors=hidden + found.num_experts), LayerParameters(norms=3 * hidden)]
        result.append(((record,), combine(*parts)))
    return _with_embedding(keys, result, hidden)


def _gemma4_attention(keys: Fields, hidden: int, sliding: bool, one_projection: bool) -> Attention:
    """Full layers have `global_head_dim`, and `num_global_key_value_heads` where K and V are one projection.

    A re-saved file has both in `per_layer_config` instead, which is already part of `keys`.
    """
    if sliding or keys.has("per_layer_config"):
        return read_attention(keys, hidden, sliding)
    values = {**keys.values, "head_dim": keys.integer("global_head_dim")}
    if one_projection and keys.has("num_global_key_value_heads"):
        values["num_key_value_heads"] = keys.values["num_global_key_value_heads"]
    return read_attention(Fields(values, keys.where, keys.outer), hidden)


def _bidirectional(keys: Fields) -> Fields:
    """Embedding models attend to both sides, half the window each."""
    if keys.text("use_bidirectional_attention", "") != "all" or not keys.has("sliding_window"):
        return keys
    return Fields({**keys.values, "sliding_window": keys.integer("sliding_window") // 2 + 1}, keys.where, keys.outer)


def _owners(keys: Fields, layers: int, sliding: list[bool]) -> list[bool]:
    """Which layers have a cache of their own: all but the last `num_kv_shared_layers`, which use the last earlier one of their kind."""
    shared = keys.integer("num_kv_shared_layers", default=0, minimum=0)
    first = layers - shared
    if shared and (first < 1 or set(sliding[:first]) != set(sliding)):
        raise keys.bad("num_kv_shared_layers", "each kind of layer needs an earlier layer whose cache it can use")
    return [index < first for index in range(layers)]


def _per_layer_embedding(keys: Fields, hidden: int) -> LayerParameters:
    """One layer's gate and projection of its embedding, and their norm."""
    width = keys.integer("hidden_size_per_layer_input", minimum=0, default=0)
    return LayerParameters(mlp=2 * hidden * width, norms=hidden if width else 0)


def _with_embedding(keys: Fields, layers: list[Layer], hidden: int, shared: int = 0) -> ModelParts:
    """The table of all layers' embeddings, the projection of the hidden state into them, and two norms."""
    width = keys.integer("hidden_size_per_layer_input", minimum=0, default=0)
    row = len(layers) * width
    return model_parts(
        keys,
        layers,
        read_tied(keys, default=True, wrapper_default=True),
        final=hidden + width,
        lookups=keys.integer("vocab_size_per_layer_input") * row if row else 0,
        shared=shared + hidden * row,
    )
