"""ModernBERT's decoder (Ettin): windows in two of three layers, LayerNorm, a dense layer before the tied head."""

from __future__ import annotations

from kvcli.model.families.dense import Block, even_head_dim, first_of, listed_windows
from kvcli.model.families.parts import ModelParts, refuse_per_layer, with_defaults
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer


def read_modernbert_decoder(fields: Fields) -> ModelParts:
    """`local_attention` spans both sides of an encoder: the decoder, which sees one side, has half of it."""
    refuse_per_layer(fields)
    fields = with_defaults(
        fields,
        vocab_size=50368,
        hidden_size=768,
        intermediate_size=1152,
        num_hidden_layers=22,
        num_attention_heads=12,
        max_position_embeddings=8192,
        local_attention=128,
    )
    hidden_size, vocab_size = fields.integer("hidden_size"), fields.integer("vocab_size")
    heads = fields.integer("num_attention_heads")
    head_dim = even_head_dim(fields, "num_attention_heads", heads, hidden_size)
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    norm = hidden_size * (2 if fields.boolean("norm_bias", False) else 1)
    block = Block(hidden_size, fields.integer("intermediate_size"), heads, heads, head_dim, True, bias, bias, mlp_bias)
    marked = first_of(fields, fields.integer("global_attn_every_n_layers", 3))
    windows = listed_windows(fields, fields.integer("local_attention", minimum=2) // 2, marked)
    # the first layer reads the input table's norm: it has none of its own before attention
    layers: tuple[Layer, ...] = tuple(
        ((block.attention(window),), block.parameters((2 if index else 1) * norm)) for index, window in enumerate(windows)
    )
    tied = fields.boolean("tie_word_embeddings", True)
    dense = hidden_size * hidden_size
    extras = 3 * norm + hidden_size * fields.boolean("classifier_bias", False) + vocab_size * fields.boolean("decoder_bias", True)
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_context_tokens=fields.integer("max_position_embeddings"),
        layers=layers,
        tied=tied,
        head=vocab_size * hidden_size + dense,  # only rows that give logits go through the dense layer
        final=extras + (dense if tied else 0),
    )
