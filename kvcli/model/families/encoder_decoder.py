"""Sequence-to-sequence models with biased LayerNorm blocks: BART and its kin, and Whisper.

The decoder's self-attention grows with its tokens; cross-attention keeps keys and values of the encoder's output, which do
not. transformers counts such a model whole, so the encoder belongs to `parameters`; a decode step reads neither the encoder
nor the cross-attention's key and value projections. Defaults for absent keys are those of the Hugging Face configuration
classes, shapes those of their modules.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli.errors import NotModelled
from kvcli.model.cache_records import Attention
from kvcli.model.families.parts import ModelParts, read_layer_count, with_defaults
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters
from kvcli.model.state_records import Cross


class Style(NamedTuple):
    """What differs: extra rows of learned position tables (None: computed positions), norms, biases of keys."""

    position_offset: int | None = 0
    embedding_norm: bool = False
    final_norm: bool = True
    key_bias: bool = True


BART = Style(position_offset=2, embedding_norm=True, final_norm=False)
MBART = Style(position_offset=2, embedding_norm=True)
PEGASUS = Style()
M2M_100 = Style(position_offset=None)
MARIAN = Style(final_norm=False)
BLENDERBOT_SMALL = Style(embedding_norm=True, final_norm=False)
WHISPER = Style(key_bias=False)


def read_bart(fields: Fields) -> ModelParts:
    return _text(fields, BART)


def read_mbart(fields: Fields) -> ModelParts:
    return _text(fields, MBART)


def read_pegasus(fields: Fields) -> ModelParts:
    return _text(fields, PEGASUS)


def read_m2m_100(fields: Fields) -> ModelParts:
    return _text(with_defaults(fields, vocab_size=128112), M2M_100)


def read_blenderbot(fields: Fields) -> ModelParts:
    sizes = {"d_model": 2560, "encoder_layers": 2, "decoder_layers": 24, "vocab_size": 8008, "max_position_embeddings": 128}
    heads = {"encoder_attention_heads": 32, "decoder_attention_heads": 32, "encoder_ffn_dim": 10240, "decoder_ffn_dim": 10240}
    return _text(with_defaults(fields, **sizes, **heads), PEGASUS)


def read_blenderbot_small(fields: Fields) -> ModelParts:
    sizes = {"d_model": 512, "encoder_layers": 8, "decoder_layers": 8, "max_position_embeddings": 512}
    return _text(with_defaults(fields, **sizes, encoder_ffn_dim=2048, decoder_ffn_dim=2048), BLENDERBOT_SMALL)


def read_marian(fields: Fields) -> ModelParts:
    """Marian may keep the source language's table apart from the target's."""
    filled = with_defaults(fields, vocab_size=58101)
    if fields.boolean("share_encoder_decoder_embeddings", True):
        return _text(filled, MARIAN)
    source = filled.integer("vocab_size")
    return _text(filled, MARIAN, vocab_size=filled.integer("decoder_vocab_size", default=source), source_rows=source)


def _text(fields: Fields, style: Style, vocab_size: int | None = None, source_rows: int = 0) -> ModelParts:
    """`source_rows` are those of a table that only the encoder uses."""
    positions = fields.integer("max_position_embeddings", default=1024)
    tied = fields.boolean("tie_word_embeddings", True)
    hidden_size = fields.integer("d_model", default=1024)
    rows = fields.integer("vocab_size", default=50265) if vocab_size is None else vocab_size
    if not tied and not source_rows:
        source_rows = 2 * rows  # untied, the class keeps the encoder's table and an unused shared one beside the decoder's
    learned = 0 if style.position_offset is None else 2 * (positions + style.position_offset)
    return _parts(
        with_defaults(fields, encoder_layers=12, decoder_layers=12, encoder_ffn_dim=4096, decoder_ffn_dim=4096),
        style,
        hidden_size=hidden_size,
        vocab_size=rows,
        max_context_tokens=positions,
        tied=tied,
        lookup_rows=learned + source_rows,
        default_heads=16,
    )


def read_whisper(fields: Fields) -> ModelParts:
    """Audio is padded to 30 s, so cross-attention always looks at `max_source_positions` frames (1500)."""
    hidden_size = fields.integer("d_model", default=384)
    frames = fields.integer("max_source_positions", default=1500)
    positions = fields.integer("max_target_positions", default=448)
    # two convolutions of width 3 over mel bins come before the encoder's layers
    convolutions = 3 * hidden_size * (fields.integer("num_mel_bins", default=80) + hidden_size) + 2 * hidden_size
    return _parts(
        with_defaults(fields, encoder_layers=4, decoder_layers=4, encoder_ffn_dim=1536, decoder_ffn_dim=1536),
        WHISPER,
        hidden_size=hidden_size,
        vocab_size=fields.integer("vocab_size", default=51865),
        max_context_tokens=positions,
        tied=fields.boolean("tie_word_embeddings", True),
        lookup_rows=frames + positions,
        default_heads=6,
        encoder_input=convolutions,
        encoder_tokens=frames,
    )


def _parts(
    fields: Fields,
    style: Style,
    hidden_size: int,
    vocab_size: int,
    max_context_tokens: int,
    tied: bool,
    lookup_rows: int,
    default_heads: int,
    encoder_input: int = 0,
    encoder_tokens: int = 0,
) -> ModelParts:
    if not fields.boolean("is_encoder_decoder", True):
        raise NotModelled(f"{fields.where}: a decoder without its encoder is not modelled for this family", code="decoder_only_variant")
    _heads(fields, "encoder_attention_heads", hidden_size, default_heads)
    heads = _heads(fields, "decoder_attention_heads", hidden_size, default_heads)
    head_dim = hidden_size // heads
    encoder_width = fields.integer("encoder_ffn_dim")
    width = fields.integer("decoder_ffn_dim")
    encoder_layers = read_layer_count(fields, "encoder_layers")
    decoder_layers = read_layer_count(fields, "decoder_layers")
    norm = 2 * hidden_size  # LayerNorm: weight and bias
    matrix = hidden_size * hidden_size
    key_value_bias = (2 if style.key_bias else 1) * hidden_size
    around_layers = norm * (style.embedding_norm + style.final_norm)
    layer = LayerParameters(
        query=2 * matrix,
        key_value=2 * matrix,
        attention_output=2 * matrix,
        mlp=2 * hidden_size * width,
        norms=3 * norm,
        vectors=2 * 2 * hidden_size + key_value_bias + width + hidden_size,
    )
    encoder_layer = 4 * matrix + 2 * hidden_size + key_value_bias + 2 * hidden_size * encoder_width + encoder_width + hidden_size + 2 * norm
    cross_key_value = 2 * matrix + key_value_bias
    records = (Attention(heads, heads, head_dim, head_dim), Cross(heads, heads, head_dim, head_dim, default_tokens=encoder_tokens))
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_context_tokens=max_context_tokens,
        layers=((records, layer),) * decoder_layers,
        tied=tied,
        lookups=lookup_rows * hidden_size,
        final=around_layers,
        encoder_parameters=encoder_input + encoder_layers * encoder_layer + around_layers + decoder_layers * cross_key_value,
    )


def _heads(fields: Fields, key: str, hidden_size: int, default: int) -> int:
    heads = fields.integer(key, default=default)
    if hidden_size % heads:
        raise with_defaults(fields, **{key: heads}).bad(key, f"it must divide the hidden size {hidden_size}")
    return heads
