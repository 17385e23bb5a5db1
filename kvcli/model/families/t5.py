"""T5 and its kin (relative positions, RMSNorm, no biases), and T5Gemma, whose two halves are Gemma-2 stacks.

As in `encoder_decoder`, the encoder belongs to `parameters`, and a decode step reads neither it nor the cross-attention's key
and value projections. Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli.model.cache_records import Attention
from kvcli.model.families.parts import ModelParts, layer_kinds, read_layer_count, with_defaults
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters
from kvcli.model.state_records import Cross


def read_t5(fields: Fields) -> ModelParts:
    defaults = {"vocab_size": 32128, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "feed_forward_proj": "relu"}
    return _t5(with_defaults(fields, **defaults), bias_in_every_layer=False, trained_tokens=512)


def read_mt5(fields: Fields) -> ModelParts:
    return _t5(_mt5_defaults(fields), bias_in_every_layer=False, trained_tokens=1024)


def read_umt5(fields: Fields) -> ModelParts:
    return _t5(_mt5_defaults(fields), bias_in_every_layer=True, trained_tokens=1024)


def _mt5_defaults(fields: Fields) -> Fields:
    return with_defaults(fields, vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu")


def _t5(fields: Fields, bias_in_every_layer: bool, trained_tokens: int) -> ModelParts:
    """The classes tie input and output tables whatever the file says. `d_kv` is the head dim, heads x d_kv need not be d_model."""
    hidden_size = fields.integer("d_model", default=512)
    heads = fields.integer("num_heads")
    head_dim = fields.integer("d_kv", default=64)
    encoder_layers = read_layer_count(fields, "num_layers")
    decoder_layers = read_layer_count(fields, "num_decoder_layers", default=encoder_layers)
    mlp = _mlp_matrices(fields) * hidden_size * fields.integer("d_ff")
    matrix = hidden_size * heads * head_dim
    layer = LayerParameters(
        query=2 * matrix,
        key_value=2 * matrix,
        attention_output=2 * matrix,
        mlp=mlp,
        norms=3 * hidden_size,
    )
    encoder_layer = 4 * matrix + mlp + 2 * hidden_size
    bias_table = fields.integer("relative_attention_num_buckets", default=32) * heads
    bias_tables = encoder_layers + decoder_layers if bias_in_every_layer else 2
    records = (Attention(heads, heads, head_dim, head_dim), Cross(heads, heads, head_dim, head_dim))
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=fields.integer("vocab_size"),
        # relative positions have no end; older files say what was trained
        max_context_tokens=fields.integer("n_positions", default=trained_tokens),
        layers=((records, layer),) * decoder_layers,
        tied=True,
        lookups=bias_table * bias_tables,
        final=hidden_size,
        encoder_parameters=encoder_layers * encoder_layer + hidden_size + decoder_layers * 2 * matrix,
    )


def _mlp_matrices(fields: Fields) -> int:
    form, _, activation = fields.text("feed_forward_proj", "").partition("-")
    if activation and (form != "gated" or "-" in activation):
        raise fields.bad("feed_forward_proj", "it must be an activation or gated-<activation>")
    if fields.boolean("is_gated_act", form == "gated") != (form == "gated"):
        raise fields.bad("is_gated_act", f"feed_forward_proj is {fields.text('feed_forward_proj', '')!r}")
    return 3 if form == "gated" else 2


class _Stack(NamedTuple):
    """One half of T5Gemma."""

    fields: Fields
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    bias: bool

    @property
    def query(self) -> int:
        return self.hidden_size * self.heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        return 2 * self.kv_heads * self.head_dim

    @property
    def query_bias(self) -> int:
        """Of a query and an output projection."""
        return self.heads * self.head_dim + self.hidden_size if self.bias else 0

    @property
    def key_value_bias(self) -> int:
        return self.key_value_width if self.bias else 0


def read_t5gemma(fields: Fields) -> ModelParts:
    encoder = _stack(fields.mapping("encoder"))
    decoder = _stack(fields.mapping("decoder"))
    vocab_size = decoder.fields.integer("vocab_size", default=256000)
    encoder_table = encoder.fields.integer("vocab_size", default=256000) * encoder.hidden_size
    encoder_layer = (
        2 * encoder.query
        + encoder.hidden_size * encoder.key_value_width
        + encoder.query_bias
        + encoder.key_value_bias
        + encoder.mlp
        + 4 * encoder.hidden_size
    )
    cross_key_value = encoder.hidden_size * decoder.key_value_width + decoder.key_value_bias
    return ModelParts(
        hidden_size=decoder.hidden_size,
        vocab_size=vocab_size,
        max_context_tokens=decoder.fields.integer("max_position_embeddings", default=8192),
        layers=_t5gemma_layers(decoder),
        tied=fields.boolean("tie_word_embeddings", True),
        lookups=encoder_table,
        final=decoder.hidden_size,
        encoder_parameters=encoder.layers * encoder_layer + encoder.hidden_size + decoder.layers * cross_key_value,
    )


def _stack(fields: Fields) -> _Stack:
    hidden_size = fields.integer("hidden_size", default=2304)
    heads = fields.integer("num_attention_heads", default=8)
    kv_heads = fields.integer("num_key_value_heads", default=4)
    if heads % kv_heads:
        raise fields.bad("num_key_value_heads", f"it must divide the {heads} attention heads")
    return _Stack(
        fields,
        hidden_size,
        read_layer_count(fields, default=26),
        heads,
        kv_heads,
        fields.integer("head_dim", default=256),
        3 * hidden_size * fields.integer("intermediate_size", default=9216),
        fields.boolean("attention_bias", False),
    )


def _t5gemma_layers(decoder: _Stack) -> tuple[Layer, ...]:
    """Self-attention alternates window and full layers as in Gemma-2; cross-attention has no window."""
    kinds = layer_kinds(decoder.fields, decoder.layers, ("sliding_attention", "full_attention"))
    if kinds is None:
        kinds = ["full_attention" if index % 2 else "sliding_attention" for index in range(decoder.layers)]
    window = with_defaults(decoder.fields, sliding_window=4096).optional_integer("sliding_window")
    if window is None and "sliding_attention" in kinds:
        raise decoder.fields.bad("sliding_window", "it is off while there are sliding layers")
    parameters = LayerParameters(
        query=2 * decoder.query,
        key_value=decoder.hidden_size * decoder.key_value_width,
        attention_output=2 * decoder.query,
        mlp=decoder.mlp,
        norms=6 * decoder.hidden_size,
        vectors=2 * decoder.query_bias + decoder.key_value_bias,
    )
    plain = Attention(decoder.heads, decoder.kv_heads, decoder.head_dim, decoder.head_dim)
    cross = Cross(decoder.heads, decoder.kv_heads, decoder.head_dim, decoder.head_dim)
    windows = (window if kind == "sliding_attention" else None for kind in kinds)
    return tuple(((plain._replace(window_tokens=width), cross), parameters) for width in windows)
