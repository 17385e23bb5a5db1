"""GPT-2: learned positions, LayerNorm, GELU, biases everywhere, one KV head for each query head."""

from __future__ import annotations

from kvcli.errors import NotModelled
from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count, with_defaults
from kvcli.model.families.standard import decoder_parts
from kvcli.model.fields import Fields
from kvcli.model.spec import Decoder

#: Keys that files may also spell in the newer way.
SPELLINGS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def read_gpt2(fields: Fields) -> ModelParts:
    """Raises NotModelled for the variant with cross-attention."""
    if fields.boolean("add_cross_attention", False):
        raise NotModelled(f"{fields.where}: kvcli does not model GPT-2 with cross-attention", code="variant_not_modelled")
    respelt = {old: fields.values[new] for new, old in SPELLINGS.items() if new in fields.values}
    # one KV head for each query head whatever a stray key says
    ignored = {"num_key_value_heads": None, "head_dim": None}
    fields = Fields({**fields.values, **respelt, **ignored}, fields.where, fields.outer)
    hidden_size = fields.integer("n_embd", default=768)
    heads, kv_heads, head_dim = read_heads(with_defaults(fields, n_head=12), hidden_size, heads_key="n_head")
    positions = fields.integer("n_positions", default=1024)
    decoder = Decoder(
        hidden_size=hidden_size,
        intermediate_size=fields.integer("n_inner", default=4 * hidden_size),
        head_dim=head_dim,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        activation=fields.text("activation_function", "gelu_new"),
        norm="layer",
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        rope=None,
        gated_mlp=False,
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
    )
    return decoder_parts(
        decoder,
        vocab_size=fields.integer("vocab_size", default=50257),
        max_context_tokens=positions,
        tied=fields.boolean("tie_word_embeddings", True),
        windows=(None,) * read_layer_count(fields, "n_layer", default=12),
        position_rows=positions,
    )
