"""Older decoders of the GPT line, named with `n_embd` or with BERT's keys: LayerNorm, two MLP matrices, one KV head a query head.

Absent keys take the defaults of the Hugging Face classes. Where a class maps two names to one key, either is read.
"""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families.dense import Block, even_head_dim
from kvcli.model.families.parts import ModelParts, read_layer_count, refuse_per_layer
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

H, A, L, P = "hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings"


def pick(fields: Fields, *names: str) -> str:
    """The first of these names that the file has, else the first."""
    return next((name for name in names if fields.has(name)), names[0])


def read_widths(fields: Fields, hidden: tuple[str, int], heads: tuple[str, int], kv_heads: int | None = None) -> Block:
    """A block of four times the width, two MLP matrices and H / A dims a head, from (key, default) of H and A."""
    hidden_size = fields.integer(pick(fields, hidden[0], H), hidden[1])
    heads_key = pick(fields, heads[0], A)
    count = fields.integer(heads_key, heads[1])
    head_dim = even_head_dim(fields, heads_key, count, hidden_size)
    return Block(hidden_size, 4 * hidden_size, count, kv_heads or count, head_dim, gated_mlp=False)


def parts(
    fields: Fields,
    block: Block,
    vocab_size: int,
    positions: int,
    layers: tuple[Layer, ...],
    tied: bool,
    final: int,
    position_rows: int = 0,
    head_bias: bool = False,
) -> ModelParts:
    refuse_per_layer(fields)
    vocab_size = fields.integer("vocab_size", vocab_size)
    return ModelParts(
        hidden_size=block.hidden_size,
        vocab_size=vocab_size,
        max_context_tokens=positions,
        layers=layers,
        tied=fields.boolean("tie_word_embeddings", tied),
        lookups=position_rows * block.hidden_size,
        final=final + vocab_size * head_bias,
    )


def repeated(fields: Fields, block: Block, parameters: LayerParameters, key: str, default: int) -> tuple[Layer, ...]:
    return (((block.attention(),), parameters),) * read_layer_count(fields, pick(fields, key, L), default)


def read_gptj(fields: Fields) -> ModelParts:
    """GPT-J and CodeGen: one norm feeds attention and MLP; biases in the MLP and in the head."""
    block = read_widths(fields, ("n_embd", 4096), ("n_head", 16))._replace(mlp_bias=True)
    block = block._replace(intermediate_size=fields.integer("n_inner", block.intermediate_size))
    positions = fields.integer(pick(fields, "n_positions", P), 2048)
    layers = repeated(fields, block, block.parameters(2 * block.hidden_size), "n_layer", 28)
    return parts(fields, block, 50400, positions, layers, tied=False, final=2 * block.hidden_size, head_bias=True)


def read_gpt_neo(fields: Fields) -> ModelParts:
    """GPT-Neo: learned positions; local layers see `window_size` tokens, but transformers keeps all of them."""
    block = read_widths(fields, (H, 2048), ("num_heads", 16))._replace(output_bias=True, mlp_bias=True)
    block = block._replace(intermediate_size=fields.integer("intermediate_size", block.intermediate_size))
    positions = fields.integer(P, 2048)
    count = read_layer_count(fields, pick(fields, "num_layers", L), 24)
    local = block.attention(fields.integer("window_size", 256))._replace(transformers_keeps=0)
    records: dict[str, Attention] = {"global": block.attention(), "local": local}
    parameters = block.parameters(4 * block.hidden_size)
    layers: tuple[Layer, ...] = tuple(((records[kind],), parameters) for kind in _neo_kinds(fields, count))
    return parts(fields, block, 50257, positions, layers, tied=True, final=2 * block.hidden_size, position_rows=positions)


def _neo_kinds(fields: Fields, count: int) -> list[str]:
    """`attention_types` is a list of (names, repeats). `attention_layers` in files is its expansion and not read by the class."""
    pairs = fields.values.get("attention_types")
    if pairs is None:
        pairs = [[["global", "local"], 12]]
    kinds: list[str] = []
    try:
        for names, repeats in pairs:
            if not 0 <= repeats <= count:
                raise ValueError
            kinds += list(names) * repeats
        known = set(kinds) <= {"global", "local"}
    except (TypeError, ValueError):
        known = False
    if not known or len(kinds) != count:
        raise fields.bad("attention_types", f"it must name global and local layers, {count} in all")
    return kinds


def read_openai_gpt(fields: Fields) -> ModelParts:
    """GPT-1: norms after the blocks, none at the end. transformers has no cache for it and recomputes every token."""
    block = read_widths(fields, ("n_embd", 768), ("n_head", 12))._replace(qkv_bias=True, output_bias=True, mlp_bias=True)
    positions = fields.integer(pick(fields, "n_positions", P), 512)
    layer: Layer = ((block.attention()._replace(transformers_keeps=-2),), block.parameters(4 * block.hidden_size))
    layers = (layer,) * read_layer_count(fields, pick(fields, "n_layer", L), 12)
    return parts(fields, block, 40478, positions, layers, tied=True, final=0, position_rows=positions)


def read_gpt_bigcode(fields: Fields) -> ModelParts:
    """StarCoder-1: GPT-2 with one KV head for all queries where `multi_query`."""
    one = 1 if fields.boolean("multi_query", True) else None
    if fields.boolean("add_cross_attention", False):
        raise fields.bad("add_cross_attention", "kvcli reads this family as a decoder alone")
    block = read_widths(fields, ("n_embd", 768), ("n_head", 12), one)
    block = block._replace(
        intermediate_size=fields.integer("n_inner", block.intermediate_size), qkv_bias=True, output_bias=True, mlp_bias=True
    )
    positions = fields.integer(pick(fields, "n_positions", P), 1024)
    layers = repeated(fields, block, block.parameters(4 * block.hidden_size), "n_layer", 12)
    return parts(fields, block, 50257, positions, layers, tied=True, final=2 * block.hidden_size, position_rows=positions)


def read_ctrl(fields: Fields) -> ModelParts:
    """CTRL: computed positions, width `dff`, a bias in the head."""
    block = read_widths(fields, ("n_embd", 1280), ("n_head", 16))
    block = block._replace(intermediate_size=fields.integer("dff", 8192), qkv_bias=True, output_bias=True, mlp_bias=True)
    positions = fields.integer(pick(fields, "n_positions", P), 256)
    layers = repeated(fields, block, block.parameters(4 * block.hidden_size), "n_layer", 48)
    return parts(fields, block, 246534, positions, layers, tied=True, final=2 * block.hidden_size, head_bias=True)


def read_gpt_neox(fields: Fields) -> ModelParts:
    """GPT-NeoX, Pythia: two norms, parallel or not. The class knows no `num_key_value_heads`, though files may carry it."""
    bias = fields.boolean("attention_bias", True)
    block = read_widths(fields, (H, 6144), (A, 64))._replace(qkv_bias=bias, output_bias=bias, mlp_bias=True)
    block = block._replace(intermediate_size=fields.integer("intermediate_size", 24576))
    layers = repeated(fields, block, block.parameters(4 * block.hidden_size), L, 44)
    return parts(fields, block, 50432, fields.integer(P, 2048), layers, tied=False, final=2 * block.hidden_size)


def read_gpt_neox_japanese(fields: Fields) -> ModelParts:
    """No biases but one: that of the last layer's attention output."""
    block = read_widths(fields, (H, 2560), (A, 32))
    block = block._replace(intermediate_size=fields.integer("intermediate_multiple_size", 4) * block.hidden_size)
    layers = repeated(fields, block, block.parameters(4 * block.hidden_size), L, 32)
    last: Layer = ((block.attention(),), block.parameters(4 * block.hidden_size, block.hidden_size))
    return parts(fields, block, 32000, fields.integer(P, 2048), (*layers[:-1], last), tied=True, final=2 * block.hidden_size)
