"""OPT, XGLM and BioGPT: fairseq's decoder with LayerNorm, biases everywhere and two position rows too many."""

from __future__ import annotations

from kvcli.model.families.gpt import A, H, P, parts, read_widths, repeated
from kvcli.model.families.parts import ModelParts, refuse_per_layer
from kvcli.model.fields import Fields

#: rows in front of position 0, kept for padding
OFFSET = 2


def read_opt(fields: Fields) -> ModelParts:
    """OPT. The table may be narrower than the layers (350M: 512 of 1024), which two matrices then join."""
    refuse_per_layer(fields)
    bias, affine = fields.boolean("enable_bias", True), fields.boolean("layer_norm_elementwise_affine", True)
    block = read_widths(fields, (H, 768), (A, 12))
    block = block._replace(intermediate_size=fields.integer("ffn_dim", 3072), qkv_bias=bias, output_bias=bias, mlp_bias=bias)
    hidden_size, norm = block.hidden_size, 2 * block.hidden_size * affine
    positions = fields.integer(P, 2048)
    ends_in_norm = fields.boolean("do_layer_norm_before", True) and not fields.boolean("_remove_final_layer_norm", False)
    vocab_size, width = fields.integer("vocab_size", 50272), fields.integer("word_embed_proj_dim", hidden_size)
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_context_tokens=positions,
        layers=repeated(fields, block, block.parameters(2 * norm), "num_hidden_layers", 12),
        tied=fields.boolean("tie_word_embeddings", True),
        embedding=vocab_size * width,
        head=vocab_size * width,
        lookups=(positions + OFFSET) * hidden_size,
        shared=2 * hidden_size * width if width != hidden_size else 0,
        final=norm * ends_in_norm,
    )


def read_biogpt(fields: Fields) -> ModelParts:
    block = read_widths(fields, (H, 1024), (A, 16))._replace(qkv_bias=True, output_bias=True, mlp_bias=True)
    block = block._replace(intermediate_size=fields.integer("intermediate_size", 4096))
    positions, norm = fields.integer(P, 1024), 2 * block.hidden_size
    layers = repeated(fields, block, block.parameters(2 * norm), "num_hidden_layers", 24)
    return parts(fields, block, 42384, positions, layers, tied=True, final=norm, position_rows=positions + OFFSET)


def read_xglm(fields: Fields) -> ModelParts:
    """XGLM: positions are computed, so they are no weights."""
    if fields.boolean("add_cross_attention", False):
        raise fields.bad("add_cross_attention", "kvcli reads this family as a decoder alone")
    block = read_widths(fields, ("d_model", 1024), ("attention_heads", 16))._replace(qkv_bias=True, output_bias=True, mlp_bias=True)
    block = block._replace(intermediate_size=fields.integer("ffn_dim", 4096))
    norm = 2 * block.hidden_size
    layers = repeated(fields, block, block.parameters(2 * norm), "num_layers", 24)
    return parts(fields, block, 256008, fields.integer(P, 2048), layers, tied=True, final=norm)
