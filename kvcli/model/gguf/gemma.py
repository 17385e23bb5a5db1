"""GGUF files of Gemma-3n and Gemma-4: shared caches, per-layer embeddings, full layers of other dims."""

from __future__ import annotations

from typing import Any

from kvcli.model.gguf.meta import Meta, expert_keys, layer_kinds

Config = dict[str, Any]

#: What llama.cpp assumes for Gemma-3n without a key: the first twenty layers own their caches.
GEMMA3N_OWNERS = 20


def _per_layer(meta: Meta) -> Config:
    table = meta.tensors.get("per_layer_token_embd.weight")
    return {
        "hidden_size_per_layer_input": meta.scalar("embedding_length_per_layer_input") or 0,
        "vocab_size_per_layer_input": table.shape[-1] if table is not None and table.shape else meta.vocab_size,
    }


def gemma3n(meta: Meta, config: Config) -> Config:
    shared = meta.scalar("attention.shared_kv_layers")
    return {
        **layer_kinds(meta),
        **_per_layer(meta),
        "intermediate_size": meta.by_layer("feed_forward_length"),
        "num_kv_shared_layers": max(0, meta.layers - GEMMA3N_OWNERS) if shared is None else shared,
        "altup_num_inputs": meta.scalar("altup.num_inputs"),
        "laurel_rank": meta.dim("laurel_l.weight", 1),
    }


def gemma4(meta: Meta, config: Config) -> Config:
    """`key_length` is the full layers' dim. Where values have no projection, they are the keys before their norm."""
    kinds = layer_kinds(meta).get("layer_types")
    if kinds is None:
        raise meta.bad("attention.sliding_window_pattern", "absent", "this architecture needs it")
    heads = meta.by_layer("attention.head_count_kv") or [None] * meta.layers
    shared = meta.scalar("attention.shared_kv_layers") or 0
    of = {
        kind: {count for count, other in zip(heads, kinds, strict=True) if other == kind}
        for kind in ("sliding_attention", "full_attention")
    }
    one_projection = any(
        f"blk.{layer}.attn_k.weight" in meta.tensors and f"blk.{layer}.attn_v.weight" not in meta.tensors for layer in range(meta.layers)
    )
    if any(len(counts) > 1 for counts in of.values()) or (len(set(heads)) > 1 and not one_projection):
        raise meta.bad("attention.head_count_kv", heads, "kvcli reads one number of KV heads in each kind of layer")
    widths = meta.by_layer("feed_forward_length") or [None]
    owners, sharers = set(widths[: len(widths) - shared] if shared else widths), set(widths[len(widths) - shared :] if shared else ())
    double = bool(sharers) and owners != sharers
    if len(owners) != 1 or len(sharers) > 1 or (double and sharers != {2 * next(iter(owners))}):
        raise meta.bad("feed_forward_length", widths, "kvcli reads one width, twice as wide in layers that share a cache")
    found = {
        "layer_types": kinds,
        **_per_layer(meta),
        "head_dim": meta.scalar("attention.key_length_swa"),
        "global_head_dim": meta.scalar("attention.key_length"),
        "num_key_value_heads": next(iter(of["sliding_attention"]), None),
        "num_global_key_value_heads": next(iter(of["full_attention"]), None) if one_projection else None,
        "attention_k_eq_v": one_projection,
        "num_kv_shared_layers": shared,
        "intermediate_size": next(iter(owners)),
        "use_double_wide_mlp": double,
    }
    if not meta.scalar("expert_count"):
        return found
    experts = expert_keys(meta)
    return {**found, **experts, "enable_moe_block": True, "top_k_experts": experts.get("num_experts_per_tok")}
