"""Llama and its kin: RMSNorm, rotary positions, SwiGLU; they differ in biases, q/k norms and windows.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli.model.families.standard import DecoderModel, read_heads, read_rope, read_windows
from kvcli.model.fields import Fields
from kvcli.model.spec import Decoder


def read_llama(fields: Fields) -> DecoderModel:
    bias = fields.boolean("attention_bias", False)
    return _read(fields, windows=_all(fields, None), qkv_bias=bias, output_bias=bias, mlp_bias=fields.boolean("mlp_bias", False))


def read_mistral(fields: Fields) -> DecoderModel:
    # the class default is a window of 4,096; published files without one say null
    window = fields.optional_integer("sliding_window") if "sliding_window" in fields.values else 4096
    return _read(fields, windows=_all(fields, window), kv_heads=8, max_positions=131072)


def read_qwen2(fields: Fields) -> DecoderModel:
    return _read(fields, windows=_qwen_windows(fields), qkv_bias=True, kv_heads=32, max_positions=32768)


def read_qwen3(fields: Fields) -> DecoderModel:
    bias = fields.boolean("attention_bias", False)
    return _read(
        fields, windows=_qwen_windows(fields), qkv_bias=bias, output_bias=bias, qk_norm=True, kv_heads=32, head_dim=128, max_positions=32768
    )


def read_phi3(fields: Fields) -> DecoderModel:
    return _read(fields, windows=_all(fields, fields.optional_integer("sliding_window")), max_positions=4096, eps=1e-5)


def _layers(fields: Fields) -> int:
    return fields.integer("num_hidden_layers", maximum=100_000)


def _all(fields: Fields, window: int | None) -> tuple[int | None, ...]:
    return (window,) * _layers(fields)


def _qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """Qwen files carry a window that `use_sliding_window` switches on, from layer `max_window_layers` upwards."""
    layers = _layers(fields)
    window = fields.integer("sliding_window", default=4096) if fields.boolean("use_sliding_window", False) else None
    return read_windows(fields, layers, window, from_layer=fields.integer("max_window_layers", default=28, minimum=0))


def _read(
    fields: Fields,
    windows: tuple[int | None, ...],
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    max_positions: int = 2048,
    eps: float = 1e-6,
) -> DecoderModel:
    defaults = {"num_key_value_heads": kv_heads, "head_dim": head_dim}
    # only a key that is absent takes the class default; an explicit null means "derive it"
    filled = Fields(
        {**{key: value for key, value in defaults.items() if value and key not in fields.values}, **fields.values}, fields.where
    )
    hidden_size = filled.integer("hidden_size")
    heads, kv, dim = read_heads(filled, hidden_size)
    return DecoderModel(
        Decoder(
            hidden_size=hidden_size,
            intermediate_size=filled.integer("intermediate_size"),
            head_dim=dim,
            num_attention_heads=heads,
            num_key_value_heads=kv,
            activation=filled.text("hidden_act", "silu"),
            norm="rms",
            norm_eps=filled.number("rms_norm_eps", eps),
            rope=read_rope(filled, dim),
            qk_norm=qk_norm,
            qkv_bias=qkv_bias,
            attention_output_bias=output_bias,
            mlp_bias=mlp_bias,
        ),
        vocab_size=filled.integer("vocab_size"),
        max_context_tokens=filled.integer("max_position_embeddings", default=max_positions),
        tied=filled.boolean("tie_word_embeddings", False),
        windows=windows,
    )
