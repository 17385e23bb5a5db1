"""The uniform decoder that the built-in transformer computes: every layer is attention and an MLP of one shape."""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families.parts import ModelParts
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters
from kvcli.model.spec import Decoder, Rope, RopeScaling


def decoder_parts(
    decoder: Decoder, vocab_size: int, max_context_tokens: int, tied: bool, windows: tuple[int | None, ...], position_rows: int = 0
) -> ModelParts:
    """Layers and counts of a decoder whose layers differ at most in their window."""
    d = decoder
    norm = norm_parameters(d)
    parameters = layer_parameters(d, norm)
    attention = Attention(d.num_attention_heads, d.num_key_value_heads, d.head_dim, d.head_dim)
    return ModelParts(
        hidden_size=d.hidden_size,
        vocab_size=vocab_size,
        max_context_tokens=max_context_tokens,
        layers=tuple(((attention._replace(window_tokens=window),), parameters) for window in windows),
        tied=tied,
        lookups=position_rows * d.hidden_size,
        final=norm,
        decoder=decoder,
    )


def norm_parameters(d: Decoder) -> int:
    """RMSNorm has a weight, LayerNorm also a bias."""
    return d.hidden_size * (2 if d.norm == "layer" else 1)


def layer_parameters(d: Decoder, norm: int) -> LayerParameters:
    """Counts of one layer: q H x A d, k and v H x G d each, o A d x H, MLP 2 or 3 matrices H x I, two norms."""
    query_width = d.num_attention_heads * d.head_dim
    key_width = d.num_key_value_heads * d.head_dim
    matrices = 3 if d.gated_mlp else 2
    biases = 0
    if d.qkv_bias:
        biases += query_width + 2 * key_width
    if d.attention_output_bias:
        biases += d.hidden_size
    if d.mlp_bias:
        biases += (matrices - 1) * d.intermediate_size + d.hidden_size
    return LayerParameters(
        query=d.hidden_size * query_width,
        key_value=2 * d.hidden_size * key_width,
        attention_output=query_width * d.hidden_size,
        mlp=matrices * d.hidden_size * d.intermediate_size,
        norms=2 * norm + (2 * d.head_dim if d.qk_norm else 0),
        vectors=biases,
    )


def read_rope(fields: Fields, head_dim: int) -> Rope:
    """Rotary settings from `rope_parameters` (newer files) or `rope_theta`, `rope_scaling` (older ones)."""
    newer = fields.mapping("rope_parameters")
    scaling = newer if newer.has("rope_type") else fields.mapping("rope_scaling")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    partial = newer.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if not 0 < partial <= 1:
        raise (newer if newer.has("partial_rotary_factor") else fields).bad("partial_rotary_factor", "it must lie between 0 and 1")
    rotary_dim = int(head_dim * partial)
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise fields.bad("head_dim" if partial == 1.0 else "partial_rotary_factor", f"it leaves {rotary_dim} dimensions to rotate")
    return Rope(
        theta=newer.number("rope_theta", fields.number("rope_theta", 10000.0, minimum=1e-6), minimum=1e-6),
        rotary_dim=rotary_dim,
        scaling=None if kind == "default" else _scaling(kind, scaling),
    )


def _scaling(kind: str, fields: Fields) -> RopeScaling:
    return RopeScaling(
        kind,
        factor=fields.number("factor", 1.0, minimum=1e-6),
        low_freq_factor=fields.number("low_freq_factor", 1.0),
        high_freq_factor=fields.number("high_freq_factor", 4.0),
        original_max_position_embeddings=fields.integer("original_max_position_embeddings", default=0, minimum=0),
    )
