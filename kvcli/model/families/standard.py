"""The uniform decoder: every layer is attention and an MLP of one shape, and at most its window differs."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.model.fields import Fields
from kvcli.model.layers import Attention, LayerGroup, LayerParameters, group_layers
from kvcli.model.spec import Decoder, Rope, RopeScaling


class DecoderModel(NamedTuple):
    """What a family reader returns: the decoder and the sizes around it. Counts are parameters."""

    decoder: Decoder
    vocab_size: int
    max_context_tokens: int
    tied: bool
    windows: tuple[int | None, ...]
    position_rows: int = 0

    @property
    def embedding(self) -> int:
        return self.vocab_size * self.decoder.hidden_size

    @property
    def positions(self) -> int:
        return self.position_rows * self.decoder.hidden_size

    @property
    def norm(self) -> int:
        """Parameters of one norm: RMSNorm has a weight, LayerNorm also a bias."""
        return self.decoder.hidden_size * (2 if self.decoder.norm == "layer" else 1)

    @property
    def head(self) -> int:
        return 0 if self.tied else self.embedding

    def groups(self) -> tuple[LayerGroup, ...]:
        parameters = layer_parameters(self.decoder, self.norm)
        d = self.decoder
        return group_layers(
            (Attention(d.num_attention_heads, d.num_key_value_heads, d.head_dim, d.head_dim, window), parameters) for window in self.windows
        )


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
        biases=biases,
    )


def read_heads(fields: Fields, hidden_size: int, heads_key: str = "num_attention_heads") -> tuple[int, int, int]:
    """Query heads, KV heads and head dim; absent KV heads mean one for each query head, absent head dim H / A."""
    heads = fields.integer(heads_key)
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.bad("num_key_value_heads", f"it must divide the {heads} attention heads")
    head_dim = fields.optional_integer("head_dim")
    if head_dim is None:
        head_dim, rest = divmod(hidden_size, heads)
        if rest:
            raise fields.bad(heads_key, f"it must divide the hidden size {hidden_size} where no head_dim is given")
    return heads, kv_heads, head_dim


def read_rope(fields: Fields, head_dim: int) -> Rope:
    """Rotary settings from `rope_parameters` (newer files) or `rope_theta`, `rope_scaling` (older ones)."""
    newer = fields.mapping("rope_parameters")
    scaling = newer if newer.has("rope_type") else fields.mapping("rope_scaling")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    partial = newer.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * partial)
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise fields.bad("head_dim" if partial == 1.0 else "partial_rotary_factor", f"it leaves {rotary_dim} dimensions to rotate")
    return Rope(
        theta=newer.number("rope_theta", fields.number("rope_theta", 10000.0)),
        rotary_dim=rotary_dim,
        scaling=None if kind == "default" else _scaling(kind, scaling),
    )


def _scaling(kind: str, fields: Fields) -> RopeScaling:
    return RopeScaling(
        kind,
        factor=fields.number("factor", 1.0),
        low_freq_factor=fields.number("low_freq_factor", 1.0),
        high_freq_factor=fields.number("high_freq_factor", 4.0),
        original_max_position_embeddings=fields.integer("original_max_position_embeddings", default=0, minimum=0),
    )


def read_windows(fields: Fields, layers: int, window: int | None, from_layer: int = 0) -> tuple[int | None, ...]:
    """Each layer's window: by `layer_types` where the file has them, else `window` from layer `from_layer` on."""
    names = fields.texts("layer_types", layers)
    if names is None:
        return tuple(window if index >= from_layer else None for index in range(layers))
    for name in names:
        if name not in ("full_attention", "sliding_attention"):
            raise fields.bad("layer_types", f"kvcli does not know the layer type {name!r} in this family")
        if name == "sliding_attention" and window is None:
            raise fields.bad("layer_types", "it has sliding layers while sliding_window is off or absent")
    return tuple(window if name == "sliding_attention" else None for name in names)
