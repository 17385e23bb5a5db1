"""Decoders with LayerNorm and rotary positions: StableLM, StarCoder2, Phi, Persimmon, Nemotron, Jais-2, Command.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli.model.families.dense import Block, dense_parts, even_head_dim, every, listed_windows, read_block
from kvcli.model.families.parts import ModelParts, read_layer_count, read_windows, with_defaults
from kvcli.model.families.rms import biased_block
from kvcli.model.families.standard import read_rope
from kvcli.model.fields import Fields
from kvcli.model.spec import Decoder


def _without_head_dim(fields: Fields) -> Fields:
    """For a class that always takes H / A, whatever `head_dim` says."""
    return Fields({key: value for key, value in fields.values.items() if key != "head_dim"}, fields.where, fields.outer)


def _decoder(fields: Fields, block: Block, activation: str, eps: float) -> Decoder:
    """What the built-in transformer computes: sequential LayerNorm layers."""
    return Decoder(
        hidden_size=block.hidden_size,
        intermediate_size=block.intermediate_size,
        head_dim=block.head_dim,
        num_attention_heads=block.num_attention_heads,
        num_key_value_heads=block.num_key_value_heads,
        activation=fields.text("hidden_act", activation),
        norm="layer",
        norm_eps=eps,
        rope=read_rope(fields, block.head_dim),
        gated_mlp=block.gated_mlp,
        qkv_bias=block.qkv_bias,
        attention_output_bias=block.output_bias,
        mlp_bias=block.mlp_bias,
    )


def read_starcoder2(fields: Fields) -> ModelParts:
    fields = with_defaults(
        fields,
        vocab_size=49152,
        hidden_size=3072,
        intermediate_size=12288,
        num_hidden_layers=30,
        num_attention_heads=24,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    bias = fields.boolean("use_bias", True)
    block = read_block(fields, False, bias, bias, bias)
    windows = read_windows(fields, read_layer_count(fields), fields.optional_integer("sliding_window"))
    decoder = _decoder(fields, block, "gelu_pytorch_tanh", fields.number("norm_epsilon", 1e-5))
    return dense_parts(fields, block, 4 * block.hidden_size, 2 * block.hidden_size, windows, decoder=decoder)


def read_stablelm(fields: Fields) -> ModelParts:
    """StableLM: optional q/k norms with a weight for each head, and a parallel form with one norm."""
    fields = with_defaults(
        _without_head_dim(fields),
        vocab_size=50304,
        hidden_size=2560,
        intermediate_size=6912,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=4096,
        partial_rotary_factor=0.25,
    )
    block = read_block(fields, qkv_bias=fields.boolean("use_qkv_bias", False))
    head_norms, parallel = fields.boolean("qk_layernorm", False), fields.boolean("use_parallel_residual", False)
    norms = (1 if parallel else 2) * 2 * block.hidden_size + (block.query_width + block.key_width) * head_norms
    plain = not head_norms and not parallel
    decoder = _decoder(fields, block, "silu", fields.number("layer_norm_eps", 1e-5)) if plain else None
    return dense_parts(fields, block, norms, 2 * block.hidden_size, decoder=decoder)


def read_phi(fields: Fields) -> ModelParts:
    """Phi-1 to Phi-2: attention and MLP parallel behind one norm, biases everywhere, in the head too."""
    fields = with_defaults(
        fields,
        vocab_size=51200,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=24,
        num_attention_heads=32,
        max_position_embeddings=2048,
    )
    block = read_block(fields, False, True, True, True)
    norms = 2 * block.hidden_size + 4 * block.head_dim * fields.boolean("qk_layernorm", False)
    return dense_parts(fields, block, norms, 2 * block.hidden_size + fields.integer("vocab_size"))


def read_persimmon(fields: Fields) -> ModelParts:
    """Persimmon, the decoder of Fuyu: one KV head a query head, q/k norms with biases."""
    fields = with_defaults(
        fields,
        vocab_size=262144,
        hidden_size=4096,
        intermediate_size=16384,
        num_hidden_layers=36,
        num_attention_heads=64,
        max_position_embeddings=16384,
    )
    hidden_size, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = even_head_dim(fields, "num_attention_heads", heads, hidden_size)
    block = Block(hidden_size, fields.integer("intermediate_size"), heads, heads, head_dim, False, True, True, True)
    norms = 4 * hidden_size + 4 * head_dim * fields.boolean("qk_layernorm", True)
    return dense_parts(fields, block, norms, 2 * hidden_size)


def read_nemotron(fields: Fields) -> ModelParts:
    """Nemotron-3 and -4, Minitron: squared ReLU without gate."""
    fields = with_defaults(
        fields,
        vocab_size=256000,
        hidden_size=6144,
        intermediate_size=24576,
        num_hidden_layers=32,
        num_attention_heads=48,
        head_dim=128,
        max_position_embeddings=4096,
    )
    block = biased_block(fields, gated_mlp=False)
    return dense_parts(fields, block, 4 * block.hidden_size, 2 * block.hidden_size)


def read_jais2(fields: Fields) -> ModelParts:
    fields = with_defaults(
        fields,
        vocab_size=150272,
        hidden_size=3328,
        intermediate_size=26624,
        num_hidden_layers=32,
        num_attention_heads=26,
        max_position_embeddings=8192,
    )
    block = biased_block(fields, gated_mlp=False, default=True)
    return dense_parts(fields, block, 4 * block.hidden_size, 2 * block.hidden_size)


def _command(fields: Fields) -> Fields:
    return with_defaults(
        fields,
        vocab_size=256000,
        hidden_size=8192,
        intermediate_size=22528,
        num_hidden_layers=40,
        num_attention_heads=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )


def read_cohere(fields: Fields) -> ModelParts:
    """Command-R: attention and MLP parallel behind one norm without bias; q/k norms with a weight for each head."""
    fields = _command(fields)
    block = biased_block(fields, mlp_key=None)
    head_norms = (block.query_width + block.key_width) * fields.boolean("use_qk_norm", False)
    return dense_parts(fields, block, block.hidden_size + head_norms, block.hidden_size)


def read_cohere2(fields: Fields) -> ModelParts:
    """Command-R7B, Command-A: windows but in every fourth layer, or by `sliding_window_pattern`."""
    fields = with_defaults(_command(fields), sliding_window=4096)
    marked = every(fields, fields.integer("sliding_window_pattern", 4))
    return _cohere2(fields, marked)


def read_cohere_compass(fields: Fields) -> ModelParts:
    """The same with full attention where the file names no layer types."""
    fields = with_defaults(_command(fields), sliding_window=4096)
    return _cohere2(fields, [False] * read_layer_count(fields))


def _cohere2(fields: Fields, marked: list[bool]) -> ModelParts:
    block = biased_block(fields, mlp_key=None)
    windows = listed_windows(fields, fields.optional_integer("sliding_window"), marked)
    return dense_parts(fields, block, block.hidden_size, block.hidden_size, windows)
