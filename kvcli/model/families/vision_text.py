"""Text layers of multimodal models that have a class of their own: positions in three dimensions, layers of a known kind.

Image tokens are tokens like others. Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from dataclasses import replace

from kvcli.model.families.dense import all_layers, listed_windows, read_block
from kvcli.model.families.parts import ModelParts, read_layer_count, with_defaults
from kvcli.model.families.rms import biased_block, one_window, pre_norm, read_granite
from kvcli.model.fields import Fields


def read_phi4_multimodal(fields: Fields) -> ModelParts:
    """Phi-4-multimodal keeps its decoder's keys at the top: Phi-3's layer. Towers and their projectors are not counted."""
    fields = with_defaults(
        fields,
        vocab_size=200064,
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    )
    return pre_norm(fields, read_block(fields), one_window(fields))


def read_qwen2_vl(fields: Fields) -> ModelParts:
    """Text layers of Qwen2-VL and Qwen2.5-VL: Qwen2 with three-dimensional positions, windows from `max_window_layers` upwards."""
    fields = with_defaults(
        fields,
        vocab_size=152064,
        hidden_size=8192,
        intermediate_size=29568,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=32768,
        sliding_window=4096,
        max_window_layers=80,
    )
    window = fields.optional_integer("sliding_window") if fields.boolean("use_sliding_window", False) else None
    first = fields.integer("max_window_layers", 80, minimum=0)
    marked = [window is not None and index >= first for index in range(read_layer_count(fields))]
    return pre_norm(fields, read_block(fields, qkv_bias=True), listed_windows(fields, window, marked))


def read_qwen3_vl(fields: Fields) -> ModelParts:
    """Text layers of Qwen3-VL: Qwen3 with three-dimensional positions, no windows."""
    fields = with_defaults(
        fields,
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=22016,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=128,
        max_position_embeddings=128000,
    )
    block = biased_block(fields, mlp_key=None)
    return pre_norm(fields, block, all_layers(fields), 2 * block.head_dim)


def read_qwen2_5_omni(fields: Fields) -> ModelParts:
    """The text layers of Qwen2.5-Omni's thinker: those of Qwen2-VL at another size. Only the thinker's own flag ties its head."""
    fields = with_defaults(
        fields,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        max_window_layers=28,
    )
    thinker = fields if fields.outer is None else fields.outer
    if thinker.has("thinker_config"):
        thinker = thinker.mapping("thinker_config")
    return replace(read_qwen2_vl(fields), tied=thinker.boolean("tie_word_embeddings", False))


def read_glm4v(fields: Fields) -> ModelParts:
    """GLM-4.1V and 4.6V: GLM-4's four norms, biases on q, k and v always."""
    fields = with_defaults(
        fields,
        vocab_size=151552,
        hidden_size=4096,
        intermediate_size=13696,
        num_hidden_layers=40,
        num_attention_heads=32,
        num_key_value_heads=2,
        max_position_embeddings=32768,
    )
    block = read_block(fields, qkv_bias=True)
    return pre_norm(fields, block, extra=2 * block.hidden_size)


def read_glm_ocr(fields: Fields) -> ModelParts:
    """GLM-OCR: the same without biases."""
    fields = with_defaults(
        fields,
        vocab_size=59392,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    )
    block = read_block(fields)
    return pre_norm(fields, block, extra=2 * block.hidden_size)


def read_granite_docling(fields: Fields) -> ModelParts:
    return read_granite(
        with_defaults(
            fields,
            vocab_size=133800,
            hidden_size=1024,
            intermediate_size=2048,
            num_hidden_layers=28,
            num_key_value_heads=4,
            num_attention_heads=16,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
        )
    )
