"""MiniMax-M3: grouped-query attention that reads the blocks of tokens which an indexer chooses from one index key a token."""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families.latent_blocks import (
    Experts,
    filled,
    latent_parts,
    mlp_parameters,
    moe_parameters,
    plus,
    refuse,
    sparse_layers,
)
from kvcli.model.families.parts import ModelParts, layer_kinds, read_heads, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

_DEFAULTS: dict[str, object] = {
    "vocab_size": 200064,
    "hidden_size": 6144,
    "intermediate_size": 3072,
    "num_hidden_layers": 60,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 524288,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
    "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_block_size": 128,
    "index_topk_blocks": 16,
}
#: Keys of the older `sparse_attention_config`, which win over the flat ones.
_OLDER = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
}
_SPARSE = "minimax_m3_sparse"


def read_minimax_m3(fields: Fields) -> ModelParts:
    older = fields.mapping("sparse_attention_config")
    flat = {new: older.values[old] for old, new in _OLDER.items() if old in older.values}
    f = filled(Fields({**fields.values, **flat}, fields.where, fields.outer), _DEFAULTS, {"num_local_experts": "num_experts"})
    refuse(f, "sliding_window", "attention_chunk_size")
    layers, hidden = read_layer_count(f), f.integer("hidden_size")
    heads, kv_heads, dim = read_heads(f, hidden)
    plain = Attention(heads, kv_heads, dim, dim)
    around = LayerParameters(
        query=hidden * heads * dim, key_value=2 * hidden * kv_heads * dim, attention_output=heads * dim * hidden, norms=2 * (hidden + dim)
    )
    index_heads, index_dim = f.integer("index_n_heads"), f.integer("index_head_dim")
    # the blocks just before the query are always among the chosen ones
    read = f.integer("index_topk_blocks") * f.integer("index_block_size")
    sparse = plain._replace(index_dim=index_dim, index_heads=index_heads, read_tokens=read)
    scores, key = hidden * index_heads * index_dim, hidden * index_dim
    chooser = LayerParameters(query=scores, key_value=key, norms=2 * index_dim, replicated=scores + key)
    routed = f.integer("num_local_experts")
    experts = Experts(
        f.integer("intermediate_size"), routed, f.integer("num_experts_per_tok", maximum=routed), f.integer("shared_intermediate_size")
    )
    moe, dense = moe_parameters(hidden, experts), mlp_parameters(hidden, f.integer("dense_intermediate_size"))
    built: list[Layer] = []
    for chosen, has_experts in zip(_sparse_attention(f, older, layers), _experts(f, layers), strict=True):
        parameters = plus(around, moe if has_experts else dense, chooser if chosen else LayerParameters())
        built.append(((sparse if chosen else plain,), parameters))
    return latent_parts(f, tuple(built))


def _sparse_attention(f: Fields, older: Fields, layers: int) -> list[bool]:
    """`layer_types`, else the older list of 0 and 1; without either every layer attends over all tokens."""
    names = layer_kinds(f, layers, ("full_attention", _SPARSE))
    if names is not None:
        return [name == _SPARSE for name in names]
    return [bool(flag) for flag in older.integers("sparse_attention_freq", layers) or [0] * layers]


def _experts(f: Fields, layers: int) -> list[bool]:
    return sparse_layers(f, layers, [bool(flag) for flag in f.integers("moe_layer_freq", layers) or [1] * layers])
