"""Gated DeltaNet layers beside gated attention: Qwen3-Next, Qwen3.5 and 3.6 (dense and experts), OLMo-Hybrid.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from dataclasses import replace

from kvcli.model.cache_records import Attention
from kvcli.model.families import mixers
from kvcli.model.families.hybrid import BOTH, hybrid_parts, join
from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters, PredictionBlocks

_QWEN3_NEXT: dict[str, object] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
}
_QWEN35_MOE = {**_QWEN3_NEXT, "vocab_size": 248320, "num_hidden_layers": 40, "num_experts_per_tok": 8, "num_experts": 256}
_QWEN35 = {
    **_QWEN3_NEXT,
    "vocab_size": 248320,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
}
_OLMO: dict[str, object] = {
    "vocab_size": 100352,
    "hidden_size": 3840,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 30,
    "max_position_embeddings": 65536,
}


def read_qwen3_next(fields: Fields) -> ModelParts:
    """Experts where (i + 1) mod `decoder_sparse_step` = 0, outside `mlp_only_layers`."""
    filled = mixers.prepare(fields, _QWEN3_NEXT)
    hidden_size, step = filled.integer("hidden_size"), filled.integer("decoder_sparse_step", default=1)
    dense_layers = filled.integers("mlp_only_layers") or []
    dense = mixers.swiglu(hidden_size, filled.integer("intermediate_size"))
    sparse = _experts(filled, hidden_size) if filled.integer("num_experts", minimum=0) else dense
    count = read_layer_count(filled)
    mlps = [sparse if index not in dense_layers and (index + 1) % step == 0 else dense for index in range(count)]
    return _qwen(filled, hidden_size, mlps)


def read_qwen3_5(fields: Fields) -> ModelParts:
    filled = mixers.prepare(fields, _QWEN35)
    hidden_size = filled.integer("hidden_size")
    return _qwen(filled, hidden_size, [mixers.swiglu(hidden_size, filled.integer("intermediate_size"))] * read_layer_count(filled))


def read_qwen3_5_moe(fields: Fields) -> ModelParts:
    filled = mixers.prepare(fields, _QWEN35_MOE)
    hidden_size = filled.integer("hidden_size")
    return _qwen(filled, hidden_size, [_experts(filled, hidden_size)] * read_layer_count(filled))


def read_olmo_hybrid(fields: Fields) -> ModelParts:
    """Multi-head attention with norms over the whole q and k; the DeltaNet's dims follow from the hidden size unless given."""
    filled = mixers.prepare(fields, _OLMO)
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, BOTH)
    if kinds is None:
        kinds = [BOTH[index % 4 == 3] for index in range(count)]
        kinds[-1] = "full_attention" if BOTH[1] not in kinds else kinds[-1]
    heads, kv_heads, head_dim = read_heads(filled, hidden_size)
    bias = filled.boolean("attention_bias", False)
    record = Attention(heads, kv_heads, head_dim, head_dim)
    full = mixers.attention(hidden_size, record, bias, bias, qk_norm=(heads + kv_heads) * head_dim)
    key_heads = filled.integer("linear_num_key_heads", default=heads)
    key_dim = filled.integer("linear_key_head_dim", default=max(1, int(0.75 * hidden_size / key_heads)))
    delta = mixers.gated_delta(
        hidden_size,
        key_heads,
        filled.integer("linear_num_value_heads", default=heads),
        key_dim,
        filled.integer("linear_value_head_dim", default=2 * key_dim),
        kernel=filled.integer("linear_conv_kernel_dim", default=4),
    )
    blocks: dict[str, Layer] = {"linear_attention": delta, "full_attention": ((record,), full)}
    rest = mixers.merge(mixers.swiglu(hidden_size, filled.integer("intermediate_size")), mixers.norms(2 * hidden_size))
    return hybrid_parts(filled, hidden_size, tuple(join(blocks[kind], rest) for kind in kinds))


def _qwen(fields: Fields, hidden_size: int, mlps: list[LayerParameters]) -> ModelParts:
    """Full attention every `full_attention_interval` layers unless the file has a list."""
    kinds = mixers.read_kinds(fields, len(mlps), BOTH)
    if kinds is None:
        interval = fields.integer("full_attention_interval", default=4)
        kinds = [BOTH[(index + 1) % interval == 0] for index in range(len(mlps))]
    blocks = {"linear_attention": read_gated_delta(fields, hidden_size), "full_attention": read_gated_attention(fields, hidden_size)}
    layers = (join(blocks[kind], mlp, mixers.norms(2 * hidden_size)) for kind, mlp in zip(kinds, mlps, strict=True))
    count = fields.integer("mtp_num_hidden_layers", default=0, minimum=0, maximum=1000)
    block = join(blocks["full_attention"], mlps[-1], mixers.norms(2 * hidden_size))
    # all its blocks share one projection of embedding and state, and three norms: published files have one block
    mtp = PredictionBlocks(count, block, joins=2 * hidden_size * hidden_size, norms=3 * hidden_size) if count else None
    return replace(hybrid_parts(fields, hidden_size, tuple(layers)), mtp=mtp)


def read_gated_delta(fields: Fields, hidden_size: int) -> Layer:
    return mixers.gated_delta(
        hidden_size,
        fields.integer("linear_num_key_heads"),
        fields.integer("linear_num_value_heads"),
        fields.integer("linear_key_head_dim"),
        fields.integer("linear_value_head_dim"),
        fields.integer("linear_conv_kernel_dim"),
        mixers.read_state_dtype(fields, "mamba_ssm_dtype"),
    )


def read_gated_attention(fields: Fields, hidden_size: int) -> Layer:
    """The query projection is twice as wide: its second half gates the output."""
    if not fields.boolean("attn_output_gate", True):
        raise fields.bad("attn_output_gate", "the model class always has that gate")
    heads, kv_heads, head_dim = read_heads(fields, hidden_size)
    record = Attention(heads, kv_heads, head_dim, head_dim)
    bias = fields.boolean("attention_bias", False)
    return (record,), mixers.attention(hidden_size, record, bias, bias, qk_norm=2 * head_dim, query_factor=2)


def _experts(fields: Fields, hidden_size: int) -> LayerParameters:
    """Routed experts, and a shared one behind a gate of one number."""
    routed = mixers.read_experts(fields, hidden_size, fields.integer("moe_intermediate_size"))
    shared = mixers.swiglu(hidden_size, fields.integer("shared_expert_intermediate_size"))
    return mixers.merge(routed, shared, LayerParameters(router=hidden_size))
