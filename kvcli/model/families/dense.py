"""Dense decoders in general: attention, one MLP and norms in every layer, counted from widths and flags.

The built-in transformer computes few of these families, so they are described by their counts alone.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli.model.cache_records import Attention
from kvcli.model.families.parts import ModelParts, layer_kinds, read_heads, read_layer_count, refuse_per_layer
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters
from kvcli.model.spec import Decoder

Windows = tuple[int | None, ...]


class Block(NamedTuple):
    """Widths of one layer and which of its projections have a bias. `gated_mlp` has three matrices, else two."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    gated_mlp: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    @property
    def query_width(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.num_key_value_heads * self.head_dim

    def parameters(self, norms: int, vectors: int = 0) -> LayerParameters:
        """Counts with `norms` elements of norms and `vectors` more elements that are not multiplied, biases aside."""
        up_matrices = 2 if self.gated_mlp else 1
        biases = (self.query_width + 2 * self.key_width) * self.qkv_bias + self.hidden_size * self.output_bias
        biases += (up_matrices * self.intermediate_size + self.hidden_size) * self.mlp_bias
        return LayerParameters(
            query=self.hidden_size * self.query_width,
            key_value=2 * self.hidden_size * self.key_width,
            attention_output=self.query_width * self.hidden_size,
            mlp=(up_matrices + 1) * self.hidden_size * self.intermediate_size,
            norms=norms,
            vectors=vectors + biases,
        )

    def attention(self, window: int | None = None) -> Attention:
        return Attention(self.num_attention_heads, self.num_key_value_heads, self.head_dim, self.head_dim, window)


def read_block(fields: Fields, gated_mlp: bool = True, qkv_bias: bool = False, output_bias: bool = False, mlp_bias: bool = False) -> Block:
    """From the usual keys; absent KV heads mean one for each query head, absent head dim H / A."""
    hidden_size = fields.integer("hidden_size")
    heads, kv_heads, head_dim = read_heads(fields, hidden_size)
    intermediate_size = fields.integer("intermediate_size")
    return Block(hidden_size, intermediate_size, heads, kv_heads, head_dim, gated_mlp, qkv_bias, output_bias, mlp_bias)


def even_head_dim(fields: Fields, heads_key: str, heads: int, hidden_size: int) -> int:
    """H / A, in the families that know no other head dim."""
    head_dim, rest = divmod(hidden_size, heads)
    if rest:
        raise fields.bad(heads_key, f"it must divide the hidden size {hidden_size}")
    return head_dim


def dense_parts(
    fields: Fields,
    block: Block,
    norms: int,
    final: int,
    windows: Windows | None = None,
    vectors: int = 0,
    decoder: Decoder | None = None,
) -> ModelParts:
    """A model of equal layers from the usual keys. `final` counts the elements of the final norm."""
    refuse_per_layer(fields)
    parameters = block.parameters(norms, vectors)
    return ModelParts(
        hidden_size=block.hidden_size,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=fields.integer("max_position_embeddings"),
        layers=tuple(((block.attention(window),), parameters) for window in windows or all_layers(fields)),
        tied=fields.boolean("tie_word_embeddings", False),
        final=final,
        decoder=decoder,
    )


def all_layers(fields: Fields, window: int | None = None) -> Windows:
    return (window,) * read_layer_count(fields)


def listed_windows(fields: Fields, window: int | None, sliding: list[bool]) -> Windows:
    """Each layer's window: by `layer_types` where the file has them, else on the layers marked in `sliding`.

    Raises BadInput where a layer must slide and no window is known.
    """
    names = layer_kinds(fields, len(sliding), ("full_attention", "sliding_attention"))
    marked = sliding if names is None else [name == "sliding_attention" for name in names]
    if window is None and any(marked):
        raise fields.bad("sliding_window", "layers of this model slide over a window")
    return tuple(window if slides else None for slides in marked)


def every(fields: Fields, period: int) -> list[bool]:
    """Sliding layers where one in `period` sees everything: the last of each group."""
    return [(index + 1) % period != 0 for index in range(read_layer_count(fields))]


def first_of(fields: Fields, period: int) -> list[bool]:
    """Sliding layers where one in `period` sees everything: the first of each group."""
    return [index % period != 0 for index in range(read_layer_count(fields))]
