"""`--assume gqa`: a model of unknown type read from its plain fields, as if every layer were full grouped-query attention.

Nothing here is known to be right: the answer is labelled as assumed wherever it shows.
"""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters


def read_gqa(fields: Fields) -> ModelParts:
    """Full attention by `num_key_value_heads` and `head_dim` in every layer, a gated MLP of `intermediate_size`, RMSNorms."""
    hidden = fields.integer("hidden_size")
    heads, kv_heads, head_dim = read_heads(fields, hidden)
    intermediate = fields.integer("intermediate_size", default=4 * hidden)
    parameters = LayerParameters(
        query=hidden * heads * head_dim,
        key_value=2 * hidden * kv_heads * head_dim,
        attention_output=heads * head_dim * hidden,
        mlp=3 * hidden * intermediate,
        norms=2 * hidden,
    )
    layer = ((Attention(heads, kv_heads, head_dim, head_dim),), parameters)
    return ModelParts(
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=fields.integer("max_position_embeddings", default=4096),
        layers=(layer,) * read_layer_count(fields),
        tied=fields.boolean("tie_word_embeddings", False),
        final=hidden,
    )
