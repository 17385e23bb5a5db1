"""Decoders with RMSNorm that differ from Llama in norms, gates, positions or multipliers, which the built-in transformer lacks.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from dataclasses import replace

from kvcli.model.families.dense import Block, dense_parts, every, first_of, listed_windows, read_block
from kvcli.model.families.parts import ModelParts, read_layer_count, read_windows, with_defaults
from kvcli.model.fields import Fields

LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}


def biased_block(fields: Fields, gated_mlp: bool = True, mlp_key: str | None = "mlp_bias", default: bool = False) -> Block:
    """`attention_bias` gives q, k, v and o a bias, `mlp_bias` the MLP where the class knows it."""
    bias = fields.boolean("attention_bias", default)
    return read_block(fields, gated_mlp, bias, bias, mlp_key is not None and fields.boolean(mlp_key, default))


def pre_norm(fields: Fields, block: Block, windows: tuple[int | None, ...] | None = None, extra: int = 0, vectors: int = 0) -> ModelParts:
    """One RMSNorm before attention and one before the MLP, and `extra` elements of others."""
    hidden_size = block.hidden_size
    return dense_parts(fields, block, 2 * hidden_size + extra, hidden_size, windows, vectors)


def read_granite(fields: Fields) -> ModelParts:
    fields = with_defaults(fields, **LLAMA)
    return pre_norm(fields, biased_block(fields))


def read_granite_swa(fields: Fields) -> ModelParts:
    """Granite with sinks, one learned logit a head, and windows in three of four layers."""
    fields = with_defaults(
        fields,
        vocab_size=100352,
        hidden_size=2560,
        intermediate_size=8192,
        num_hidden_layers=24,
        num_attention_heads=20,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        sliding_window=128,
        tie_word_embeddings=True,
    )
    block = biased_block(fields)
    windows = listed_windows(fields, fields.optional_integer("sliding_window"), first_of(fields, 4))
    return pre_norm(fields, block, windows, vectors=block.num_attention_heads)


def read_hyperclovax(fields: Fields) -> ModelParts:
    """Granite's layer with two more norms behind attention and MLP where `use_post_norm`."""
    fields = with_defaults(fields, **LLAMA)
    block = biased_block(fields)
    return pre_norm(fields, block, extra=2 * block.hidden_size * fields.boolean("use_post_norm", True))


def _olmo(fields: Fields) -> Fields:
    return with_defaults(fields, **{**LLAMA, "vocab_size": 50304})


def read_olmo(fields: Fields) -> ModelParts:
    """OLMo-1: its LayerNorm has no parameters."""
    fields = _olmo(fields)
    return dense_parts(fields, biased_block(fields, mlp_key=None), norms=0, final=0)


def read_olmo2(fields: Fields) -> ModelParts:
    """OLMo-2: norms behind attention and MLP, and over all heads of q and of k."""
    fields = _olmo(fields)
    block = biased_block(fields, mlp_key=None)
    return pre_norm(fields, block, extra=block.query_width + block.key_width)


def read_olmo3(fields: Fields) -> ModelParts:
    """OLMo-3: OLMo-2 with windows, every fourth layer full."""
    fields = with_defaults(_olmo(fields), sliding_window=4096)
    block = biased_block(fields, mlp_key=None)
    windows = listed_windows(fields, fields.optional_integer("sliding_window"), every(fields, 4))
    return pre_norm(fields, block, windows, block.query_width + block.key_width)


def read_glm4(fields: Fields) -> ModelParts:
    """GLM-4-0414: GLM with two more norms behind attention and MLP."""
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
    )
    block = read_block(fields, qkv_bias=fields.boolean("attention_bias", True))
    return pre_norm(fields, block, extra=2 * block.hidden_size)


def read_exaone4(fields: Fields) -> ModelParts:
    """EXAONE-4: norms behind the blocks, q/k norms of one head; windows but in every fourth layer, or none at all."""
    fields = with_defaults(
        fields, **{**LLAMA, "vocab_size": 102400, "intermediate_size": 16384}, sliding_window=4096, sliding_window_pattern=4
    )
    block = read_block(fields)
    return pre_norm(fields, block, _exaone_windows(fields), 2 * block.head_dim)


def _exaone_windows(fields: Fields) -> tuple[int | None, ...]:
    window, layers = fields.optional_integer("sliding_window"), read_layer_count(fields)
    pattern = fields.values.get("sliding_window_pattern")
    if window is None or pattern is None:
        return listed_windows(fields, window, [False] * layers)
    if not isinstance(pattern, str):
        return listed_windows(fields, window, every(fields, fields.integer("sliding_window_pattern")))
    if not pattern or set(pattern) - {"L", "G"}:
        raise fields.bad("sliding_window_pattern", "it must be a number or a word of the letters L and G")
    return listed_windows(fields, window, [pattern[index % len(pattern)] == "L" for index in range(layers)])


def read_smollm3(fields: Fields) -> ModelParts:
    """SmolLM3: every fourth layer has no rotary positions, and a window where `use_sliding_window`."""
    fields = with_defaults(
        fields,
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=11008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    layers = read_layer_count(fields)
    window = fields.optional_integer("sliding_window") if fields.boolean("use_sliding_window", False) else None
    period = fields.integer("no_rope_layer_interval", 4)
    rotary = fields.integers("no_rope_layers", layers) or [int((index + 1) % period != 0) for index in range(layers)]
    windows = listed_windows(fields, window, [window is not None and not turns for turns in rotary])
    return pre_norm(fields, biased_block(fields), windows)


def read_apertus(fields: Fields) -> ModelParts:
    """Apertus: an MLP without gate whose activation has two learned numbers, and q/k norms."""
    fields = with_defaults(fields, **{**LLAMA, "vocab_size": 131072, "intermediate_size": 14336, "max_position_embeddings": 65536})
    block = biased_block(fields, gated_mlp=False, mlp_key=None)
    learned = 2 if fields.text("hidden_act", "xielu") == "xielu" else 0
    return pre_norm(fields, block, extra=2 * block.head_dim, vectors=learned)


def read_arcee(fields: Fields) -> ModelParts:
    """AFM: Llama with a squared ReLU and no gate."""
    fields = with_defaults(fields, **{**LLAMA, "hidden_size": 2560, "intermediate_size": 18432, "max_position_embeddings": 4096})
    return pre_norm(fields, biased_block(fields, gated_mlp=False))


def read_bitnet(fields: Fields) -> ModelParts:
    """BitNet b1.58: norms before the output and the down projection too."""
    fields = with_defaults(
        fields,
        vocab_size=128256,
        hidden_size=2560,
        intermediate_size=6912,
        num_hidden_layers=30,
        num_attention_heads=20,
        num_key_value_heads=5,
        max_position_embeddings=2048,
    )
    block = biased_block(fields, mlp_key=None)
    return pre_norm(fields, block, extra=block.hidden_size + block.intermediate_size)


def read_hunyuan(fields: Fields) -> ModelParts:
    """Hunyuan dense: q/k norms after the rotation."""
    fields = with_defaults(fields, **{**LLAMA, "vocab_size": 290943})
    block = biased_block(fields, mlp_key=None)
    return pre_norm(fields, block, extra=2 * block.head_dim)


def read_diffllama(fields: Fields) -> ModelParts:
    """DiffLlama: the difference of two attention maps, weighted by four learned vectors of one head's dim."""
    fields = with_defaults(fields, **{**LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16})
    block = biased_block(fields, mlp_key=None)
    return pre_norm(fields, block, vectors=4 * block.head_dim)


def read_ministral3(fields: Fields) -> ModelParts:
    """Ministral-3: Mistral whose queries grow with their position."""
    fields = with_defaults(
        fields,
        vocab_size=131072,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=34,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=262144,
    )
    return pre_norm(fields, read_block(fields), one_window(fields))


def one_window(fields: Fields) -> tuple[int | None, ...]:
    return read_windows(fields, read_layer_count(fields), fields.optional_integer("sliding_window"))


def read_nanochat(fields: Fields) -> ModelParts:
    """nanochat: no norm has parameters, the MLP has no gate."""
    fields = with_defaults(
        fields,
        vocab_size=50304,
        hidden_size=768,
        intermediate_size=8192,
        num_hidden_layers=12,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=2048,
    )
    return dense_parts(fields, biased_block(fields, gated_mlp=False, mlp_key=None), norms=0, final=0)


def read_doge(fields: Fields) -> ModelParts:
    """Doge without experts: a learned mask from the values (one row and one number a KV head) and scaled residuals."""
    if fields.boolean("is_moe", False):
        raise fields.bad("is_moe", "kvcli reads Doge models without experts only")
    fields = with_defaults(
        fields,
        vocab_size=32768,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=32,
        num_attention_heads=8,
        max_position_embeddings=2048,
    )
    block = biased_block(fields)
    heads, hidden_size = block.num_key_value_heads, block.hidden_size
    vectors = 2 * hidden_size + heads + heads * block.qkv_bias
    model = pre_norm(fields, block, one_window(fields), 2 * block.head_dim, vectors)
    mask = block.key_width * heads
    return replace(model, layers=tuple((records, parameters._replace(mixer=mask)) for records, parameters in model.layers))
