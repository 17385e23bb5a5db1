"""Latent attention with an indexer, dots3-note and MiniMax-M3: against transformers' own models, and worked numbers."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, MistralLarge4ForConditionalGeneration

from kvcli.dtypes import PLAIN
from kvcli.errors import BadInput
from kvcli.model.cache_records import Attention
from kvcli.model.latent_records import Latent

_found = importlib.util.spec_from_file_location("latent_oracle", Path(__file__).with_name("latent_oracle.py"))
oracle = importlib.util.module_from_spec(_found)
sys.modules["latent_oracle"] = oracle
_found.loader.exec_module(oracle)

TINY = {
    "vocab_size": 96,
    "pad_token_id": 0,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
    "max_position_embeddings": 128,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "index_head_dim": 24,
    "index_n_heads": 2,
    "index_topk": 5,
}
DOTS = TINY | {
    "head_dim": 32,
    "sliding_window": 4,
    "shared_experts_intermediate_size": 24,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 8,
    "swa_kv_lora_rank": 24,
    "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 12,
    "swa_v_head_dim": 6,
}
M3 = {
    "vocab_size": 96,
    "pad_token_id": 0,
    "hidden_size": 32,
    "intermediate_size": 16,
    "dense_intermediate_size": 40,
    "shared_intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rotary_dim": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "index_n_heads": 2,
    "index_head_dim": 12,
    "index_block_size": 2,
    "index_topk_blocks": 2,
    "max_position_embeddings": 128,
}
SPARSE = ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"]
SHARED = ["full", "shared", "full", "shared"]
CASES = [
    ("deepseek_v32", TINY),
    ("deepseek_v32", {**TINY, "first_k_dense_replace": 1, "attention_bias": True, "tie_word_embeddings": True}),
    ("deepseek_v32", {**TINY, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"], "num_experts": 4}),
    ("glm_moe_dsa", TINY),
    ("glm_moe_dsa", {**TINY, "indexer_types": SHARED, "first_k_dense_replace": 1, "attention_bias": True}),
    ("glm_moe_dsa", {**TINY, "index_topk_pattern": "FSSF", "index_topk_freq": 3}),
    ("glm_moe_dsa", {**TINY, "index_topk_pattern": SHARED}),
    ("glm_moe_dsa", {**TINY, "num_hidden_layers": 8, "index_topk_freq": 3, "index_skip_topk_offset": 2}),
    ("glm_moe_dsa", {**TINY, "num_hidden_layers": 8, "index_topk_freq": 3}),
    ("axk2", TINY),
    ("axk2", {**TINY, "gated_norm_rank": 3, "first_k_dense_replace": 2, "attention_bias": True, "tie_word_embeddings": True}),
    ("axk2", {**TINY, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"]}),
    ("hy_v4", TINY),
    ("hy_v4", {**TINY, "num_hidden_layers": 6, "hc_mult": 3, "attention_bias": True, "tie_word_embeddings": True}),
    ("hy_v4", {**TINY, "indexer_types": SHARED, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"]}),
    ("dots3_note_text", DOTS),
    ("dots3_note_text", {**DOTS, "use_dsa": False, "attention_bias": True, "tie_word_embeddings": True}),
    ("dots3_note_text", {**DOTS, "use_sliding_window": False, "first_k_dense_replace": 2, "moe_shared_expert_intermediate_size": 8}),
    ("dots3_note_text", {**DOTS, "layer_types": ["sliding_attention", "full_attention"] * 2, "moe_layer_freq": [0, 1, 0, 1]}),
    ("dots3_note_text", {**DOTS, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"], "sliding_window": 6}),
    ("minimax_m3_vl_text", M3),
    ("minimax_m3_vl_text", {**M3, "layer_types": SPARSE, "mlp_layer_types": ["dense", "sparse", "sparse"]}),
    (
        "minimax_m3_vl_text",
        {
            **M3,
            "moe_layer_freq": [0, 0, 1],
            "tie_word_embeddings": True,
            "sparse_attention_config": {"sparse_attention_freq": [0, 1, 1], "sparse_index_dim": 16, "sparse_num_index_heads": 2},
        },
    ),
]


@pytest.mark.parametrize(("model_type", "config"), CASES)
def test_transformers_builds_and_caches_the_same(model_type, config):
    oracle.agrees(model_type, config, (1, 3, 9))


@pytest.mark.parametrize("model_type", ["deepseek_v32", "glm_moe_dsa", "axk2", "hy_v4", "dots3_note_text", "minimax_m3_vl_text"])
def test_absent_keys_take_the_class_defaults(model_type):
    oracle.same_defaults(model_type)


LARGE4 = [
    TINY,
    {**TINY, "no_rope_layer_interval": 2, "attention_bias": True, "first_k_dense_replace": 2},
    {**TINY, "no_rope_layers": [1, 0, 1, 0], "kv_source_layers": [0, 1, 0, 1], "attention_bias": True},
    {**TINY, "kv_source_layers": [0, 1, 1, 0], "no_rope_layers": [1, 1, 1, 1], "indexer_types": ["full", "full", "shared", "full"]},
]


@pytest.mark.parametrize("config", LARGE4)
def test_mistral_large4_is_what_transformers_builds_inside_its_multimodal_model(config):
    inner = {key: value for key, value in config.items() if key != "q_lora_rank"}
    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "patch_size": 14, "image_size": 28}
    made = AutoConfig.for_model("mistral_large4", text_config=inner, vision_config={"model_type": "pixtral", **tower})
    made._attn_implementation = "eager"
    model = MistralLarge4ForConditionalGeneration(made).to(torch.bfloat16).eval()
    for file in (oracle.spec("mistral_large4", {"text_config": inner}), oracle.spec("mistral_large4_text", inner)):
        assert file.parameters == oracle.unique_parameters(model.model.language_model, model.lm_head)
        for tokens, held in oracle.measured(model, 6, 2).items():
            assert oracle.plan(file, tokens).stored_bytes == held


def test_mistral_large4_defaults():
    with torch.device("meta"):
        model = MistralLarge4ForConditionalGeneration(AutoConfig.for_model("mistral_large4"))
    made = oracle.spec("mistral_large4")
    assert made.parameters == oracle.unique_parameters(model.model.language_model, model.lm_head) == 1_050_118_202_880
    assert oracle.plan(made, 64, "ideal").bytes_per_token == (54 * 576 + 18 * 512 + 72 * 128) * 2 == 99_072


GLM_5_2 = oracle.spec("glm_moe_dsa", index_topk_freq=4, index_skip_topk_offset=3)


@pytest.mark.parametrize(
    ("made", "bytes_per_token"),
    [
        (oracle.spec("deepseek_v32"), 85_888),
        (oracle.spec("glm_moe_dsa"), 109_824),
        (GLM_5_2, 95_232),
        (oracle.spec("hy_v4"), (34 * 576 + 10 * 128) * 2),
        (oracle.spec("axk2"), 48 * (128 + 32 + 128) * 2),
        (oracle.spec("minimax_m3_vl", {"text_config": {"layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57}}), 137_472),
    ],
)
def test_bytes_of_a_token(made, bytes_per_token):
    assert oracle.plan(made, 4096, "ideal").bytes_per_token == bytes_per_token
    assert oracle.plan(made, 4096, "ideal").needed_bytes == bytes_per_token * 4096


def test_glm_5_2_runs_an_indexer_in_21_of_78_layers():
    assert sum(row.count for row in oracle.plan(GLM_5_2, 1, "ideal").rows) == 78
    assert sum(group.count for group in GLM_5_2.groups if group.records[0].index_dim) == 21


def test_a_step_reads_the_chosen_rows_and_all_index_keys():
    """min(n, index_topk) rows of 576 elements and n index keys of 128 in every layer."""
    made = oracle.spec("deepseek_v32")
    assert oracle.plan(made, 1000, "ideal").read_bytes_per_step == 61 * 1000 * (576 + 128) * 2
    assert oracle.plan(made, 100_000, "ideal").read_bytes_per_step == 61 * (2048 * 576 + 100_000 * 128) * 2


def test_index_flops_are_capped_for_rows_and_not_for_scores():
    record = Latent(2, 16, 8, 6, 10, index_dim=24, index_heads=3, index_topk=5)
    assert record.step_flops(9, 0) == 2 * 2 * (16 + 8 + 16) * 5 + 2 * 3 * 24 * 9
    assert record.pass_flops(0, 7, 0) == 2 * 2 * (6 + 8 + 10) * (1 + 2 + 3 + 4 + 5 + 5 + 5) + 2 * 3 * 24 * 28


def test_minimax_m3_reads_the_chosen_blocks():
    made = oracle.spec("minimax_m3_vl_text", M3, layer_types=SPARSE)
    record = made.groups[0].records[0]
    assert isinstance(record, Attention)
    assert record.read_bytes(50, oracle.BF16) == 4 * 2 * (8 + 8) * 2 + 50 * 12 * 2
    assert record.step_flops(50, 0) == 2 * 4 * 16 * 4 + 2 * 2 * 12 * 50


DOTS_DEFAULT = oracle.spec("dots3_note")


def test_dots3_note_has_two_shapes_and_float32_index_keys():
    whole, window = 13 * (576 * 2 + 128 * 4), 33 * 1088 * 2
    for tokens in (1, 511, 512, 4096):
        assert oracle.plan(DOTS_DEFAULT, tokens, "ideal").needed_bytes == whole * tokens + window * min(tokens, 512)
        assert oracle.plan(DOTS_DEFAULT, tokens).stored_bytes == whole * tokens + window * min(tokens, 511)
    assert {group.records[0].index_dtype for group in DOTS_DEFAULT.groups} == {None, PLAIN["fp32"]}


def test_dots3_note_in_its_three_spellings():
    """Keys at the top level with `swa_` names, in `text_config`, and re-saved with `per_layer_config`."""
    flat = oracle.spec("dots3_note", DOTS)
    nested = oracle.spec("dots3_note", {"text_config": DOTS})
    saved = AutoConfig.for_model("dots3_note_text", **DOTS).to_dict()
    resaved = oracle.spec("dots3_note_text", {**saved, "dtype": "bfloat16"})
    assert "per_layer_config" in saved
    assert flat.groups == nested.groups == resaved.groups
    assert flat.parameters == resaved.parameters


@pytest.mark.parametrize(
    ("model_type", "changes", "named"),
    [
        ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank"),
        ("deepseek_v32", {"layer_types": ["full_attention"] * 61}, "layer_types"),
        ("glm_moe_dsa", {"indexer_types": ["whole"] * 78}, "indexer_types"),
        ("glm_moe_dsa", {"indexer_types": ["shared"] * 78}, "indexer_types"),
        ("glm_moe_dsa", {"index_topk_pattern": "FX" * 39}, "index_topk_pattern"),
        ("glm_moe_dsa", {"index_topk_pattern": "FS"}, "index_topk_pattern"),
        ("hy_v4", {"indexer_types": ["full"]}, "indexer_types"),
        ("mistral_large4_text", {"kv_source_layers": [0, 0, 1] + [0] * 69}, "kv_source_layers"),
        ("mistral_large4_text", {"kv_source_layers": [1] * 72}, "kv_source_layers"),
        ("dots3_note", {"layer_types": ["linear_attention"] * 46}, "layer_types"),
        ("dots3_note", {"per_layer_config": {"00": {"n_routed_experts": 3}}}, "per_layer_config"),
        ("dots3_note", {"per_layer_config": {"first": {}}}, "per_layer_config"),
        ("dots3_note", {"q_lora_rank": None}, "q_lora_rank"),
        ("minimax_m3_vl_text", {"layer_types": ["sliding_attention"] * 60}, "layer_types"),
        ("minimax_m3_vl_text", {"num_experts_per_tok": 129}, "num_experts_per_tok"),
    ],
)
def test_what_no_model_of_the_family_has_is_refused(model_type, changes, named):
    with pytest.raises(BadInput, match=named):
        oracle.spec(model_type, changes)
