"""Gemma 1 to 3 and VaultGemma: RMSNorm, GELU gates, tied tables, a head dim of its own, windows from the second on.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli.model.families.dense import Windows, dense_parts, every, listed_windows
from kvcli.model.families.parts import ModelParts, with_defaults
from kvcli.model.families.rms import biased_block
from kvcli.model.fields import Fields

#: the 2B shape of Gemma 2, which later classes keep as their default
GEMMA2 = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


def read_gemma(fields: Fields) -> ModelParts:
    fields = with_defaults(
        fields,
        vocab_size=256000,
        hidden_size=3072,
        intermediate_size=24576,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=256,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return _gemma(fields, norms=2)


def read_gemma2(fields: Fields) -> ModelParts:
    """Norms before and behind attention and MLP; every second layer slides, the first included."""
    fields = with_defaults(fields, **GEMMA2)
    return _gemma(fields, 4, windows=_windows(fields, 2))


def read_vaultgemma(fields: Fields) -> ModelParts:
    """Gemma 2 without the norms behind."""
    fields = with_defaults(fields, **GEMMA2)
    return _gemma(fields, 2, windows=_windows(fields, 2))


def read_gemma3(fields: Fields) -> ModelParts:
    """Gemma 3: q/k norms; five layers of six slide, by `layer_types`, by `sliding_window_pattern` or by rule.

    Embedding models look both ways over half the window on each side.
    """
    fields = with_defaults(fields, **{**GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072})
    windows = _windows(fields, fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6)))
    if fields.boolean("use_bidirectional_attention", False):
        windows = tuple(window and window // 2 + 1 for window in windows)
    return _gemma(fields, 4, head_norms=2, windows=windows)


def _windows(fields: Fields, period: int) -> Windows:
    return listed_windows(fields, fields.optional_integer("sliding_window"), every(fields, period))


def _gemma(fields: Fields, norms: int, head_norms: int = 0, windows: Windows | None = None) -> ModelParts:
    block = biased_block(fields, mlp_key=None)
    return dense_parts(fields, block, norms * block.hidden_size + head_norms * block.head_dim, block.hidden_size, windows)
