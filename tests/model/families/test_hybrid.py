"""Recurrent and hybrid families against transformers' own models: tiny ones on the CPU, class defaults on the meta device."""

import importlib.util
from pathlib import Path

import pytest

from kvcli.errors import BadInput, NotModelled

_found = importlib.util.spec_from_file_location("hybrid_oracle", Path(__file__).with_name("hybrid_oracle.py"))
oracle = importlib.util.module_from_spec(_found)
_found.loader.exec_module(oracle)
active, built, cached, parameters, spec, stored = (
    getattr(oracle, name) for name in ("active", "built", "cached", "parameters", "spec", "stored")
)

BASE = {"hidden_size": 32, "num_hidden_layers": 4, "vocab_size": 64}
HEADS = {**BASE, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_d_conv": 3, "mamba_chunk_size": 4}
DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 3,
}
LATENT = {"kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
KDA = {**HEADS, **LATENT, **MOE, "num_key_value_heads": 4, "linear_head_dim": 6, "linear_num_heads": 3, "linear_conv_kernel_dim": 3}
ONE_GROUP = {"n_group": 1, "topk_group": 1}
NEMOTRON = {
    **HEADS,
    "head_dim": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "ssm_state_size": 8,
    "n_groups": 2,
    "conv_kernel": 3,
    "chunk_size": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 28,
}
INKLING = {
    **HEADS,
    "head_dim": 8,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 6,
    "sliding_window_size": 5,
    "d_rel": 4,
    "rel_extent": 32,
    "conv_kernel_size": 3,
    "moe_intermediate_size": 20,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
}
MIXED = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]

#: model_type, keys: each switches what its reader looks at
TINY = [
    ("mamba", {**BASE, "state_size": 8, "conv_kernel": 3}),
    ("mamba", {**BASE, "state_size": 8, "use_bias": True, "use_conv_bias": False, "time_step_rank": 5, "tie_word_embeddings": False}),
    ("mamba", {**BASE, "state_size": 8, "expand": 3, "intermediate_size": 40}),
    ("falcon_mamba", {**BASE, "state_size": 8, "expand": 16, "intermediate_size": 40, "use_bias": True}),
    ("mamba2", {**BASE, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 4, "conv_kernel": 3}),
    ("mamba2", {**BASE, "num_heads": 4, "head_dim": 24, "state_size": 8, "expand": 3, "n_groups": 1, "chunk_size": 4, "use_bias": True}),
    ("mamba2", {**BASE, "num_heads": 8, "head_dim": 8, "use_conv_bias": False, "tie_word_embeddings": True, "chunk_size": 4}),
    ("jamba", {**HEADS, "num_experts": 4, "mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1}),
    (
        "jamba",
        {
            **HEADS,
            "num_experts": 1,
            "attn_layer_offset": 2,
            "mamba_dt_rank": 3,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "mamba_expand": 3,
        },
    ),
    ("jamba", {**HEADS, "num_experts": 4, "expert_layer_period": 3, "expert_layer_offset": 0, "head_dim": 6, "attn_layer_offset": 0}),
    ("bamba", {**HEADS, **MAMBA2}),
    ("bamba", {**HEADS, **MAMBA2, "attn_layer_indices": [1, 3], "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True}),
    ("bamba", {**HEADS, **MAMBA2, "attn_layer_indices": [0], "mamba_conv_bias": False, "tie_word_embeddings": True, "head_dim": 6}),
    ("granitemoehybrid", {**HEADS, **MAMBA2, "layer_types": ["mamba", "attention", "mamba", "mamba"], "num_local_experts": 4}),
    ("granitemoehybrid", {**HEADS, **MAMBA2, "shared_intermediate_size": 24, "num_local_experts": 0, "mamba_d_head": 8}),
    ("granitemoehybrid", {**HEADS, **MAMBA2, "layer_types": ["attention"] * 4, "attention_bias": True, "num_key_value_heads": None}),
    ("granitemoehybrid", {**HEADS, **MAMBA2, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_expand": 3}),
    ("falcon_h1", {**HEADS, **MAMBA2, "mamba_d_ssm": 48}),
    ("falcon_h1", {**HEADS, **MAMBA2, "mamba_d_ssm": None, "mamba_rms_norm": True, "projectors_bias": True, "mlp_bias": True}),
    ("falcon_h1", {**HEADS, **MAMBA2, "mamba_d_ssm": 24, "mamba_proj_bias": True, "attention_bias": True, "mamba_conv_bias": False}),
    ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "M*-E"}),
    ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "MEM*E", "moe_latent_size": 12, "use_conv_bias": False}),
    ("nemotron_h", {**NEMOTRON, "layers_block_type": ["mamba", "mlp", "attention", "moe"], "mlp_bias": True, "use_bias": True}),
    ("nemotron_h", {**NEMOTRON, "moe_latent_size": 12, "mlp_bias": True, "attention_bias": True, "mamba_ssm_cache_dtype": "bfloat16"}),
    ("nemotron_h", {**NEMOTRON, "n_groups": 1, "mamba_d_conv": 4, "tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("zamba", {**HEADS, "num_hidden_layers": 8, "mamba_d_state": 8, "attn_layer_period": 3, "attn_layer_offset": 1}),
    ("zamba", {**HEADS, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "n_mamba_heads": 4, "attention_head_dim": 10}),
    ("zamba", {**HEADS, "layers_block_type": ["mamba"] * 4, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_dt_rank": 3}),
    ("zamba2", {**HEADS, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 8, "chunk_size": 4}),
    (
        "zamba2",
        {
            **HEADS,
            "num_hidden_layers": 6,
            "layers_block_type": ["hybrid", "hybrid", "mamba", "hybrid", "hybrid", "hybrid"],
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "adapter_rank": 3,
            "add_bias_linear": True,
            "mamba_ngroups": 2,
            "num_key_value_heads": 4,  # the adapters of k and v are as wide as q
            "chunk_size": 4,
        },
    ),
    ("zamba2", {**HEADS, "layers_block_type": ["hybrid", "mamba", "mamba", "mamba"], "num_mem_blocks": 2, "use_conv_bias": False}),
    ("qwen3_next", {**HEADS, **DELTA, **MOE, "shared_expert_intermediate_size": 12}),
    ("qwen3_next", {**HEADS, **DELTA, **MOE, "mlp_only_layers": [1], "decoder_sparse_step": 2, "full_attention_interval": 2}),
    ("qwen3_next", {**HEADS, **DELTA, **MOE, "layer_types": MIXED, "attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3_5_text", {**HEADS, **DELTA, "rope_parameters": {"mrope_section": [1, 1, 0], "rope_type": "default", "rope_theta": 1e4}}),
    ("qwen3_5_text", {**HEADS, **DELTA, "layer_types": MIXED, "attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3_5_moe_text", {**HEADS, **DELTA, **MOE, "shared_expert_intermediate_size": 12, "full_attention_interval": 3}),
    ("olmo_hybrid", {**HEADS}),
    ("olmo_hybrid", {**HEADS, "num_hidden_layers": 3, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "attention_bias": True}),
    ("olmo_hybrid", {**HEADS, "layer_types": MIXED, "linear_key_head_dim": 6, "linear_conv_kernel_dim": 3}),
    ("kimi_linear", {**KDA, "num_hidden_layers": 6}),
    ("kimi_linear", {**KDA, "q_lora_rank": 10, "attention_bias": True, "layer_types": MIXED, "first_k_dense_replace": 2}),
    (
        "kimi_linear",
        {
            **KDA,
            "linear_attn_config": {
                "kda_layers": [1, 3, 4],
                "full_attn_layers": [2],
                "num_heads": 2,
                "head_dim": 10,
                "short_conv_kernel_size": 4,
            },
            "num_shared_experts": 2,
        },
    ),
    ("bailing_hybrid", {**HEADS, **LATENT, **MOE, **ONE_GROUP, "num_key_value_heads": 4, "head_dim": 6, "layer_group_size": 2}),
    (
        "bailing_hybrid",
        {**KDA, **ONE_GROUP, "layer_types": MIXED, "attention_bias": True, "first_k_dense_replace": 1, "n_shared_experts": 3},
    ),
    (
        "bailing_hybrid",
        {
            **KDA,
            **ONE_GROUP,
            "head_dim": 4,
            "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
            "tie_word_embeddings": True,
            "layer_group_size": 3,
        },
    ),
    ("lfm2", {**HEADS, "full_attn_idxs": [1, 3], "block_multiple_of": 16}),
    ("lfm2", {**HEADS, "layer_types": ["conv", "full_attention", "conv", "conv"], "conv_bias": True, "conv_L_cache": 5}),
    ("lfm2", {**HEADS, "block_ff_dim": 40, "block_auto_adjust_ff_dim": False, "tie_embedding": False}),
    ("lfm2", {**HEADS, "full_attn_idxs": [0], "block_ffn_dim_multiplier": 1.7, "block_multiple_of": 8}),
    ("lfm2_moe", {**HEADS, **MOE, "layer_types": ["conv", "full_attention", "conv", "conv"], "num_dense_layers": 1}),
    ("lfm2_moe", {**HEADS, **MOE, "layer_types": ["full_attention", "conv"] * 2, "conv_bias": True, "tie_embedding": False}),
    ("lfm3", {**HEADS, "num_hidden_layers": 6, "sliding_window": 5, "head_dim": 8}),
    ("lfm3", {**HEADS, "use_sandwich_norm": False, "attention_bias": True, "conv_bias": True, "tie_word_embeddings": False}),
    ("lfm3", {**HEADS, "layer_types": ["sliding_attention", "conv"] * 2, "sliding_window": 3, "use_attention_gate": False}),
    ("recurrent_gemma", {**HEADS, "attention_window_size": 5}),
    ("recurrent_gemma", {**HEADS, "lru_width": 40, "conv1d_width": 3, "attention_bias": True, "block_types": ["attention", "recurrent"]}),
    ("rwkv", {**BASE}),
    ("rwkv", {**BASE, "intermediate_size": 40, "tie_word_embeddings": True}),
    ("xlstm", {**BASE, "hidden_size": 128, "num_heads": 4, "chunk_size": 4}),
    ("xlstm", {**BASE, "hidden_size": 128, "num_heads": 4, "v_dim_factor": 0.5, "ffn_proj_factor": 1.3, "use_bias": True}),
    ("xlstm", {**BASE, "hidden_size": 128, "weight_mode": "fused", "ffn_round_up_to_multiple_of": 10, "tie_word_embeddings": True}),
    ("minimax", {**HEADS, "num_local_experts": 4, "block_size": 4}),
    ("minimax", {**HEADS, "layer_types": MIXED, "head_dim": 12, "block_size": 4, "tie_word_embeddings": True}),
    ("minimax", {**HEADS, "sliding_window": 5, "num_experts": 3, "block_size": 4}),
    ("inkling_text", {**INKLING, "dense_mlp_idx": 1}),
    ("inkling_text", {**INKLING, "layer_types": None, "local_layer_ids": [0, 1, 3], "n_shared_experts": 1}),
    ("inkling_text", {**INKLING, "intermediate_size": 12, "dense_intermediate_size": 44, "dense_mlp_idx": 2, "tie_word_embeddings": True}),
    ("inkling2_text", {**INKLING}),
    ("inkling2_text", {**INKLING, "layer_types": None, "num_hidden_layers": 6, "intermediate_size": 24, "sconv_kernel_size": 4}),
    ("zaya", {**BASE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "router_hidden_size": 12, "num_experts": 3}),
    ("zaya", {**BASE, "head_dim": 8, "attention_bias": True, "lm_head_bias": True, "cca_time0": 3, "router_hidden_size": 12}),
    (
        "zaya",
        {
            **BASE,
            "head_dim": 8,
            "layer_types": ["hybrid", "hybrid_sliding"] * 2,
            "sliding_window": 5,
            "tie_word_embeddings": False,
            "num_key_value_heads": 4,
            "router_hidden_size": 12,
        },
    ),
]
#: What the library builds but cannot run: no attention layer in its cache, or states of another width.
ONLY_BUILT = [
    (model_type, keys)
    for model_type, keys in TINY
    if (model_type == "bamba" and "attn_layer_indices" not in keys)
    or (model_type == "granitemoehybrid" and "layer_types" not in keys)
    or (model_type == "zamba" and keys.get("layers_block_type") == ["mamba"] * 4)
    or keys.get("weight_mode") == "fused"
    or "lru_width" in keys
]
TYPES = sorted({model_type for model_type, _ in TINY})

#: States that these classes keep on their modules, not in the cache object.
OUTSIDE = {"recurrent_gemma": ("conv1d_state", "recurrent_states")}


def experts_of(model_type, config):
    """Routed experts, and those a token takes."""
    taken = {"zaya": 1}.get(model_type, 2)
    default = {"granitemoehybrid": 8, "minimax": 8, "zaya": 16}.get(model_type, 4)
    return config.get("num_experts", config.get("num_local_experts", default)) or 1, taken


@pytest.mark.parametrize(("model_type", "keys"), TINY, ids=[f"{t}-{i}" for i, (t, _) in enumerate(TINY)])
def test_a_tiny_model(model_type, keys):
    config = {"model_type": model_type, **keys, "dtype": "bfloat16"}
    runs = (model_type, keys) not in ONLY_BUILT
    model = built({**config, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}, "cpu" if runs else "meta")
    wanted = {tokens: cached(model, tokens, OUTSIDE.get(model_type, ())) for tokens in (1, 4, 9) if runs}
    for read in (spec(config), spec({**model.config.to_dict(), "dtype": "bfloat16"})):
        assert read.parameters == parameters(model)
        assert read.active_parameters == active(model, *experts_of(model_type, keys))
        assert read.num_hidden_layers == model.config.num_hidden_layers
        assert {tokens: stored(read, tokens) for tokens in wanted} == wanted


@pytest.mark.parametrize("model_type", [t for t in TYPES if t != "lfm2_moe"])
def test_class_defaults(model_type):
    assert spec({"model_type": model_type}).parameters == parameters(built({"model_type": model_type}, "meta"))


QWEN3_NEXT_80B = {"model_type": "qwen3_next", "max_position_embeddings": 262144}
JAMBA = {"model_type": "jamba"}
KIMI_48B = {
    "model_type": "kimi_linear",
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
    },
}
GRANITE_4_SMALL = {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "mamba_d_state": 128,
    "layer_types": ["attention" if index in (5, 15, 25, 35) else "mamba" for index in range(40)],
}


@pytest.mark.parametrize(
    ("config", "needed", "state", "kept"),
    [
        # 12 full layers of 2 x 2 x 256; 36 DeltaNets: 3 columns of 8,192 channels in bf16, 32 x 128 x 128 in float32
        (QWEN3_NEXT_80B, 805_306_368, 77_266_944, 77_856_768),
        # 4 x 2 x 8 x 128 x 2 B a token; 28 states of 8,192 channels
        (JAMBA, 16_384 * 32_768, 28 * (3 * 8192 * 2 + 8192 * 16 * 4), 16_515_072),
        (GRANITE_4_SMALL, 536_870_912, 36 * (3 * 8448 * 2 + 8192 * 128 * 4), 36 * (4 * 8448 * 2 + 8192 * 128 * 4)),
        (KIMI_48B, 8_064 * 32_768, 20 * (3 * 12288 * 2 + 32 * 128 * 128 * 4), 20 * 2_195_456),
        # every layer has both: 2 x 8 x 128 x 2 B a token, and 1,024 + 2 x 256 channels
        ({"model_type": "falcon_h1"}, 32 * 4096 * 32_768, 32 * (3 * 1536 * 2 + 1024 * 256 * 4), 32 * (4 * 1536 * 2 + 1024 * 256 * 4)),
        # a window of 256 in layers 4, 8, ..., 20, all tokens in 2, 6, ..., 22; 13 convolutions
        ({"model_type": "lfm3"}, 6 * 2048 * 32_768 + 5 * 2048 * 256, 13 * 6 * 2048 * 2, 13 * 7 * 2048 * 2 - 5 * 2048),
    ],
    ids=["qwen3-next", "jamba", "granite-4-h-small", "kimi-linear", "falcon-h1", "lfm3"],
)
def test_worked_numbers(config, needed, state, kept):
    model = spec(config)
    assert stored(model, 32_768, "ideal") == needed + state
    assert stored(model, 32_768) == needed + kept


def test_falcon_h1_has_two_records_a_layer():
    (group,) = spec({"model_type": "falcon_h1"}).groups
    assert [record.kind for record in group.records] == ["full_attention", "linear_attention"]


def test_kimi_layer_numbers_start_at_one():
    model = spec(KIMI_48B)
    kinds = [model.groups[number].records[0].kind for number in model.order]
    assert [index for index, kind in enumerate(kinds) if kind == "latent_attention"] == [3, 7, 11, 15, 19, 23, 26]


def test_kv_heads_of_latent_layers_do_not_matter():
    assert stored(spec({**KIMI_48B, "num_key_value_heads": 1}), 99) == stored(spec(KIMI_48B), 99)


def test_a_longer_list_of_layers_carries_entries_of_mtp_blocks():
    config = {"model_type": "qwen3_5_text", **HEADS, **DELTA, "layer_types": [*MIXED, "full_attention"]}
    assert spec(config).num_hidden_layers == 4


def test_a_pattern_counts_the_layers():
    model = spec({"model_type": "nemotron_h", **NEMOTRON, "num_hidden_layers": 9, "hybrid_override_pattern": "M*-E"})
    assert [len(model.groups[number].records) for number in model.order] == [1, 1, 0, 0]


def test_a_state_type_of_the_file_is_for_the_ideal_engine():
    plain, half = ({"model_type": "nemotron_h", **NEMOTRON, "mamba_ssm_cache_dtype": name} for name in ("float32", "bfloat16"))
    states = 4 * 6 * 8
    assert stored(spec(plain), 3, "ideal") - stored(spec(half), 3, "ideal") == 2 * states
    assert stored(spec(plain), 3) == stored(spec(half), 3)


@pytest.mark.parametrize("wrapper", ["qwen3_5", "qwen3_5_moe", "nemotron_h_omni", "lfm2_vl", "lfm3_vl", "inkling2", "inkling_mm_model"])
def test_wrappers(wrapper):
    inner = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "nemotron_h_omni": "nemotron_h", "lfm2_vl": "lfm2"}
    inner |= {"lfm3_vl": "lfm3", "inkling2": "inkling2_text", "inkling_mm_model": "inkling_text"}
    text = {"num_hidden_layers": 2, "vocab_size": 99}
    assert spec({"model_type": wrapper, "text_config": text}).parameters == spec({"model_type": inner[wrapper], **text}).parameters


def test_shared_blocks_of_zamba_count_once_and_work_each_time():
    keys = {**HEADS, "num_hidden_layers": 3, "num_key_value_heads": 4, "mamba_d_state": 8}
    once, twice = (
        spec({"model_type": "zamba2", **keys, "layers_block_type": kinds})
        for kinds in (["hybrid", "mamba", "mamba"], ["hybrid", "hybrid", "mamba"])
    )
    (record, _), adapters = twice.groups[1].records, 128 * (32 + 2 * 48) + 32 * 32
    assert twice.parameters - once.parameters == adapters
    block = 3 * 64 * 64 + 64 * 32 + 3 * 32 * 48
    assert record.token_flops == 2 * block == 2 * once.shared
    plain = once.groups[0].records[0]
    assert record.step_flops(5, 0) - plain.step_flops(5, 0) == 2 * block
    assert record.needed_bytes(5, oracle.KvTypes(oracle.known("bf16"), oracle.known("bf16"))) == 2 * 4 * 16 * 2 * 5


@pytest.mark.parametrize("model_type", ["mamba", "mamba2", "xlstm", "recurrent_gemma"])
def test_a_file_without_a_longest_context(model_type):
    model = spec({"model_type": model_type})
    assert model.max_context_tokens == 2**20
    assert "context_assumed" in [notice.code for notice in model.notices]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "mamba2", "num_heads": 7}, "num_heads"),
        ({"model_type": "jamba", "attn_layer_offset": 9}, "attn_layer_offset"),
        ({"model_type": "bamba", "mamba_n_heads": 7}, "mamba_n_heads"),
        ({"model_type": "falcon_h1", "mamba_d_head": 5}, "mamba_d_head"),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba"] * 31 + ["rwkv"]}, "layer_types"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*X"}, "hybrid_override_pattern"),
        ({"model_type": "nemotron_h", "layers_block_type": ["mamba", "conv"]}, "layers_block_type"),
        ({"model_type": "nemotron_h", "attention_head_dim": 64}, "attention_head_dim"),
        ({"model_type": "nemotron_h", "mamba_ssm_cache_dtype": "int4"}, "mamba_ssm_cache_dtype"),
        ({"model_type": "zamba2", "num_hidden_layers": 10}, "num_hidden_layers"),
        ({"model_type": "zamba2", "mamba_headdim": 64}, "mamba_headdim"),
        ({"model_type": "qwen3_next", "layer_types": ["sliding_attention"] * 48}, "layer_types"),
        ({"model_type": "qwen3_5_text", "attn_output_gate": False}, "attn_output_gate"),
        ({"model_type": "qwen3_5_moe_text", "num_experts_per_tok": 999}, "num_experts_per_tok"),
        ({"model_type": "bailing_hybrid", "q_lora_rank": 99}, "q_lora_rank"),
        ({**KIMI_48B, "num_hidden_layers": 28}, "full_attn_layers"),
        ({"model_type": "lfm2_moe"}, "layer_types"),
        ({"model_type": "rwkv", "attention_hidden_size": 99}, "attention_hidden_size"),
        ({"model_type": "recurrent_gemma", "block_types": ["conv"]}, "block_types"),
        ({"model_type": "xlstm", "qk_dim_factor": 0.51}, "hidden_size"),
        ({"model_type": "minimax", "attn_type_list": [2] * 32}, "attn_type_list"),
        ({"model_type": "minimax", "shared_intermediate_size": 8}, "shared_intermediate_size"),
        ({"model_type": "zaya", "num_experts_per_tok": 2}, "num_experts_per_tok"),
        ({"model_type": "bamba", "attn_layer_indices": [1], "layers_block_type": ["mamba"] * 32}, "attn_layer_indices"),
    ],
)
def test_what_cannot_be_is_refused(config, key):
    with pytest.raises(BadInput, match=key):
        spec(config)


def test_overrides_layer_by_layer_are_not_guessed_at():
    with pytest.raises(NotModelled):
        spec({"model_type": "jamba", "per_layer_config": {"00": {"head_dim": 64}}})


GLM = {
    **KDA,
    "num_hidden_layers": 6,
    "qk_rope_head_dim": 0,
    "q_lora_rank": 10,
    "n_routed_experts": 4,
    "index_topk": 4,
    "index_kpool": 2,
    "index_head_dim": 6,
    "index_n_heads": 2,
    "hc_mult": 2,
}
GLM_TINY = [
    {**GLM},
    {**GLM, "attention_bias": True, "index_topk_freq": 2, "layer_types": ["full_attention"] * 4 + ["linear_attention"] * 2},
    {
        **GLM,
        "mlp_layer_types": ["sparse", "dense"] * 3,
        "indexer_types": ["full", "shared"] * 3,
        "layer_types": ["indexed_attention"] * 6,
        "linear_attn_config": {"num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4},
    },
]


@pytest.mark.parametrize("keys", GLM_TINY)
def test_a_tiny_glm(keys):
    """Only its multimodal class has a head, so the text model is built and the head counted."""
    config = {"model_type": "glm5_next_text", **keys, "dtype": "bfloat16"}
    model = built({**config, "pad_token_id": 0}, auto="AutoModel")
    for read in (spec(config), spec({**model.config.to_dict(), "dtype": "bfloat16"})):
        assert read.parameters == parameters(model) + 64 * 32
        for tokens in (1, 4, 9):
            assert stored(read, tokens) == cached(model, tokens), tokens


def test_glm_class_defaults():
    model = built({"model_type": "glm5_next_text"}, "meta", auto="AutoModel")
    assert spec({"model_type": "glm5_next"}).parameters == parameters(model) + 154880 * 4096


def test_pooled_index_keys():
    """One key for 16 tokens, a key and a gate for each of the 7 in the open pool, which are attended over beside 2,048."""
    model = spec({"model_type": "glm5_next", "vocab_size": 99})
    assert model.vocab_size == 99  # text-only files are flat
    record = next(group.records[0] for group in model.groups if group.records[0].kind == "latent_attention")
    kv = oracle.KvTypes(oracle.known("bf16"), oracle.known("bf16"))
    assert record.needed_bytes(4103, kv) == 2 * (512 * 4103 + 128 * (256 + 14))
    assert record.read_bytes(4103, kv) == 2 * (512 * (2048 + 7) + 128 * (256 + 14))
    for small in (record._replace(index_topk=8, index_pool=4), record._replace(index_topk=5, index_pool=1)):
        for cached_tokens, new in ((0, 30), (7, 9), (11, 1), (3, 0)):
            absorbed = small._replace(nope_dim=10**6)  # never the cheaper form
            steps = sum(absorbed.step_flops(tokens, 0) for tokens in range(cached_tokens + 1, cached_tokens + new + 1))
            assert absorbed.pass_flops(cached_tokens, new, 0) == steps
