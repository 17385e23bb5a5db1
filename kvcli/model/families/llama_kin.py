"""Families of exactly Llama's layer under other class defaults, flags or pairings of the rotary dimensions.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli.model.families.dense import all_layers, first_of, listed_windows
from kvcli.model.families.llama import MISTRAL, llama_parts, read_llama
from kvcli.model.families.parts import ModelParts, read_layer_count, with_defaults
from kvcli.model.fields import Fields

#: Llama-3.1's scaling, which CWM has by default
CWM_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read_internlm3(fields: Fields) -> ModelParts:
    return read_llama(
        with_defaults(
            fields,
            vocab_size=128512,
            hidden_size=4096,
            intermediate_size=10240,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=2,
            head_dim=128,
            max_position_embeddings=32768,
            rms_norm_eps=1e-5,
        )
    )


def read_iquestcoder(fields: Fields) -> ModelParts:
    return read_llama(
        with_defaults(
            fields,
            vocab_size=76800,
            hidden_size=5120,
            intermediate_size=27648,
            num_hidden_layers=80,
            num_attention_heads=40,
            num_key_value_heads=8,
            head_dim=128,
            max_position_embeddings=131072,
            rms_norm_eps=1e-5,
        )
    )


def read_emu3(fields: Fields) -> ModelParts:
    """The text layers of Emu3: image tokens are part of the vocabulary."""
    fields = with_defaults(
        fields,
        **{**MISTRAL, "vocab_size": 184622},
        num_key_value_heads=8,
        max_position_embeddings=9216,
        rms_norm_eps=1e-5,
        rope_theta=1_000_000.0,
    )
    bias = fields.boolean("attention_bias", False)
    return llama_parts(fields, all_layers(fields), bias, bias, fields.boolean("mlp_bias", False))


def read_seed_oss(fields: Fields) -> ModelParts:
    """Seed-OSS: the output projection's bias has a flag of its own."""
    fields = with_defaults(
        fields,
        vocab_size=155136,
        hidden_size=4096,
        intermediate_size=27648,
        num_hidden_layers=64,
        num_attention_heads=80,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=524288,
    )
    return llama_parts(
        fields,
        all_layers(fields),
        qkv_bias=fields.boolean("attention_bias", True),
        output_bias=fields.boolean("attention_out_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def read_ministral(fields: Fields) -> ModelParts:
    """Ministral: all layers slide, or those that `layer_types` names."""
    fields = with_defaults(fields, **MISTRAL, num_key_value_heads=8, sliding_window=4096, max_position_embeddings=131072)
    window = fields.optional_integer("sliding_window")
    return llama_parts(fields, listed_windows(fields, window, [window is not None] * read_layer_count(fields)))


def read_cwm(fields: Fields) -> ModelParts:
    """Code World Model: three of four layers slide, the first of them is full."""
    fields = with_defaults(
        fields,
        vocab_size=128256,
        hidden_size=6144,
        intermediate_size=21504,
        num_hidden_layers=64,
        num_attention_heads=48,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131072,
        sliding_window=8192,
        rms_norm_eps=1e-5,
    )
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        fields = Fields({**fields.values, "rope_parameters": CWM_ROPE}, fields.where, fields.outer)
    windows = listed_windows(fields, fields.optional_integer("sliding_window"), first_of(fields, 4))
    return llama_parts(fields, windows, mlp_bias=fields.boolean("mlp_bias", False))


def read_helium(fields: Fields) -> ModelParts:
    """Helium: the output projection is square and has no bias."""
    fields = with_defaults(
        fields,
        vocab_size=48000,
        hidden_size=2560,
        intermediate_size=7040,
        num_hidden_layers=24,
        num_attention_heads=20,
        num_key_value_heads=20,
        head_dim=128,
        max_position_embeddings=4096,
        rms_norm_eps=1e-8,
        rope_theta=100_000.0,
    )
    return llama_parts(
        fields,
        all_layers(fields),
        qkv_bias=fields.boolean("attention_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
        interleaved=True,
    )


def read_ernie4_5(fields: Fields) -> ModelParts:
    """ERNIE-4.5: one flag for all biases."""
    fields = with_defaults(
        fields,
        vocab_size=103424,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=18,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        tie_word_embeddings=True,
    )
    bias = fields.boolean("use_bias", False)
    return llama_parts(fields, all_layers(fields), bias, bias, bias, interleaved=True)


def read_glm(fields: Fields) -> ModelParts:
    """GLM-4: half of each head turns."""
    fields = with_defaults(
        fields,
        vocab_size=151552,
        hidden_size=4096,
        intermediate_size=13696,
        num_hidden_layers=40,
        num_attention_heads=32,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1.5625e-07,
        partial_rotary_factor=0.5,
    )
    return llama_parts(fields, all_layers(fields), qkv_bias=fields.boolean("attention_bias", True), interleaved=True)
