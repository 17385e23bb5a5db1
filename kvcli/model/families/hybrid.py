"""Mamba layers beside attention layers: Jamba, Bamba, Granite-4, Falcon-H1, Nemotron-H.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families import mixers
from kvcli.model.families.mamba import read_rank
from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

BOTH = ("linear_attention", "full_attention")

_BAMBA: dict[str, object] = {
    "vocab_size": 128000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 262144,
}
_JAMBA = {**_BAMBA, "vocab_size": 65536, "num_experts": 16, "num_experts_per_tok": 2}
_FALCON_H1 = {**_BAMBA, "max_position_embeddings": 8192, "mamba_d_ssm": 1024}
_GRANITE: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
}


def read_jamba(fields: Fields) -> ModelParts:
    """Attention where i mod period = offset, experts likewise; `num_experts` 1 means an MLP."""
    filled = mixers.prepare(fields, _JAMBA, {"num_local_experts": "num_experts"})
    hidden_size = filled.integer("hidden_size")
    width = filled.integer("intermediate_size")
    attention = read_attention(filled, hidden_size, biases=False)
    mamba = mixers.mamba1(
        hidden_size,
        inner=filled.integer("mamba_expand", default=2) * hidden_size,
        state=filled.integer("mamba_d_state", default=16),
        rank=read_rank(filled, "mamba_dt_rank", hidden_size),
        kernel=filled.integer("mamba_d_conv", default=4),
        conv_bias=filled.boolean("mamba_conv_bias", True),
        projection_bias=filled.boolean("mamba_proj_bias", False),
        inner_norms=True,
    )
    dense = mixers.swiglu(hidden_size, width)
    sparse = mixers.read_experts(filled, hidden_size, width) if filled.integer("num_experts") > 1 else dense
    is_attention = read_period(filled, "attn_layer_period", 8, "attn_layer_offset", 4)
    is_sparse = read_period(filled, "expert_layer_period", 2, "expert_layer_offset", 1)
    layers = (
        join(attention if is_attention(index) else mamba, sparse if is_sparse(index) else dense, mixers.norms(2 * hidden_size))
        for index in range(read_layer_count(filled))
    )
    return hybrid_parts(filled, hidden_size, tuple(layers))


def read_bamba(fields: Fields) -> ModelParts:
    """Attention in the layers of `attn_layer_indices` alone."""
    filled = mixers.prepare(fields, _BAMBA)
    hidden_size = filled.integer("hidden_size")
    count = read_layer_count(filled)
    indices = filled.integers("attn_layer_indices") or []
    kinds = mixers.read_kinds(filled, count, BOTH, ("layers_block_type", "layer_types"))
    derived = [BOTH[index in indices] for index in range(count)]
    if kinds is not None and filled.has("attn_layer_indices") and kinds != derived:
        raise filled.bad("attn_layer_indices", "it contradicts the list of layer types")
    blocks = {"linear_attention": _read_mamba2(filled, hidden_size), "full_attention": read_attention(filled, hidden_size)}
    rest = mixers.swiglu(hidden_size, filled.integer("intermediate_size"), filled.boolean("mlp_bias", False))
    layers = tuple(join(blocks[kind], rest, mixers.norms(2 * hidden_size)) for kind in kinds or derived)
    return hybrid_parts(filled, hidden_size, layers)


def read_granite_hybrid(fields: Fields) -> ModelParts:
    """Granite 4: a shared MLP in every layer, routed experts beside it unless their number is 0."""
    filled = mixers.prepare(fields, _GRANITE, {"layers_block_type": "layer_types"})
    hidden_size = filled.integer("hidden_size")
    count = read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, BOTH) or ["linear_attention"] * count
    blocks = {
        kind: _read_mamba2(filled, hidden_size) if kind == "linear_attention" else read_attention(filled, hidden_size)
        for kind in set(kinds)
    }
    rest = mixers.swiglu(hidden_size, filled.integer("shared_intermediate_size"))
    if filled.integer("num_local_experts", default=8, minimum=0):
        experts = mixers.prepare(filled, {"num_local_experts": 8})
        width = filled.integer("intermediate_size")
        rest = mixers.merge(rest, mixers.read_experts(experts, hidden_size, width, experts_key="num_local_experts"))
    layers = tuple(join(blocks[kind], rest, mixers.norms(2 * hidden_size)) for kind in kinds)
    return hybrid_parts(filled, hidden_size, layers)


def read_falcon_h1(fields: Fields) -> ModelParts:
    """Attention and Mamba-2 side by side in every layer."""
    filled = mixers.prepare(fields, _FALCON_H1)
    hidden_size = filled.integer("hidden_size")
    inner = filled.optional_integer("mamba_d_ssm")
    keys, attention = read_attention(filled, hidden_size)
    states, mamba = _read_mamba2(
        filled,
        hidden_size,
        inner=inner,
        out_bias=filled.boolean("projectors_bias", False),
        gated_norm=filled.boolean("mamba_rms_norm", False),
    )
    rest = mixers.swiglu(hidden_size, filled.integer("intermediate_size"), filled.boolean("mlp_bias", False))
    layer = ((*keys, *states), mixers.merge(attention, mamba, rest, mixers.norms(2 * hidden_size)))
    return hybrid_parts(filled, hidden_size, (layer,) * read_layer_count(filled))


def _read_mamba2(
    fields: Fields, hidden_size: int, inner: int | None = None, out_bias: bool | None = None, gated_norm: bool = True
) -> Layer:
    """The Mamba-2 keys that Bamba, Granite and Falcon-H1 share."""
    heads = fields.integer("mamba_n_heads", default=128)
    width = fields.integer("mamba_expand", default=2) * hidden_size if inner is None else inner
    head_dim = mixers.whole(fields, "mamba_n_heads", width, heads)
    if fields.values.get("mamba_d_head", "auto") not in ("auto", None) and fields.integer("mamba_d_head") != head_dim:
        raise fields.bad("mamba_d_head", f"with {heads} heads it must give the inner width {width:,}")
    bias = fields.boolean("mamba_proj_bias", False)
    return mixers.mamba2(
        hidden_size,
        heads,
        head_dim,
        state=fields.integer("mamba_d_state", default=256),
        groups=fields.integer("mamba_n_groups", default=1),
        kernel=fields.integer("mamba_d_conv", default=4),
        conv_bias=fields.boolean("mamba_conv_bias", True),
        in_bias=bias,
        out_bias=bias if out_bias is None else out_bias,
        gated_norm=gated_norm,
    )


def read_attention(fields: Fields, hidden_size: int, biases: bool = True) -> Layer:
    """Grouped-query attention; `attention_bias` means all four projections, and nothing where the class has no `biases`."""
    heads, kv_heads, head_dim = read_heads(fields, hidden_size)
    record = Attention(heads, kv_heads, head_dim, head_dim)
    bias = biases and fields.boolean("attention_bias", False)
    return (record,), mixers.attention(hidden_size, record, qkv_bias=bias, output_bias=bias)


class Every:
    """Layers i with i mod period = offset."""

    def __init__(self, period: int, offset: int) -> None:
        self.period, self.offset = period, offset

    def __call__(self, index: int) -> bool:
        return index % self.period == self.offset


def read_period(fields: Fields, period_key: str, period: int, offset_key: str, offset: int) -> Every:
    every = Every(fields.integer(period_key, default=period), fields.integer(offset_key, default=offset, minimum=0))
    if every.offset >= every.period:
        raise fields.bad(offset_key, f"it must be smaller than {period_key}, which is {every.period}")
    return every


def join(mixer: Layer, *rest: LayerParameters) -> Layer:
    records, parameters = mixer
    return records, mixers.merge(parameters, *rest)


def hybrid_parts(fields: Fields, hidden_size: int, layers: tuple[Layer, ...], tied: bool = False, ties: bool = True) -> ModelParts:
    """The frame that all of them share: a final norm, and a head of its own unless tied.

    `tied` is the class default; a class without `ties` has both matrices whatever the file says.
    """
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=fields.integer("max_position_embeddings"),
        layers=layers,
        tied=ties and fields.boolean("tie_word_embeddings", tied),
        final=hidden_size,
    )
