"""Llama 4: chunked attention with full layers without positions, experts in every or every other layer, one shared expert.

A chunk forgets at its border, so a layer needs ((n - 1) mod chunk) + 1 tokens; transformers keeps min(n, chunk - 1).
"""

from __future__ import annotations

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
    read_kinds,
    read_tied,
    routed,
)
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer

DEFAULTS: dict[str, object] = {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8192,
}


def read_llama4(fields: Fields) -> ModelParts:
    keys = fill(fields, DEFAULTS)
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")
    chunked = _chunked(keys, layers)
    step = keys.integer("interleave_moe_layer_step", default=1)
    listed = keys.integers("moe_layers")
    sparse = set(range(step - 1, layers, step) if listed is None else listed)
    bias = keys.boolean("attention_bias", False)
    # its q/k norm has no weights
    block = Block(qkv_bias=bias, output_bias=bias)
    result: list[Layer] = []
    for index, layer in enumerate(layer_fields(keys, layers)):
        record = read_attention(layer, hidden_size)
        if chunked[index]:
            chunk = layer.optional_integer("attention_chunk_size")
            if chunk is None:
                raise layer.bad("attention_chunk_size", "the file has chunked layers")
            record = record._replace(chunk_tokens=chunk)
        if index in sparse:
            experts = read_experts(layer, ("num_local_experts",), "intermediate_size")
            feed_forward = combine(routed(hidden_size, experts), gated_mlp(hidden_size, experts.width))
        else:
            feed_forward = gated_mlp(hidden_size, layer.integer("intermediate_size_mlp"))
        result.append(((record,), combine(attention_block(hidden_size, record, block), feed_forward)))
    return model_parts(keys, result, read_tied(keys), hidden_size)


def _chunked(keys: Fields, layers: int) -> list[bool]:
    """By `layer_types`; else the layers with positions: those marked in `no_rope_layers`, or all but each n-th."""
    kinds = read_kinds(keys, "layer_types", layers, ("full_attention", "chunked_attention"))
    if kinds is not None:
        return [kind == "chunked_attention" for kind in kinds]
    period = keys.integer("no_rope_layer_interval", default=4)
    marked = keys.integers("no_rope_layers") or [int((index + 1) % period != 0) for index in range(layers)]
    if len(marked) < layers:
        raise keys.bad("no_rope_layers", f"it has {len(marked)} entries for {layers} layers")
    return [bool(mark) for mark in marked[:layers]]
