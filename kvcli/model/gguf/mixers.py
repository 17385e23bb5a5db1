"""GGUF architectures with recurrent layers: their metadata in the Hugging Face names that the family readers know.

llama.cpp keeps every such layer in `ssm.*` keys, whatever the mixer, and marks layers by their number of KV heads.
"""

from __future__ import annotations

from typing import Any

from kvcli.model.gguf.meta import Meta, expert_keys

Config = dict[str, Any]


def _heads_left(meta: Meta, config: Config, other: str) -> Config:
    """Layers by their number of KV heads: those with none have the `other` block."""
    heads = meta.by_layer("attention.head_count_kv")
    if heads is None:
        return {}
    some = {count for count in heads if count}
    if len(some) > 1:
        raise meta.bad("attention.head_count_kv", heads, "kvcli reads one number of KV heads in the layers that have any")
    return {"layer_types": ["full_attention" if count else other for count in heads], "num_key_value_heads": next(iter(some), None)}


def _mamba2(meta: Meta) -> Config:
    """Keys that Bamba, Granite-4 and Falcon-H1 share; the step's rank is the number of heads."""
    return {
        "mamba_n_heads": meta.scalar("ssm.time_step_rank"),
        "mamba_d_state": meta.scalar("ssm.state_size"),
        "mamba_n_groups": meta.scalar("ssm.group_count"),
        "mamba_d_conv": meta.scalar("ssm.conv_kernel"),
        "mamba_conv_bias": meta.has("ssm_conv1d.bias"),
        "mamba_proj_bias": meta.has("ssm_in.bias"),
    }


def granite_hybrid(meta: Meta, config: Config) -> Config:
    inner, hidden = meta.scalar("ssm.inner_size"), config.get("hidden_size")
    if not isinstance(inner, int) or not isinstance(hidden, int) or not hidden or inner % hidden:
        raise meta.bad("ssm.inner_size", inner, "it must be a multiple of the embedding length")
    experts = meta.scalar("expert_count") or 0
    width = meta.scalar("feed_forward_length")
    shared = meta.scalar("expert_shared_feed_forward_length") if experts else width
    return {
        **_heads_left(meta, config, "linear_attention"),
        **_mamba2(meta),
        "mamba_expand": inner // hidden,
        "num_local_experts": experts,
        "num_experts_per_tok": meta.scalar("expert_used_count") or 2,
        "shared_intermediate_size": shared,
    }


def falcon_h1(meta: Meta, config: Config) -> Config:
    return {
        **_mamba2(meta),
        "mamba_d_ssm": meta.scalar("ssm.inner_size"),
        "mamba_rms_norm": meta.has("ssm_norm.weight"),
        "projectors_bias": meta.has("ssm_out.bias"),
    }


def jamba(meta: Meta, config: Config) -> Config:
    """Attention and experts come at a period and an offset, which follow from the layers that have them."""
    heads = meta.by_layer("attention.head_count_kv") or []
    sparse = [f"blk.{layer}.ffn_gate_inp.weight" in meta.tensors for layer in range(meta.layers)]
    inner, hidden = meta.scalar("ssm.inner_size"), config.get("hidden_size")
    if not isinstance(inner, int) or not isinstance(hidden, int) or not hidden or inner % hidden:
        raise meta.bad("ssm.inner_size", inner, "it must be a multiple of the embedding length")
    return {
        "num_key_value_heads": _heads_left(meta, config, "linear_attention").get("num_key_value_heads"),
        "num_experts": meta.scalar("expert_count") or 1,
        "num_experts_per_tok": meta.scalar("expert_used_count") or 1,
        "mamba_expand": inner // hidden,
        "mamba_d_state": meta.scalar("ssm.state_size"),
        "mamba_d_conv": meta.scalar("ssm.conv_kernel"),
        "mamba_dt_rank": meta.scalar("ssm.time_step_rank"),
        "mamba_conv_bias": meta.has("ssm_conv1d.bias"),
        "mamba_proj_bias": meta.has("ssm_in.bias"),
        **_period(meta, "attention.head_count_kv", [bool(count) for count in heads], "attn_layer"),
        **(_period(meta, "expert_count", sparse, "expert_layer") if any(sparse) else {}),
    }


def _period(meta: Meta, key: str, marked: list[bool], name: str) -> Config:
    """The period and offset of the marked layers. Raises BadInput where they have none."""
    places = [layer for layer, mark in enumerate(marked) if mark]
    if not places:
        raise meta.bad(key, "zero in all layers", "kvcli reads this architecture with some layers that have them")
    period = places[1] - places[0] if len(places) > 1 else len(marked)
    if places != list(range(places[0], len(marked), period)) or places[0] >= period:
        raise meta.bad(key, f"set in layers {places[:8]}", "kvcli reads layers at one distance from each other")
    return {f"{name}_period": period, f"{name}_offset": places[0]}


def nemotron_h(meta: Meta, config: Config) -> Config:
    """One block a layer: attention where there are KV heads, an MLP where there is a width, else Mamba-2."""
    heads, widths = meta.by_layer("attention.head_count_kv") or [], meta.by_layer("feed_forward_length") or []
    if len({count for count in heads if count}) != 1 or len({width for width in widths if width}) != 1:
        raise meta.bad("attention.head_count_kv", heads, "kvcli reads one number of KV heads and one MLP width in the layers that have any")
    kinds = ["attention" if count else "mlp" if width else "mamba" for count, width in zip(heads, widths, strict=True)]
    inner, rank = meta.scalar("ssm.inner_size"), meta.scalar("ssm.time_step_rank")
    if not isinstance(inner, int) or not isinstance(rank, int) or rank < 1 or inner % rank:
        raise meta.bad("ssm.inner_size", inner, f"it must be a multiple of the {rank} heads")
    return {
        "layers_block_type": kinds,
        "num_key_value_heads": max(heads),
        "intermediate_size": max(widths),
        "mamba_num_heads": rank,
        "mamba_head_dim": inner // rank,
        "ssm_state_size": meta.scalar("ssm.state_size"),
        "n_groups": meta.scalar("ssm.group_count"),
        "conv_kernel": meta.scalar("ssm.conv_kernel"),
        "use_conv_bias": meta.has("ssm_conv1d.bias"),
        "use_bias": meta.has("ssm_in.bias"),
    }


def pure_mamba(meta: Meta, config: Config) -> Config:
    return {
        "conv_kernel": meta.scalar("ssm.conv_kernel"),
        "state_size": meta.scalar("ssm.state_size"),
        "intermediate_size": meta.scalar("ssm.inner_size"),
        "time_step_rank": meta.scalar("ssm.time_step_rank"),
        "use_conv_bias": meta.has("ssm_conv1d.bias"),
        "use_bias": meta.has("ssm_in.bias"),
        "num_attention_heads": None,
    }


def pure_mamba2(meta: Meta, config: Config) -> Config:
    inner, heads, hidden = meta.scalar("ssm.inner_size"), meta.scalar("ssm.time_step_rank"), config.get("hidden_size")
    if not all(isinstance(value, int) and value > 0 for value in (inner, heads, hidden)) or inner % heads:
        raise meta.bad("ssm.inner_size", inner, f"it must be a multiple of the {heads} heads")
    return {
        "conv_kernel": meta.scalar("ssm.conv_kernel"),
        "state_size": meta.scalar("ssm.state_size"),
        "num_heads": heads,
        "head_dim": inner // heads,
        "n_groups": meta.scalar("ssm.group_count"),
        "expand": inner / hidden,
        "use_conv_bias": meta.has("ssm_conv1d.bias"),
        "use_bias": meta.has("ssm_in.bias"),
        "num_attention_heads": None,
    }


def lfm2(meta: Meta, config: Config) -> Config:
    return {
        **_heads_left(meta, config, "conv"),
        "conv_L_cache": meta.scalar("shortconv.l_cache"),
        "conv_bias": meta.has("shortconv.in_proj.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def qwen3next(meta: Meta, config: Config) -> Config:
    """Gated DeltaNet in SSM keys: state size is the key head's dim, groups its heads, rank the value heads."""
    inner, value_heads = meta.scalar("ssm.inner_size"), meta.scalar("ssm.time_step_rank")
    if not isinstance(inner, int) or not isinstance(value_heads, int) or value_heads < 1 or inner % value_heads:
        raise meta.bad("ssm.inner_size", inner, f"it must be a multiple of the {value_heads} value heads")
    shared = meta.scalar("expert_shared_feed_forward_length") or meta.dim("ffn_down_shexp.weight", 0)
    found = {
        "linear_conv_kernel_dim": meta.scalar("ssm.conv_kernel"),
        "linear_key_head_dim": meta.scalar("ssm.state_size"),
        "linear_num_key_heads": meta.scalar("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": inner // value_heads,
        "full_attention_interval": meta.scalar("full_attention_interval") or 4,
        "attention_bias": meta.has("attn_q.bias"),
    }
    return {**found, **expert_keys(meta), "shared_expert_intermediate_size": shared} if meta.scalar("expert_count") else found
