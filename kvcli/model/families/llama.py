"""Llama and its kin: RMSNorm, rotary positions, SwiGLU; they differ in biases, q/k norms and windows.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from dataclasses import replace

from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count, read_windows, refuse_per_layer, with_defaults
from kvcli.model.families.standard import decoder_parts, read_rope
from kvcli.model.fields import Fields
from kvcli.model.layers import PredictionBlocks
from kvcli.model.spec import Decoder

#: class defaults, which the decoder objects nested in multimodal files leave out
LLAMA: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
MISTRAL = {**LLAMA, "intermediate_size": 14336}
QWEN: dict[str, object] = {**LLAMA, "vocab_size": 151936, "intermediate_size": 22016}
PHI3: dict[str, object] = {**LLAMA, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192}


def nested_defaults(fields: Fields, defaults: dict[str, object]) -> Fields:
    """The widths a nested object leaves out because its class has them. A whole file of these families always names its own."""
    return fields if fields.outer is None else with_defaults(fields, **defaults)


def read_llama(fields: Fields) -> ModelParts:
    fields = nested_defaults(fields, LLAMA)
    bias = fields.boolean("attention_bias", False)
    return llama_parts(fields, _all(fields, None), qkv_bias=bias, output_bias=bias, mlp_bias=fields.boolean("mlp_bias", False))


def read_mistral(fields: Fields) -> ModelParts:
    fields = nested_defaults(fields, MISTRAL)
    # the class default is a window of 4,096; published files without one say null
    window = with_defaults(fields, sliding_window=4096).optional_integer("sliding_window")
    windows = read_windows(fields, read_layer_count(fields), window)
    return llama_parts(with_defaults(fields, num_key_value_heads=8), windows, max_positions=131072)


def read_qwen2(fields: Fields) -> ModelParts:
    fields = nested_defaults(fields, QWEN)
    return llama_parts(with_defaults(fields, num_key_value_heads=32), _qwen_windows(fields), qkv_bias=True, max_positions=32768)


def read_mimo(fields: Fields) -> ModelParts:
    """MiMo-7B: Qwen2's layer; each prediction block is a layer, a 2H x H projection and three norms."""
    parts = read_qwen2(fields)
    hidden = parts.hidden_size
    count = fields.integer("num_nextn_predict_layers", default=0, minimum=0, maximum=1000)
    mtp = PredictionBlocks(count, parts.layers[0], joins=2 * hidden * hidden, norms=3 * hidden) if count else None
    return replace(parts, mtp=mtp)


def read_qwen3(fields: Fields) -> ModelParts:
    fields = nested_defaults(fields, QWEN)
    bias = fields.boolean("attention_bias", False)
    filled = with_defaults(fields, num_key_value_heads=32, head_dim=128)
    return llama_parts(filled, _qwen_windows(fields), qkv_bias=bias, output_bias=bias, qk_norm=True, max_positions=32768)


def read_phi3(fields: Fields) -> ModelParts:
    fields = nested_defaults(fields, PHI3)
    return llama_parts(fields, _all(fields, fields.optional_integer("sliding_window")), max_positions=4096, eps=1e-5)


def _all(fields: Fields, window: int | None) -> tuple[int | None, ...]:
    return (window,) * read_layer_count(fields)


def _qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """Qwen files carry a window that `use_sliding_window` switches on, from layer `max_window_layers` upwards."""
    layers = read_layer_count(fields)
    filled = with_defaults(fields, sliding_window=4096)
    window = filled.optional_integer("sliding_window") if fields.boolean("use_sliding_window", False) else None
    first = fields.integer("max_window_layers", default=28, minimum=0)
    return read_windows(fields, layers, window, [index >= first for index in range(layers)])


def llama_parts(
    fields: Fields,
    windows: tuple[int | None, ...],
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    max_positions: int = 2048,
    eps: float = 1e-6,
    interleaved: bool = False,
) -> ModelParts:
    """A model of Llama's layer. `interleaved` rotates neighbours (2i, 2i + 1) instead of (i, i + d/2)."""
    refuse_per_layer(fields)
    hidden_size = fields.integer("hidden_size")
    heads, kv_heads, head_dim = read_heads(fields, hidden_size)
    rope = read_rope(fields, head_dim)
    decoder = Decoder(
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        head_dim=head_dim,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        activation=fields.text("hidden_act", "silu"),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", eps, minimum=0),
        rope=rope._replace(layout="interleaved") if interleaved else rope,
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        attention_output_bias=output_bias,
        mlp_bias=mlp_bias,
    )
    return decoder_parts(
        decoder,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=fields.integer("max_position_embeddings", default=max_positions),
        tied=fields.boolean("tie_word_embeddings", False),
        windows=windows,
    )
