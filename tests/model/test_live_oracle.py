"""Tiny models that the installed transformers builds and runs: a release that changes a layout is noticed here.

The measured rows of test_replay.py belong to one release; these are asked anew on every run, so sizes are small and odd
enough that no two terms of a count coincide.
"""

import importlib.util
from pathlib import Path

import pytest

from kvcli.model.families.table import READERS

pytest.importorskip("transformers")
SPEC = importlib.util.spec_from_file_location("oracle", Path(__file__).resolve().parents[2] / "benchmarks" / "oracle.py")
oracle = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(oracle)

BASE = {
    "vocab_size": 104,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
MAMBA2 = {"mamba_d_conv": 4, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_expand": 2}
TINY = {
    "llama": BASE,
    "mistral": {**BASE, "sliding_window": 9, "head_dim": 20},
    "qwen2": {**BASE, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    "qwen3": {**BASE, "head_dim": 20, "tie_word_embeddings": True},
    "phi3": {**BASE, "sliding_window": 9},
    "gpt2": {"vocab_size": 104, "n_embd": 48, "n_layer": 5, "n_head": 4, "n_positions": 128, "dtype": "float32"},
    "opt": {**BASE, "ffn_dim": 56, "word_embed_proj_dim": 24},
    "bloom": {"vocab_size": 104, "hidden_size": 48, "n_layer": 5, "n_head": 4, "dtype": "bfloat16"},
    "cohere2": {**BASE, "sliding_window": 9, "sliding_window_pattern": 4},
    "gemma3_text": {**BASE, "head_dim": 20, "sliding_window": 9, "num_hidden_layers": 7},
    "gpt_oss": {**BASE, "head_dim": 20, "sliding_window": 9, "num_local_experts": 6, "num_experts_per_tok": 2},
    "mixtral": {**BASE, "num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen3_moe": {**BASE, "head_dim": 20, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [1]},
    "deepseek_v3": {
        **BASE,
        "num_key_value_heads": 4,
        "kv_lora_rank": 24,
        "q_lora_rank": 20,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12,
        "v_head_dim": 16,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 2,
    },
    "mamba2": {
        **{key: value for key, value in BASE.items() if key not in ("intermediate_size", "num_attention_heads", "num_key_value_heads")},
        "state_size": 16,
        "head_dim": 16,
        "num_heads": 6,
        "n_groups": 2,
        "expand": 2,
    },
    "jamba": {
        **BASE,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 5,
        "use_mamba_kernels": False,
    },
    "falcon_h1": {**BASE, **MAMBA2, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "head_dim": 20},
    "qwen3_next": {
        **BASE,
        "head_dim": 20,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "t5": {"vocab_size": 104, "d_model": 48, "d_kv": 20, "d_ff": 56, "num_heads": 4, "num_layers": 3, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("kind", TINY)
def test_a_tiny_model_of_the_installed_release(kind):
    if kind not in READERS:
        pytest.skip(f"no reader for {kind} yet")
    row = oracle.measure({"model_type": kind, **TINY[kind]}, tokens=(1, 8, 9, 10, 33))
    assert all(row["cache_bytes"].values())
    assert row["active_parameters"] is not None
    assert oracle.differences(row) == []


def test_the_comparison_notices_a_difference():
    row = oracle.measure({"model_type": "llama", **BASE}, tokens=(8,))
    row["parameters"] += 1
    row["cache_bytes"]["8"] += 1
    assert len(oracle.differences(row)) == 2


def test_views_count_as_themselves():
    """After a prefill a window layer's tensors are views: w - 1 tokens of a longer storage."""
    held = oracle.measure({"model_type": "mistral", **TINY["mistral"]}, tokens=(33,))["cache_bytes"]["33"]
    assert held == 5 * 2 * 2 * 20 * (9 - 1) * 2
