"""GLM-5.3-Flash: Kimi Delta Attention beside latent attention without rotary part, whose indexer pools its keys.

Hyper-connections mix several residual streams around every block. Defaults for absent keys are those of the Hugging Face
configuration class.
"""

from __future__ import annotations

from typing import cast

from kvcli.model.families import mixers
from kvcli.model.families.hybrid import hybrid_parts, join
from kvcli.model.families.kda import delta_layer, read_latent
from kvcli.model.families.latent_sparse import read_indexer_types
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.latent_records import Latent
from kvcli.model.layers import Layer, LayerParameters

KINDS = ("linear_attention", "indexed_attention")

_DEFAULTS: dict[str, object] = {
    "vocab_size": 154880,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 288,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 0,
    "v_head_dim": 256,
    "qk_nope_head_dim": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 1048576,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_kpool": 16,
    "hc_mult": 4,
}


def read_glm5_next(fields: Fields) -> ModelParts:
    outer = fields.outer
    if outer is not None and not outer.has("text_config"):
        fields = Fields(outer.values, outer.where, outer)  # text-only files are flat
    filled = mixers.prepare(fields, _DEFAULTS, {"num_local_experts": "n_routed_experts"})
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    if filled.integer("qk_rope_head_dim", minimum=0):
        raise filled.bad("qk_rope_head_dim", "the model class has no rotary part")
    nested = filled.mapping("linear_attn_config")
    kinds = _read_kinds(filled, nested, count)
    heads = nested.integer("num_heads", default=filled.integer("linear_num_heads", default=64))
    head_dim = nested.integer("head_dim", default=filled.integer("linear_head_dim", default=128))
    kernel = nested.integer("short_conv_kernel_size", default=filled.integer("linear_conv_kernel_dim", default=4))
    delta = delta_layer(hidden_size, heads, head_dim, kernel, gates=2 * (hidden_size + heads * head_dim) * head_dim)
    indexed = {full: _read_indexed(filled, hidden_size, full) for full in (False, True)}
    owns_index = read_indexer_types(filled)
    mlps = _read_mlps(filled, hidden_size, count)
    streams = filled.integer("hc_mult")
    mixing = (2 + streams) * streams
    # two hyper-connections a layer, each a matrix over all streams, a base and three scales
    around = LayerParameters(mlp=2 * mixing * streams * hidden_size, vectors=2 * (mixing + 3), norms=2 * hidden_size)
    layers = tuple(
        join(delta if kind == "linear_attention" else indexed[owns], mlp, around)
        for kind, owns, mlp in zip(kinds, owns_index, mlps, strict=True)
    )
    return hybrid_parts(filled, hidden_size, layers)


def _read_kinds(fields: Fields, nested: Fields, count: int) -> list[str]:
    """Every fourth layer is indexed unless the file has a list."""
    kinds = mixers.read_kinds(fields, count, (*KINDS, "full_attention"))
    if kinds is not None:
        return [KINDS[kind != "linear_attention"] for kind in kinds]
    if nested.has("kda_layers"):
        raise nested.bad("kda_layers", "the model class reads layer_types, which is absent")
    return [KINDS[index % 4 == 3] for index in range(count)]


def _read_indexed(fields: Fields, hidden_size: int, owns_index: bool) -> Layer:
    """Latent attention, and an indexer unless an earlier layer's choice is used."""
    (latent,), parameters = read_latent(fields, hidden_size)
    source, pool = fields.integer("q_lora_rank"), fields.integer("index_kpool")
    heads, dim, most = (fields.integer(key) for key in ("index_n_heads", "index_head_dim", "index_topk"))
    mixers.whole(fields, "index_kpool", most, pool)
    if not fields.boolean("index_kpool_always_select_tail", True):
        raise fields.bad("index_kpool_always_select_tail", "kvcli knows this indexer with its tail alone")
    record = cast(Latent, latent)._replace(index_topk=most, index_pool=pool)
    if not owns_index:
        return (record,), parameters
    scores = source * heads * dim + hidden_size * heads
    keys = 2 * hidden_size * dim  # and the gates that weigh them in a pool
    indexer = LayerParameters(
        query=scores,
        key_value=keys,
        replicated=scores + keys,
        norms=2 * dim,
        vectors=pool * dim,
    )
    return (record._replace(index_dim=dim, index_heads=heads),), mixers.merge(parameters, indexer)


def _read_mlps(fields: Fields, hidden_size: int, count: int) -> list[LayerParameters]:
    """Three dense layers unless the file has a list; the class looks at no other key."""
    if fields.integer("first_k_dense_replace", default=3, minimum=0) != 3 and not fields.has("mlp_layer_types"):
        raise fields.bad("first_k_dense_replace", "the model class has three dense layers unless mlp_layer_types says otherwise")
    width = fields.integer("moe_intermediate_size")
    experts = mixers.read_experts(fields, hidden_size, width, experts_key="n_routed_experts")
    sparse = mixers.merge(experts, mixers.swiglu(hidden_size, width * fields.integer("n_shared_experts", minimum=0)))
    dense = mixers.swiglu(hidden_size, fields.integer("intermediate_size"))
    names = mixers.read_kinds(fields, count, ("dense", "sparse"), ("mlp_layer_types",))
    names = names or ["dense" if index < 3 else "sparse" for index in range(count)]
    return [dense if name == "dense" else sparse for name in names]
