"""DeepSeek-V4: a window of raw entries, and compressed entries of 4 (CSA) or 128 (HCA) tokens in most layers.

Keys and values are one tensor of `head_dim` elements. The layer's output goes through `o_groups` low-rank projections, and the
residual is `hc_mult` streams. Counts are those of the modules transformers 5.23 builds.
"""

from __future__ import annotations

from dataclasses import replace

from kvcli.model.families.latent_blocks import (
    Experts,
    filled,
    latent_parts,
    moe_parameters,
    plus,
    refuse,
)
from kvcli.model.families.parts import ModelParts, layer_kinds, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.latent_records import Compressed
from kvcli.model.layers import Layer, LayerParameters, PredictionBlocks

_DEFAULTS: dict[str, object] = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "num_experts_per_tok": 6,
    "n_routed_experts": 256,
    "max_position_embeddings": 1048576,
    "hc_mult": 4,
    "sliding_window": 128,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
}
_WINDOW, _CSA, _HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_BY_RATIO = {0: _WINDOW, 4: _CSA, 128: _HCA}


def read_deepseek_v4(fields: Fields) -> ModelParts:
    """Layers by `layer_types`, else `compress_ratios`, else two HCA layers and then HCA and CSA in turn."""
    f = filled(fields, _DEFAULTS, {"n_routed_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"})
    refuse(f, "attention_bias")
    for key in ("n_shared_experts", "num_key_value_heads"):
        if f.integer(key, default=1) != 1:
            raise f.bad(key, "the model class has one")
    for name in f.texts("mlp_layer_types", read_layer_count(f)) or ():
        if name not in ("hash_moe", "moe"):
            raise f.bad("mlp_layer_types", f"kvcli does not know {name!r} there")
    hidden, streams = f.integer("hidden_size"), f.integer("hc_mult")
    width, routed = f.integer("moe_intermediate_size"), f.integer("n_routed_experts")
    experts = Experts(width, routed, f.integer("num_experts_per_tok", maximum=routed), width)
    mixes = streams * (streams + 2)
    streamed = 2 * mixes * streams * hidden
    around = plus(
        _attention(f, hidden),
        moe_parameters(hidden, experts, f.boolean("mlp_bias", False)),
        LayerParameters(norms=2 * hidden, mixer=streamed, vectors=2 * (mixes + 3), replicated=streamed),
    )
    ratios = _ratios(f)
    made = {kind: _layer(f, hidden, around, kind, ratio) for kind, ratio in ratios.items()}
    parts = latent_parts(f, tuple(made[kind] for kind in _kinds(f)))
    return replace(
        parts,
        shared=streams * streams * hidden,
        final=parts.final + streams + 1,
        mtp=_mtp(f, made[_WINDOW], hidden, streams),
    )


def _mtp(f: Fields, layer: Layer, hidden: int, streams: int) -> PredictionBlocks | None:
    """A prediction block is a window layer with two H x H projections, three norms and a mixer of the streams of its own."""
    count = f.integer("num_nextn_predict_layers", default=0, minimum=0, maximum=1000)
    joins, norms = 2 * hidden * hidden + streams * streams * hidden, 3 * hidden + streams + 1
    return PredictionBlocks(count, layer, joins, norms) if count else None


def _attention(f: Fields, hidden: int) -> LayerParameters:
    """Queries through q_lora_rank, one K = V head, a block-diagonal output projection in two steps, and a sink a head."""
    heads, dim, rank = f.integer("num_attention_heads"), f.integer("head_dim"), f.integer("q_lora_rank")
    groups, low = f.integer("o_groups"), f.integer("o_lora_rank")
    if heads * dim % groups:
        raise f.bad("o_groups", f"it must divide the {heads * dim} elements of the heads' output")
    return LayerParameters(
        query=rank * (hidden + heads * dim),
        key_value=hidden * dim,
        attention_output=heads * dim * low + groups * low * hidden,
        replicated=hidden * (rank + dim),
        norms=rank + dim,
        vectors=heads,
    )


def _layer(f: Fields, hidden: int, around: LayerParameters, kind: str, ratio: int) -> Layer:
    heads, dim, window = f.integer("num_attention_heads"), f.integer("head_dim"), f.integer("sliding_window")
    if kind == _WINDOW:
        return (Compressed(heads, dim, window),), around
    if kind == _HCA:
        return (Compressed(heads, dim, window, ratio),), plus(around, _compressor(hidden, dim, dim, ratio))
    index_heads, index_dim = f.integer("index_n_heads"), f.integer("index_head_dim")
    record = Compressed(heads, dim, window, ratio, index_dim, index_heads, f.integer("index_topk"))
    scores = f.integer("q_lora_rank") * index_heads * index_dim + hidden * index_heads
    scoring = LayerParameters(query=scores, replicated=scores)
    both = (_compressor(hidden, 2 * dim, dim, ratio), _compressor(hidden, 2 * index_dim, index_dim, ratio))
    return (record,), plus(around, *both, scoring)


def _compressor(hidden: int, width: int, dim: int, ratio: int) -> LayerParameters:
    """Entry and gate projections (two overlapping streams in CSA), a bias for each position of an entry, a norm."""
    return LayerParameters(key_value=2 * hidden * width, vectors=ratio * width, norms=dim, replicated=2 * hidden * width)


def _ratios(f: Fields) -> dict[str, int]:
    """Tokens of an entry, by kind of layer."""
    rates = f.mapping("compress_rates")
    return {
        _WINDOW: 0,
        _CSA: f.integer("compress_rate_csa", default=rates.integer(_CSA, default=4)),
        _HCA: f.integer("compress_rate_hca", default=rates.integer(_HCA, default=128)),
    }


def _kinds(f: Fields) -> list[str]:
    layers = read_layer_count(f)
    names = layer_kinds(f, layers, tuple(_BY_RATIO.values()))
    if names is not None:
        return names
    ratios = f.integers("compress_ratios", layers)
    if ratios is None:
        return [_CSA if number > 1 and number % 2 else _HCA for number in range(layers)]
    if not set(ratios) <= set(_BY_RATIO):
        raise f.bad("compress_ratios", "each must be 0, 4 or 128")
    return [_BY_RATIO[ratio] for ratio in ratios]
