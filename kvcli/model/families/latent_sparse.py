"""Latent attention with an indexer that chooses the rows to read: DeepSeek-V3.2, GLM-5, A.X-K2, Hy4, Mistral-Large-4.

An indexer keeps one key of `index_head_dim` elements a token. From GLM-5.2 on, layers may reuse an earlier layer's choice and
then have no indexer ("shared"); in Mistral-Large-4 a layer may reuse an earlier layer's latent rows as well.
"""

from __future__ import annotations

from dataclasses import replace

from kvcli.model.families.latent import scheduled
from kvcli.model.families.latent_blocks import (
    Indexer,
    LatentShape,
    after_dense,
    attention_parameters,
    filled,
    indexed,
    indexer_parameters,
    latent_parts,
    latent_record,
    mlp_parameters,
    moe_parameters,
    named_layers,
    plus,
    prediction_blocks,
    read_experts,
    read_shape,
    refuse,
    sparse_layers,
)
from kvcli.model.families.parts import ModelParts, layer_kinds, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

_V32: dict[str, object] = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 163840,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "first_k_dense_replace": 3,
}
_GLM: dict[str, object] = {
    **_V32,
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "max_position_embeddings": 202752,
    "index_n_heads": 32,
}
_AXK2: dict[str, object] = {
    **_V32,
    "vocab_size": 163840,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "n_routed_experts": 128,
    "kv_lora_rank": 128,
    "q_lora_rank": 384,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "qk_nope_head_dim": 64,
    "max_position_embeddings": 131072,
    "index_n_heads": 16,
    "first_k_dense_replace": 1,
    "gated_norm_rank": 16,
}
_HY4: dict[str, object] = {
    **_V32,
    "vocab_size": 120832,
    "hidden_size": 2816,
    "intermediate_size": 6912,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 34,
    "num_attention_heads": 32,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "max_position_embeddings": 262144,
    "index_n_heads": 16,
    "hc_mult": 4,
}
_LARGE4: dict[str, object] = {
    **_V32,
    "vocab_size": 204800,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "moe_intermediate_size": 6144,
    "num_hidden_layers": 72,
    "num_attention_heads": 64,
    "n_routed_experts": 128,
    "qk_nope_head_dim": 64,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 1048576,
    "index_n_heads": 32,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
}


def read_deepseek_v32(fields: Fields) -> ModelParts:
    f = _filled(fields, _V32)
    return _dsa(f, [True] * read_layer_count(f))


def read_glm_moe_dsa(fields: Fields) -> ModelParts:
    f = _filled(fields, _GLM)
    return _dsa(f, read_indexer_types(f))


def read_axk2(fields: Fields) -> ModelParts:
    """A.X-K2 gates its norms through a bottleneck, and its attention output by a part of a wider query projection."""
    f = _filled(fields, _AXK2)
    layers, hidden, shape, index = _common(f)
    rank = _query_rank(f, shape)
    heads = shape.num_attention_heads
    gate = LayerParameters(mixer=2 * hidden * f.integer("gated_norm_rank"))
    # queries and gate together, from two halves of q_lora_rank, in the place of the usual second query matrix
    wider = heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim + 2 * shape.v_head_dim)
    attention = plus(attention_parameters(hidden, shape), LayerParameters(query=rank * wider))
    around = plus(attention, indexer_parameters(hidden, index), LayerParameters(norms=2 * hidden), gate)
    dense = mlp_parameters(hidden, f.integer("intermediate_size"))
    moe = plus(moe_parameters(hidden, read_experts(f)), gate)
    records = (indexed(latent_record(shape), index),)
    sparse = sparse_layers(f, layers, scheduled(f))
    return latent_parts(f, tuple((records, plus(around, moe if one else dense)) for one in sparse))


def read_hy_v4(fields: Fields) -> ModelParts:
    """Hy4 keeps `hc_mult` residual streams, mixed before attention and MLP, and gates each head's output."""
    f = _filled(fields, _HY4)
    layers, hidden, shape, index = _common(f)
    _query_rank(f, shape)
    full = _named_indexers(f, layers) or [number == 0 or (number - 1) % 4 == 0 for number in range(layers)]
    _check_first(f, full)
    streams = f.integer("hc_mult")
    streamed = 2 * (2 * streams * streams * hidden)
    mixing = LayerParameters(mixer=streamed, vectors=2 * (2 * streams + 2), replicated=streamed)
    gate = LayerParameters(attention_output=hidden * shape.num_attention_heads * shape.v_head_dim, vectors=shape.num_attention_heads)
    around = plus(attention_parameters(hidden, shape), gate, mixing, LayerParameters(norms=2 * hidden))
    sparse = sparse_layers(f, layers, [number > 0 for number in range(layers)])
    parts = latent_parts(f, _layers(f, hidden, shape, index, around, full, sparse))
    return with_streams_head(parts, streams)


def read_mistral_large4(fields: Fields) -> ModelParts:
    """Some layers have no rotary part and so a row of `kv_lora_rank` elements; `kv_source_layers` lets layers share rows."""
    f = _filled(fields, _LARGE4)
    layers, hidden, shape, _ = _common(f)
    shape = shape._replace(q_lora_rank=None)
    index = _index(f, source=hidden)
    full = read_indexer_types(f)
    every = f.integer("no_rope_layer_interval", default=4)
    rotary = f.integers("no_rope_layers", layers) or [int((number + 1) % every != 0) for number in range(layers)]
    sources = _sources(f, layers)
    dense = mlp_parameters(hidden, f.integer("intermediate_size"))
    moe = moe_parameters(hidden, read_experts(f))
    chosen = plus(indexer_parameters(hidden, index), LayerParameters(norms=2 * hidden, vectors=2 * index.heads))
    scaling = LayerParameters(norms=2 * hidden, vectors=2 * shape.num_attention_heads)
    built: list[Layer] = []
    for number, sparse in enumerate(sparse_layers(f, layers, after_dense(f, layers))):
        one = shape
        if not rotary[number]:
            # the query keeps its width: what would be rotated is one more part without position
            one = shape._replace(qk_rope_head_dim=0, qk_nope_head_dim=shape.qk_nope_head_dim + shape.qk_rope_head_dim)
        owns = sources[number] == number
        record = indexed(latent_record(one), index, full[number])._replace(owns_cache=owns)
        blocks = [attention_parameters(hidden, one), scaling, moe if sparse else dense]
        if full[number]:
            blocks.append(chosen)
        if not owns:
            blocks.append(_without_latent(hidden, one))
        built.append(((record,), plus(*blocks)))
    return latent_parts(f, tuple(built))


def read_indexer_types(f: Fields) -> list[bool]:
    """Which layers run an indexer: `indexer_types`, else `index_topk_pattern`, else `index_topk_freq` and its offset."""
    layers = read_layer_count(f)
    full = _named_indexers(f, layers)
    if full is None and isinstance(f.values.get("index_topk_pattern"), list):
        full = named_layers(f, "index_topk_pattern", layers, {"full": True, "shared": False})
    if full is None and (pattern := f.text("index_topk_pattern", "")):
        if len(pattern) < layers or set(pattern) - {"F", "S"}:
            raise f.bad("index_topk_pattern", f"it must be F or S for each of {layers} layers")
        full = [letter == "F" for letter in pattern[:layers]]
    if full is None:
        every = max(f.integer("index_topk_freq", default=1, minimum=0), 1)
        offset = f.integer("index_skip_topk_offset", default=2, minimum=0)
        full = [max(number - offset + 1, 0) % every == 0 for number in range(layers)]
    _check_first(f, full)
    return full


def with_streams_head(parts: ModelParts, streams: int) -> ModelParts:
    """The mixer that joins the residual streams before the last norm."""
    matrix = streams * streams * parts.hidden_size
    return replace(parts, shared=matrix, final=parts.final + streams + 1)


def _filled(fields: Fields, defaults: dict[str, object]) -> Fields:
    values = dict(fields.values)
    if values.get("num_experts") is not None:  # an older spelling that wins in the configuration classes
        values["n_routed_experts"] = values["num_experts"]
    f = filled(Fields(values, fields.where, fields.outer), defaults, {"n_routed_experts": "num_local_experts"})
    refuse(f, "sliding_window", "attention_chunk_size")
    return f


def _common(f: Fields) -> tuple[int, int, LatentShape, Indexer]:
    """Layers, hidden size, attention and indexer; every layer is of the one kind that the classes build."""
    layers = read_layer_count(f)
    layer_kinds(f, layers, ("indexed_attention",))
    shape = read_shape(f)
    return layers, f.integer("hidden_size"), shape, _index(f, source=shape.q_lora_rank or 0)


def _index(f: Fields, source: int) -> Indexer:
    return Indexer(f.integer("index_n_heads"), f.integer("index_head_dim"), f.integer("index_topk"), source)


def _query_rank(f: Fields, shape: LatentShape) -> int:
    if shape.q_lora_rank is None:
        raise f.bad("q_lora_rank", "the indexer's queries come from it")
    return shape.q_lora_rank


def _named_indexers(f: Fields, layers: int) -> list[bool] | None:
    return named_layers(f, "indexer_types", layers, {"full": True, "shared": False})


def _check_first(f: Fields, full: list[bool]) -> None:
    if not full[0]:
        key = "indexer_types" if f.has("indexer_types") else "index_topk_pattern"
        raise f.bad(key, "the first layer has no earlier choice of tokens to reuse")


def _dsa(f: Fields, full: list[bool]) -> ModelParts:
    layers, hidden, shape, index = _common(f)
    _query_rank(f, shape)
    around = plus(attention_parameters(hidden, shape), LayerParameters(norms=2 * hidden))
    sparse = sparse_layers(f, layers, after_dense(f, layers))
    # a prediction block has experts and an indexer of its own
    block = plus(around, indexer_parameters(hidden, index), moe_parameters(hidden, read_experts(f)))
    blocks = prediction_blocks(f, hidden, ((indexed(latent_record(shape), index),), block))
    return latent_parts(f, _layers(f, hidden, shape, index, around, full, sparse), blocks)


def _layers(
    f: Fields, hidden: int, shape: LatentShape, index: Indexer, around: LayerParameters, full: list[bool], sparse: list[bool]
) -> tuple[Layer, ...]:
    record, chosen = latent_record(shape), indexer_parameters(hidden, index)
    dense = mlp_parameters(hidden, f.integer("intermediate_size"))
    moe = moe_parameters(hidden, read_experts(f))
    built: list[Layer] = []
    for owns, routed in zip(full, sparse, strict=True):
        blocks = (around, moe if routed else dense, chosen if owns else LayerParameters())
        built.append(((indexed(record, index, owns),), plus(*blocks)))
    return tuple(built)


def _without_latent(hidden: int, s: LatentShape) -> LayerParameters:
    """What a layer that attends over another one's rows lacks."""
    latent = s.kv_lora_rank + s.qk_rope_head_dim
    down = hidden * latent
    return LayerParameters(key_value=-down, norms=-s.kv_lora_rank, vectors=-latent if s.bias else 0, replicated=-down)


def _sources(f: Fields, layers: int) -> list[int]:
    sources = f.integers("kv_source_layers", layers) or list(range(layers))
    for number, source in enumerate(sources):
        if source > number or sources[source] != source:
            raise f.bad("kv_source_layers", f"layer {number} must name an earlier layer that has rows of its own")
    return sources
