"""LFM2, LFM2-MoE, LFM3: gated short convolutions beside attention.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli.errors import BadInput
from kvcli.model.cache_records import Attention
from kvcli.model.families import mixers
from kvcli.model.families.hybrid import hybrid_parts, join
from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

KINDS = ("conv", "full_attention")

#: Names of the original files, which the classes let win.
_OLDER = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
_LFM2: dict[str, object] = {
    "vocab_size": 65536,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "conv_L_cache": 3,
}
_LFM2_MOE = {
    **_LFM2,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_experts_per_tok": 4,
    "num_experts": 32,
}
_LFM3 = {
    **_LFM2,
    "vocab_size": 128000,
    "hidden_size": 2048,
    "intermediate_size": 7680,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "conv_L_cache": 7,
    "head_dim": 128,
    "sliding_window": 256,
}


def read_lfm2(fields: Fields) -> ModelParts:
    filled = mixers.prepare(_original(fields), _LFM2)
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, KINDS)
    if kinds is None:
        full = filled.integers("full_attn_idxs")
        kinds = [KINDS[full is None or index in full] for index in range(count)]
    blocks = {"conv": _conv(filled, hidden_size), "full_attention": _attention(filled, hidden_size)}
    mlp = mixers.swiglu(hidden_size, _mlp_width(filled))
    layers = tuple(join(blocks[kind], mlp, mixers.norms(2 * hidden_size)) for kind in kinds)
    return hybrid_parts(filled, hidden_size, layers, tied=True)


def read_lfm2_moe(fields: Fields) -> ModelParts:
    """The first `num_dense_layers` have an MLP, the others experts; the class has no default for `layer_types`."""
    filled = mixers.prepare(_original(fields, "tie_embedding"), _LFM2_MOE)
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, KINDS)
    if kinds is None:
        raise BadInput(f"{fields.where} has no 'layer_types'", hint="the file may be incomplete", code="missing_field")
    blocks = {"conv": _conv(filled, hidden_size), "full_attention": _attention(filled, hidden_size)}
    dense = mixers.swiglu(hidden_size, filled.integer("intermediate_size"))
    sparse = mixers.read_experts(filled, hidden_size, filled.integer("moe_intermediate_size"))
    first = filled.integer("num_dense_layers", default=2, minimum=0)
    layers = (join(blocks[kind], dense if index < first else sparse, mixers.norms(2 * hidden_size)) for index, kind in enumerate(kinds))
    return hybrid_parts(filled, hidden_size, tuple(layers), tied=True)


def read_lfm3(fields: Fields) -> ModelParts:
    """Adds windows, a gate a head on attention and norms after each block."""
    filled = mixers.prepare(fields, _LFM3)
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, (*KINDS, "sliding_attention"))
    if kinds is None:
        cycle = ("sliding_attention", "conv", "full_attention", "conv")
        kinds = [cycle[index % 4] if index else "conv" for index in range(count)]
    blocks = {"conv": _conv(filled, hidden_size)}
    for kind in set(kinds) - {"conv"}:
        window = filled.integer("sliding_window") if kind == "sliding_attention" else None
        blocks[kind] = _attention(filled, hidden_size, window, filled.boolean("attention_bias", False))
        if filled.boolean("use_attention_gate", True):
            gate = filled.integer("num_attention_heads") * hidden_size
            blocks[kind] = join(blocks[kind], LayerParameters(attention_output=gate))
    norms = mixers.norms((4 if filled.boolean("use_sandwich_norm", True) else 2) * hidden_size)
    mlp = mixers.swiglu(hidden_size, filled.integer("intermediate_size"))
    return hybrid_parts(filled, hidden_size, tuple(join(blocks[kind], mlp, norms) for kind in kinds), tied=True)


def _original(fields: Fields, *keys: str) -> Fields:
    """The original names win over the library's."""
    names = {old: _OLDER[old] for old in keys or _OLDER if old in fields.values}
    return Fields({**fields.values, **{new: fields.values[old] for old, new in names.items()}}, fields.where, fields.outer)


def _mlp_width(fields: Fields) -> int:
    """`intermediate_size` is that of an MLP of two matrices: 2/3 of it, times a factor, rounded up to a multiple."""
    width = fields.integer("intermediate_size")
    if not fields.boolean("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    if "block_ffn_dim_multiplier" in fields.values and not fields.has("block_ffn_dim_multiplier"):
        return width
    multiple = fields.integer("block_multiple_of", default=256)
    return -(-int(fields.number("block_ffn_dim_multiplier", 1.0) * width) // multiple) * multiple


def _conv(fields: Fields, hidden_size: int) -> Layer:
    return mixers.short_conv(hidden_size, fields.integer("conv_L_cache"), fields.boolean("conv_bias", False))


def _attention(fields: Fields, hidden_size: int, window: int | None = None, bias: bool = False) -> Layer:
    heads, kv_heads, head_dim = read_heads(fields, hidden_size)
    record = Attention(heads, kv_heads, head_dim, head_dim, window)
    return (record,), mixers.attention(hidden_size, record, bias, bias, qk_norm=2 * head_dim)
