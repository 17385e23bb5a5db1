"""LongCat-Flash: each decoder layer has two attention blocks, two dense MLPs and one set of experts, some of which do nothing."""

from __future__ import annotations

from dataclasses import replace

from kvcli.errors import Notice
from kvcli.model.families.latent_blocks import (
    Experts,
    attention_parameters,
    filled,
    latent_parts,
    latent_record,
    mlp_parameters,
    moe_parameters,
    plus,
    read_shape,
    refuse,
)
from kvcli.model.families.parts import ModelParts, layer_kinds, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters

_DEFAULTS: dict[str, object] = {
    "vocab_size": 131072,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "max_position_embeddings": 131072,
    "ffn_hidden_size": 12288,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_topk": 12,
    "n_routed_experts": 512,
    "zero_expert_num": 256,
    "expert_ffn_hidden_size": 2048,
}
_ALIASES = {
    "n_routed_experts": "num_local_experts",
    "moe_topk": "num_experts_per_tok",
    "ffn_hidden_size": "intermediate_size",
    "expert_ffn_hidden_size": "moe_intermediate_size",
}


def read_longcat_flash(fields: Fields) -> ModelParts:
    """Every attention block is a layer of its own, as in transformers, where num_hidden_layers is twice `num_layers`.

    The experts belong to the first block of each pair. The router also scores `zero_expert_num` identity experts, so a token
    may read fewer than `moe_topk`; the active count is the most it can read.
    """
    f = filled(fields, _DEFAULTS, _ALIASES)
    refuse(f, "sliding_window", "attention_chunk_size")
    pairs = _pairs(f)
    layer_kinds(f, 2 * pairs, ("full_attention",))
    hidden, shape = f.integer("hidden_size"), read_shape(f)
    if shape.q_lora_rank is None:
        raise f.bad("q_lora_rank", "queries of this family go through it")
    width, routed = f.integer("expert_ffn_hidden_size"), f.integer("n_routed_experts")
    zero = f.integer("zero_expert_num", default=0, minimum=0)
    per_token = min(f.integer("moe_topk", maximum=routed + zero), routed)
    half = plus(
        attention_parameters(hidden, shape), LayerParameters(norms=2 * hidden), mlp_parameters(hidden, f.integer("ffn_hidden_size"))
    )
    bias = routed + zero if f.boolean("router_bias", False) else 0
    moe = plus(moe_parameters(hidden, Experts(width, routed, per_token, 0)), LayerParameters(router=hidden * zero, vectors=bias))
    record = (latent_record(shape),)
    parts = latent_parts(f, ((record, plus(half, moe)), (record, half)) * pairs)
    # transformers gives the identity experts a gate and an up matrix that it never multiplies with: counted, not read
    unused = pairs * zero * 2 * width * hidden
    text = f"a token reads up to {per_token} routed experts, fewer where the router picks some of {zero} experts that do nothing"
    held = f"; {unused:,} parameters are placeholders of those in transformers, and published files do not hold them"
    notices = (Notice("experts_vary", f"{f.where}: {text}{held}"),) if zero else ()
    return replace(parts, lookups=unused, notices=notices)


def _pairs(f: Fields) -> int:
    """`num_layers`; a file with the derived count alone has half as many decoder layers."""
    if f.has("num_layers") or not f.has("num_hidden_layers"):
        return read_layer_count(f, "num_layers", default=28)
    pairs, rest = divmod(read_layer_count(f), 2)
    if rest or not pairs:
        raise f.bad("num_hidden_layers", "each decoder layer has two attention blocks, so it must be even")
    return pairs
