"""GGUF architectures: the model type of each, and its metadata in the Hugging Face names that the family readers know.

Key names are those of llama.cpp (`llama-arch.cpp`) and of the `gguf` package; what files leave out is read from their tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvcli.model.gguf import gemma as gguf_gemma
from kvcli.model.gguf import mixers as gguf_mixers
from kvcli.model.gguf.meta import Meta, expert_keys, layer_kinds

Config = dict[str, Any]

#: GGUF key after the architecture's prefix -> config key of nearly all readers
COMMON = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "rope.freq_base": "rope_theta",
}
#: Per layer in some architectures, whose own function reads them there.
MAYBE_BY_LAYER = {
    "feed_forward_length": "intermediate_size",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.sliding_window": "sliding_window",
}


class Architecture(NamedTuple):
    """`more` completes the config; `by_layer` names the keys of MAYBE_BY_LAYER that it reads itself.

    `runs`: the built-in transformer knows the file's layout.
    """

    model_type: str
    more: Callable[[Meta, Config], Config] | None = None
    by_layer: tuple[str, ...] = ()
    runs: bool = False


def _qwen(meta: Meta, config: Config) -> Config:
    if config.get("sliding_window") is None:
        return {"use_sliding_window": False}
    return {"use_sliding_window": True, "max_window_layers": 0}


def _gpt2(meta: Meta, config: Config) -> Config:
    names = {
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_attention_heads": "n_head",
    }
    return {new: config[old] for old, new in names.items() if old in config}


def _llama(meta: Meta, config: Config) -> Config:
    """Mistral files call themselves llama, and so do Mixtral's, which have experts."""
    if meta.scalar("expert_count"):
        return {"model_type": "mixtral", **expert_keys(meta, "num_local_experts", width="expert_width")}
    return {"model_type": "mistral"} if config.get("sliding_window") is not None else {}


def _gemma(meta: Meta, config: Config) -> Config:
    return layer_kinds(meta)


def _qwen2moe(meta: Meta, config: Config) -> Config:
    shared = meta.scalar("expert_shared_feed_forward_length") or meta.dim("ffn_down_shexp.weight", 0)
    return {**_qwen(meta, config), **expert_keys(meta), "shared_expert_intermediate_size": shared, "qkv_bias": meta.has("attn_q.bias")}


def _qwen3moe(meta: Meta, config: Config) -> Config:
    return {**_qwen(meta, config), **expert_keys(meta)}


def _starcoder2(meta: Meta, config: Config) -> Config:
    return {"use_bias": meta.has("attn_output.bias")}


def _stablelm(meta: Meta, config: Config) -> Config:
    return {
        "use_qkv_bias": meta.has("attn_q.bias"),
        "qk_layernorm": meta.has("attn_q_norm.weight"),
        "use_parallel_residual": not meta.has("ffn_norm.weight"),
    }


def _command_r(meta: Meta, config: Config) -> Config:
    return {"use_qk_norm": meta.has("attn_q_norm.weight")}


def _olmo2(meta: Meta, config: Config) -> Config:
    return {} if config.get("sliding_window") is None else {"model_type": "olmo3", **layer_kinds(meta)}


def _gpt_oss(meta: Meta, config: Config) -> Config:
    return {**expert_keys(meta, "num_local_experts", width="intermediate_size"), **layer_kinds(meta)}


def _glm4moe(meta: Meta, config: Config) -> Config:
    return {
        **expert_keys(meta, "n_routed_experts"),
        "n_shared_experts": meta.scalar("expert_shared_count"),
        "first_k_dense_replace": meta.scalar("leading_dense_block_count"),
        "use_qk_norm": meta.has("attn_q_norm.weight"),
        "num_nextn_predict_layers": meta.mtp_layers,
    }


def _latent(meta: Meta, config: Config) -> Config:
    """`key_length_mla` is the width of an expanded key, its rotary part included; files before it keep that in `key_length`."""
    rotary = meta.scalar("rope.dimension_count")
    key = meta.scalar("attention.key_length_mla") or meta.scalar("attention.key_length")
    found = {
        "kv_lora_rank": meta.scalar("attention.kv_lora_rank"),
        "q_lora_rank": meta.scalar("attention.q_lora_rank") or None,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": key - rotary if isinstance(key, int) and isinstance(rotary, int) else None,
        "v_head_dim": meta.scalar("attention.value_length_mla") or meta.scalar("attention.value_length"),
        "num_key_value_heads": config.get("num_attention_heads"),
        "head_dim": None,
    }
    for name, value in found.items():
        # MiniCPM3 leaves out the width of values, which is then H / A
        if value is None and name not in ("q_lora_rank", "head_dim") and (name, meta.architecture) != ("v_head_dim", "minicpm3"):
            raise meta.bad("attention", "without keys of latent attention", f"its reader needs {name}")
    return found


def _deepseek2(meta: Meta, config: Config) -> Config:
    return {
        **_latent(meta, config),
        **expert_keys(meta, "n_routed_experts"),
        "n_shared_experts": meta.scalar("expert_shared_count") or 0,
        "first_k_dense_replace": meta.scalar("leading_dense_block_count") or 0,
        "num_nextn_predict_layers": meta.mtp_layers,
    }


def _granitemoe(meta: Meta, config: Config) -> Config:
    shared = meta.scalar("expert_shared_feed_forward_length")
    more = {"model_type": "granitemoeshared", "shared_intermediate_size": shared} if shared else {}
    return {**expert_keys(meta, "num_local_experts", width="expert_width"), **more}


def _falcon(meta: Meta, config: Config) -> Config:
    """The new decoder has a second norm; before it one KV head or one a query head."""
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads") or config.get("num_attention_heads")
    return {
        "new_decoder_architecture": meta.has("attn_norm_2.weight"),
        "num_kv_heads": kv_heads,
        "multi_query": kv_heads != heads,
        "bias": meta.has("attn_qkv.bias"),
        "ffn_hidden_size": config.get("intermediate_size"),
    }


def _exaone4(meta: Meta, config: Config) -> Config:
    """Only the 32B slides. Files without a pattern follow the class's rule of four."""
    return layer_kinds(meta) if config.get("sliding_window") is not None else {"layer_types": ["full_attention"] * meta.layers}


def _bloom(meta: Meta, config: Config) -> Config:
    return {"n_head": config.get("num_attention_heads"), "n_layer": meta.layers}


def _mpt(meta: Meta, config: Config) -> Config:
    kv_heads = config.get("num_key_value_heads")
    attention = {"qk_ln": meta.has("attn_q_norm.weight"), **({"kv_n_heads": kv_heads} if kv_heads else {})}
    return {
        "d_model": config.get("hidden_size"),
        "n_heads": config.get("num_attention_heads"),
        "n_layers": meta.layers,
        "max_seq_len": config.get("max_position_embeddings"),
        "no_bias": not meta.has("attn_qkv.bias"),
        "attn_config": {**attention, "alibi": "position_embd.weight" not in meta.tensors},
    }


def _olmoe(meta: Meta, config: Config) -> Config:
    return expert_keys(meta, width="expert_width")


def _llama4(meta: Meta, config: Config) -> Config:
    """Chunks of `attention.chunk_size`, or of the 8,192 that llama.cpp assumes; every fourth layer is full."""
    sparse = [layer for layer in range(meta.layers) if f"blk.{layer}.ffn_gate_inp.weight" in meta.tensors]
    return {
        "attention_chunk_size": meta.scalar("attention.chunk_size") or 8192,
        "moe_layers": sparse,
        **expert_keys(meta, "num_local_experts", width="intermediate_size"),
        "intermediate_size_mlp": config.get("intermediate_size"),
    }


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", _llama, runs=True),
    "qwen2": Architecture("qwen2", _qwen, runs=True),
    "qwen3": Architecture("qwen3", _qwen, runs=True),
    "phi3": Architecture("phi3", runs=True),
    "gpt2": Architecture("gpt2", _gpt2, runs=True),
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2", _gemma),
    "gemma3": Architecture("gemma3_text", _gemma),
    "gemma3n": Architecture("gemma3n_text", gguf_gemma.gemma3n, ("feed_forward_length",)),
    "gemma4": Architecture("gemma4_text", gguf_gemma.gemma4, ("feed_forward_length", "attention.head_count_kv")),
    "qwen2moe": Architecture("qwen2_moe", _qwen2moe),
    "qwen3moe": Architecture("qwen3_moe", _qwen3moe),
    "qwen2vl": Architecture("qwen2", _qwen),
    "qwen3vl": Architecture("qwen3", _qwen),
    "qwen3vlmoe": Architecture("qwen3_moe", _qwen3moe),
    "qwen3next": Architecture("qwen3_next", gguf_mixers.qwen3next),
    "qwen35": Architecture("qwen3_5_text", gguf_mixers.qwen3next),
    "qwen35moe": Architecture("qwen3_5_moe_text", gguf_mixers.qwen3next),
    "phi2": Architecture("phi"),
    "starcoder2": Architecture("starcoder2", _starcoder2),
    "stablelm": Architecture("stablelm", _stablelm),
    "command-r": Architecture("cohere", _command_r),
    "cohere2": Architecture("cohere2", _gemma),
    "olmo2": Architecture("olmo2", _olmo2),
    "gpt-oss": Architecture("gpt_oss", _gpt_oss),
    "glm4": Architecture("glm4"),
    "glm4moe": Architecture("glm4_moe", _glm4moe),
    "deepseek2": Architecture("deepseek_v3", _deepseek2),
    "minicpm3": Architecture("minicpm3", _latent),
    "granite": Architecture("granite"),
    "granitemoe": Architecture("granitemoe", _granitemoe),
    "granitehybrid": Architecture("granitemoehybrid", gguf_mixers.granite_hybrid, ("attention.head_count_kv",)),
    "falcon": Architecture("falcon", _falcon),
    "falcon-h1": Architecture("falcon_h1", gguf_mixers.falcon_h1),
    "mamba": Architecture("mamba", gguf_mixers.pure_mamba, ("attention.head_count_kv", "feed_forward_length")),
    "mamba2": Architecture("mamba2", gguf_mixers.pure_mamba2, ("attention.head_count_kv", "feed_forward_length")),
    "jamba": Architecture("jamba", gguf_mixers.jamba, ("attention.head_count_kv",)),
    "nemotron": Architecture("nemotron"),
    "nemotron_h": Architecture("nemotron_h", gguf_mixers.nemotron_h, ("feed_forward_length", "attention.head_count_kv")),
    "exaone4": Architecture("exaone4", _exaone4),
    "olmo": Architecture("olmo"),
    "olmoe": Architecture("olmoe", _olmoe),
    "arcee": Architecture("arcee"),
    "seed_oss": Architecture("seed_oss"),
    "smollm3": Architecture("smollm3"),
    "ernie4_5": Architecture("ernie4_5"),
    "hunyuan-dense": Architecture("hunyuan_v1_dense"),
    "lfm2": Architecture("lfm2", gguf_mixers.lfm2, ("attention.head_count_kv",)),
    "bloom": Architecture("bloom", _bloom),
    "gptneox": Architecture("gpt_neox"),
    "mpt": Architecture("mpt", _mpt),
    "llama4": Architecture("llama4_text", _llama4),
}
