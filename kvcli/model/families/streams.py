"""Attention whose streams pass short convolutions in every layer: Inkling, Inkling-2 and ZAYA1.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli import dtypes
from kvcli.model.cache_records import Attention
from kvcli.model.families import mixers
from kvcli.model.families.hybrid import join
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters
from kvcli.model.state_records import Recurrent

KINDS = ("hybrid_sliding", "hybrid")

_ALIASES = {
    "sliding_window": "sliding_window_size",
    "num_local_experts": "n_routed_experts",
    "sconv_kernel_size": "conv_kernel_size",
    "model_max_length": "max_position_embeddings",
}
_INKLING: dict[str, object] = {
    "vocab_size": 201024,
    "hidden_size": 6144,
    "num_hidden_layers": 66,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 16,
    "swa_head_dim": 128,
    "sliding_window_size": 512,
    "d_rel": 16,
    "rel_extent": 1024,
    "max_position_embeddings": 131072,
    "conv_kernel_size": 4,
    "intermediate_size": 24576,
    "moe_intermediate_size": 3072,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
}
_INKLING2 = {
    **_INKLING,
    "hidden_size": 4608,
    "num_hidden_layers": 48,
    "num_attention_heads": 48,
    "swa_num_attention_heads": 48,
    "swa_num_key_value_heads": 8,
    "sliding_window_size": 1024,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2304,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
}
_ZAYA: dict[str, object] = {
    "vocab_size": 262272,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 1,
    "num_experts": 16,
    "head_dim": 128,
    "router_hidden_size": 256,
}


def read_inkling(fields: Fields) -> ModelParts:
    """Dense layers first where the file asks for them; shared experts that the router weighs too."""
    filled = mixers.prepare(_widths(fields), _INKLING, _ALIASES)
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, KINDS)
    if kinds is None:
        local = filled.integers("local_layer_ids")
        kinds = [KINDS[(index + 1) % 6 == 0 if local is None else index not in local] for index in range(count)]
    names = mixers.read_kinds(filled, count, ("dense", "sparse"), ("mlp_layer_types",))
    if names is None:
        first = filled.integer("dense_mlp_idx", default=0, minimum=0)
        names = ["dense" if index < first else "sparse" for index in range(count)]
    blocks = {kind: _inkling_layer(filled, hidden_size, kind) for kind in set(kinds)}
    for kind, (records, parameters) in blocks.items():
        blocks[kind] = (records, mixers.merge(parameters, mixers.norms(2 * filled.integer(_key(kind, "head_dim")))))
    width, shared = filled.integer("moe_intermediate_size"), filled.integer("n_shared_experts", minimum=0)
    experts = mixers.read_experts(filled, hidden_size, width, experts_key="n_routed_experts")
    scale = LayerParameters(vectors=1)
    mlps = {
        "dense": mixers.merge(mixers.swiglu(hidden_size, filled.integer("intermediate_size")), scale),
        "sparse": mixers.merge(experts, mixers.swiglu(hidden_size, width * shared), LayerParameters(router=shared * hidden_size), scale),
    }
    layers = tuple(join(blocks[kind], mlps[name], mixers.norms(2 * hidden_size)) for kind, name in zip(kinds, names, strict=True))
    return _parts(filled, hidden_size, layers, final=hidden_size, tied=False, embedding=_embedding(filled))


def read_inkling2(fields: Fields) -> ModelParts:
    """Residuals weighed over blocks of layers, gates and sinks from the input; full layers' k and v convolutions are dynamic."""
    filled = mixers.prepare(fields, _INKLING2, {**_ALIASES, "intermediate_size": "moe_intermediate_size"})
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, KINDS) or [KINDS[(index + 1) % 6 == 0] for index in range(count)]
    experts = mixers.read_experts(filled, hidden_size, filled.integer("moe_intermediate_size"), experts_key="n_routed_experts")
    kernel = filled.integer("conv_kernel_size")
    layers: list[Layer] = []
    for index, kind in enumerate(kinds):
        heads, kv_heads = filled.integer(_key(kind, "num_attention_heads")), filled.integer(_key(kind, "num_key_value_heads"))
        head_dim, full = filled.integer(_key(kind, "head_dim")), kind == "hybrid"
        inputs = 3 if full else 1  # q, k and v of full layers have norms, and residual queries, of their own
        more = LayerParameters(
            attention_output=hidden_size * heads * head_dim + hidden_size * heads,  # gate and sink
            mixer=2 * hidden_size * kv_heads * kernel * full,
            vectors=heads * (head_dim + filled.integer("d_rel")) + (1 + inputs * (index > 0)) * hidden_size,
            norms=(1 + inputs) * hidden_size,
        )
        layers.append(join(_inkling_layer(filled, hidden_size, kind), more, experts))
    return _parts(filled, hidden_size, tuple(layers), final=2 * hidden_size, tied=False, embedding=_embedding(filled))


def _key(kind: str, name: str) -> str:
    """Window layers have dims of their own."""
    return name if kind == "hybrid" else f"swa_{name}"


def _inkling_layer(fields: Fields, hidden_size: int, kind: str) -> Layer:
    """Attention with learned relative logits; k, v, attention output and MLP output each pass a convolution, kept in float32."""
    heads, kv_heads = fields.integer(_key(kind, "num_attention_heads")), fields.integer(_key(kind, "num_key_value_heads"))
    mixers.whole(fields, _key(kind, "num_key_value_heads"), heads, kv_heads)
    head_dim, kernel = fields.integer(_key(kind, "head_dim")), fields.integer("conv_kernel_size")
    window = fields.integer("sliding_window_size") if kind == "hybrid_sliding" else None
    record = Attention(heads, kv_heads, head_dim, head_dim, window)
    channels = 2 * kv_heads * head_dim + 2 * hidden_size
    relative = fields.integer("d_rel")
    conv = Recurrent("conv", channels, kernel, conv_dtype=dtypes.FP32)
    more = LayerParameters(
        query=hidden_size * heads * relative,
        vectors=channels * kernel + relative * (window or fields.integer("rel_extent")),
    )
    return (record, conv), mixers.merge(mixers.attention(hidden_size, record), more)


def _embedding(fields: Fields) -> int:
    """The input table has a norm of its own."""
    return (fields.integer("vocab_size") + 1) * fields.integer("hidden_size")


def _widths(fields: Fields) -> Fields:
    """In files with `dense_intermediate_size`, `intermediate_size` is the experts' width."""
    if not fields.has("dense_intermediate_size"):
        return fields
    dense, experts = fields.values["dense_intermediate_size"], fields.values.get("intermediate_size", _INKLING["intermediate_size"])
    return Fields({**fields.values, "intermediate_size": dense, "moe_intermediate_size": experts}, fields.where, fields.outer)


def read_zaya(fields: Fields) -> ModelParts:
    """Convolutions over q and k, half of v taken from the token before, and a router that is an MLP and may skip experts."""
    filled = mixers.prepare(fields, _ZAYA)
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, KINDS) or ["hybrid"] * count
    bias = filled.boolean("attention_bias", False)
    heads, kv_heads = filled.integer("num_attention_heads"), filled.integer("num_key_value_heads")
    mixers.whole(filled, "num_key_value_heads", heads, kv_heads)
    head_dim = filled.integer("head_dim")
    keys, channels = kv_heads * head_dim, (heads + kv_heads) * head_dim
    depthwise, grouped = filled.integer("cca_time0", default=2), filled.integer("cca_time1", default=2)
    experts = mixers.read_experts(filled, hidden_size, filled.integer("moe_intermediate_size"))
    if experts.experts_per_token != 1:
        raise filled.bad("num_experts_per_tok", "the model class takes one expert a token")
    routed = filled.integer("router_hidden_size")
    rest = mixers.merge(
        experts._replace(router=routed * (hidden_size + 2 * routed + experts.num_experts + 1)),
        LayerParameters(
            mixer=channels * head_dim * grouped,
            # both convolutions; temperatures; the router's biases; scales and biases of both residuals
            vectors=channels * (depthwise + 2) + kv_heads + 3 * routed + 8 * hidden_size,
            norms=2 * hidden_size + routed,
        ),
    )
    # the columns that both convolutions look back on, and the half of v that the next token takes
    columns = depthwise + grouped - 2
    state = Recurrent("conv", plain_elements=channels * columns + keys // 2)
    layers: list[Layer] = []
    for index, kind in enumerate(kinds):
        window = filled.integer("sliding_window") if kind == "hybrid_sliding" else None
        record = Attention(heads, kv_heads, head_dim, head_dim, window)
        scale = LayerParameters(vectors=routed * (index > 0))  # of the router states that come from the layer before
        layers.append(join(((record, state), mixers.attention(hidden_size, record, bias, bias)), rest, scale))
    head_bias = filled.integer("vocab_size") * filled.boolean("lm_head_bias", False)
    tied = filled.boolean("tie_word_embeddings", True)
    return _parts(filled, hidden_size, tuple(layers), final=3 * hidden_size + head_bias, tied=tied)


def _parts(fields: Fields, hidden_size: int, layers: tuple[Layer, ...], final: int, tied: bool, embedding: int | None = None) -> ModelParts:
    """The Inkling classes never tie."""
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=fields.integer("max_position_embeddings"),
        layers=layers,
        tied=tied,
        embedding=embedding,
        final=final,
    )
