"""HRM-Text: two stacks of layers run in cycles. Every run has a cache of its own, every stack its weights once."""

from __future__ import annotations

from kvcli.model.families.dense import Block
from kvcli.model.families.parts import ModelParts, read_layer_count, refuse_per_layer, with_defaults
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters


def read_hrm_text(fields: Fields) -> ModelParts:
    """`num_hidden_layers` counts the runs where `num_layers_per_stack` is given too, else the layers of one stack.

    A cycle runs the low stack `L_cycles` times and the high stack once. The norms have no weights; attention has a gate as
    wide as the queries.
    """
    refuse_per_layer(fields)
    fields = with_defaults(
        fields,
        vocab_size=151808,
        hidden_size=1536,
        intermediate_size=4096,
        num_attention_heads=12,
        head_dim=128,
        max_position_embeddings=2048,
    )
    layers = read_layer_count(fields, default=16)
    stack = read_layer_count(fields, "num_layers_per_stack", default=layers)
    high, low = fields.integer("H_cycles", 2, maximum=1000), fields.integer("L_cycles", 3, maximum=1000)
    runs = high * (low + 1)
    if fields.has("num_layers_per_stack") and layers != stack * runs:
        raise fields.bad("num_hidden_layers", f"{runs} runs of {stack} layers make {stack * runs}")
    heads, hidden_size = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    bias = fields.boolean("attention_bias", False)
    head_dim = fields.integer("head_dim", hidden_size // heads)
    mlp_bias = fields.boolean("mlp_bias", False)
    block = Block(hidden_size, fields.integer("intermediate_size"), heads, heads, head_dim, True, bias, bias, mlp_bias)
    own = block.parameters(norms=0, vectors=block.query_width * bias)
    own = own._replace(query=2 * own.query)  # the gate's matrix has the shape of the queries'
    first: Layer = ((block.attention(),), own)
    again: Layer = ((block.attention()._replace(token_flops=2 * own.matrices),), LayerParameters())
    order = [first if (cycle == 0 and run in (0, low)) else again for cycle in range(high) for run in range(low + 1)]
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=fields.integer("max_position_embeddings"),
        layers=tuple(layer for layer in order for _ in range(stack)),
        tied=fields.boolean("tie_word_embeddings", False),
        final=hidden_size,  # the low stack's first state
    )
