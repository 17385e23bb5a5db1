"""GPT-2: learned positions, LayerNorm, GELU, biases everywhere, one KV head for each query head."""

from __future__ import annotations

from kvcli.model.families.standard import DecoderModel, read_heads
from kvcli.model.fields import Fields
from kvcli.model.spec import Decoder


def read_gpt2(fields: Fields) -> DecoderModel:
    hidden_size = fields.integer("n_embd", default=768)
    heads, kv_heads, head_dim = read_heads(Fields({"n_head": 12, **fields.values}, fields.where), hidden_size, heads_key="n_head")
    positions = fields.integer("n_positions", default=1024)
    return DecoderModel(
        Decoder(
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
        ),
        vocab_size=fields.integer("vocab_size", default=50257),
        max_context_tokens=positions,
        tied=fields.boolean("tie_word_embeddings", True),
        windows=(None,) * fields.integer("n_layer", default=12, maximum=100_000),
        position_rows=positions,
    )
