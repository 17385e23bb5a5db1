"""Llama-3.2 Vision: a Llama decoder in which some layers attend over image tokens instead of text.

Those layers keep keys and values of the image tokens (6,404 for an image of four tiles) and nothing for a text token. Their
key and value projections run once an image, so a decode step does not read them. Shapes are those of the Hugging Face classes.
"""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count, with_defaults
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters
from kvcli.model.state_records import Cross

#: Rows of the input table beyond the vocabulary: the image token and its padding.
EXTRA_ROWS = 8


def read_mllama(fields: Fields) -> ModelParts:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40}
    filled = with_defaults(fields, **sizes, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
    hidden_size, vocab_size = filled.integer("hidden_size"), filled.integer("vocab_size")
    if fields.has("head_dim"):
        raise fields.bad("head_dim", "these models compute it from the hidden size")
    heads, kv_heads, head_dim = read_heads(filled, hidden_size)
    count = read_layer_count(filled)
    crossed = filled.integers("cross_attention_layers")
    if crossed is None:
        crossed = [index for index in (3, 8, 13, 18, 23, 28, 33, 38) if index < count]
    if any(index >= count for index in crossed):
        raise fields.bad("cross_attention_layers", f"the model has {count} layers")
    key_value = 2 * hidden_size * kv_heads * head_dim
    text = LayerParameters(
        query=hidden_size * heads * head_dim,
        key_value=key_value,
        attention_output=heads * head_dim * hidden_size,
        mlp=3 * hidden_size * filled.integer("intermediate_size"),
        norms=2 * hidden_size,
    )
    # a norm of the queries, and two gates
    cross = text._replace(key_value=0, norms=2 * hidden_size + head_dim, vectors=2)
    text_layer: Layer = ((Attention(heads, kv_heads, head_dim, head_dim),), text)
    cross_layer: Layer = ((Cross(heads, kv_heads, head_dim, head_dim),), cross)
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_context_tokens=filled.integer("max_position_embeddings", default=131072),
        layers=tuple(cross_layer if index in set(crossed) else text_layer for index in range(count)),
        tied=False,  # the input table has more rows than the head: the classes never tie them
        embedding=(vocab_size + EXTRA_ROWS) * hidden_size,
        final=hidden_size,
        encoder_parameters=len(set(crossed)) * (key_value + head_dim),
        tower_parameters=_vision(fields.outer, hidden_size),
    )


def _vision(outer: Fields | None, text_size: int) -> int:
    """The vision encoder and its projection, where the file describes them."""
    if outer is None or not outer.has("vision_config"):
        return 0
    fields = outer.mapping("vision_config")
    size = fields.integer("hidden_size", default=1280)
    width = fields.integer("intermediate_size", default=5120)
    patch = fields.integer("patch_size", default=14)
    tiles = fields.integer("max_num_tiles", default=4)
    patches = (fields.integer("image_size", default=448) // patch) ** 2 + 1
    ratios = len(outer_ratios) if isinstance(outer_ratios := fields.values.get("supported_aspect_ratios"), list) else 8
    local_layers = read_layer_count(fields, default=32)
    global_layers = read_layer_count(fields, "num_global_layers", default=8)
    layer = 4 * size * size + 2 * size * width + width + size + 2 * 2 * size
    embeddings = fields.integer("num_channels", default=3) * patch * patch * size + size + patches * size
    # tables by aspect ratio: gated positions of every tile, and a row a tile before and after the encoder; three gates
    tables = (ratios + 1) * tiles * size * (patches + 2) + 3
    projection = text_size * (fields.integer("vision_output_dim", default=7680) + 1)
    return embeddings + tables + (local_layers + global_layers) * layer + 2 * global_layers + 2 * 2 * size + projection
