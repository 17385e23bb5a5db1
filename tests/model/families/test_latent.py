"""Latent attention and LongCat: against transformers' own models, worked numbers, and what a file may say wrongly."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from kvcli.errors import BadInput, KvcliError, NotModelled
from kvcli.model.latent_records import Latent

_found = importlib.util.spec_from_file_location("latent_oracle", Path(__file__).with_name("latent_oracle.py"))
oracle = importlib.util.module_from_spec(_found)
sys.modules["latent_oracle"] = oracle
_found.loader.exec_module(oracle)

TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
    "max_position_embeddings": 128,
}
MOE = {
    **TINY,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 2,
    "topk_group": 1,
}
LONGCAT = {key: value for key, value in TINY.items() if key not in ("num_hidden_layers", "intermediate_size")} | {
    "num_layers": 2,
    "head_dim": 8,
    "ffn_hidden_size": 40,
    "expert_ffn_hidden_size": 16,
    "n_routed_experts": 6,
    "zero_expert_num": 3,
    "moe_topk": 4,
}
CASES = [
    ("deepseek_v2", MOE),
    ("deepseek_v2", {**MOE, "q_lora_rank": None, "first_k_dense_replace": 1}),
    ("deepseek_v2", {**MOE, "attention_bias": True, "mlp_bias": True, "first_k_dense_replace": 2, "tie_word_embeddings": True}),
    ("deepseek_v3", {**MOE, "first_k_dense_replace": 1}),
    ("deepseek_v3", {**MOE, "first_k_dense_replace": 3, "q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": True}),
    ("glm4_moe_lite", MOE),
    ("glm4_moe_lite", {**MOE, "mlp_layer_types": ["sparse", "dense", "sparse"], "attention_bias": True}),
    ("mistral4", MOE),
    ("mistral4", {**MOE, "first_k_dense_replace": 2, "attention_bias": True, "q_lora_rank": None}),
    ("axk1", MOE),
    ("axk1", {**MOE, "first_k_dense_replace": 0, "moe_layer_freq": 2, "attention_bias": True}),
    ("axk1", {**MOE, "mlp_layer_types": ["sparse", "dense", "dense"]}),
    ("minicpm3", TINY),
    ("minicpm3", {**TINY, "v_head_dim": None, "q_lora_rank": None, "tie_word_embeddings": False}),
    ("minicpm3", {**TINY, "attention_bias": True, "mlp_bias": True}),
    ("youtu", TINY),
    ("youtu", {**TINY, "q_lora_rank": None, "attention_bias": True, "tie_word_embeddings": False}),
    ("longcat_flash", LONGCAT),
    ("longcat_flash", {**LONGCAT, "zero_expert_num": 0, "attention_bias": True, "router_bias": True, "tie_word_embeddings": True}),
]


@pytest.mark.parametrize(("model_type", "config"), CASES)
def test_transformers_builds_and_caches_the_same(model_type, config):
    oracle.agrees(model_type, config, (1, 7))


@pytest.mark.parametrize("model_type", ["deepseek_v3", "glm4_moe_lite", "mistral4", "axk1", "minicpm3", "youtu", "longcat_flash"])
def test_absent_keys_take_the_class_defaults(model_type):
    oracle.same_defaults(model_type)


def test_deepseek_v2_has_no_default_number_of_experts_a_token():
    with pytest.raises(BadInput, match="num_experts_per_tok"):
        oracle.spec("deepseek_v2")
    made = oracle.spec("deepseek_v2", num_experts_per_tok=6)
    assert made.parameters == oracle.unique_parameters(oracle.build("deepseek_v2", {}, "meta"))


V3 = oracle.spec("deepseek_v3", max_position_embeddings=163840, num_nextn_predict_layers=1)
#: The published DeepSeek-V2-Lite: null, not absent.
V2_LITE = {
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
}


def test_deepseek_v3_worked_numbers():
    cache = oracle.plan(V3, 32768, "ideal")
    assert cache.needed_bytes == cache.stored_bytes == cache.read_bytes_per_step == 61 * 576 * 2 * 32768 == 2_302_672_896
    assert cache.bytes_per_token == cache.written_bytes_per_step == 70_272
    assert (V3.parameters, V3.active_parameters) == (671_026_404_352, 36_625_603_584)
    (kind,) = {row.kind for row in cache.rows}
    assert kind == "latent_attention"
    assert sum(row.count for row in cache.rows) == 61


def test_deepseek_v3_prediction_block():
    """684.5 B in the published files: model, block, and the block's copies of the table and the head."""
    block = V3.mtp_parameters
    assert block == V3.groups[-1].parameters.total + 2 * 7168**2 + 3 * 7168
    assert round((V3.parameters + block + 2 * 129280 * 7168) / 1e8) == 6845
    assert oracle.spec("deepseek_v3").mtp_parameters == 0
    assert oracle.spec("deepseek_v3", num_nextn_predict_layers=0).mtp_parameters == 0


@pytest.mark.parametrize(("model_type", "config"), [("deepseek_v3", {**MOE, "first_k_dense_replace": 1, "num_nextn_predict_layers": 2})])
def test_prediction_blocks_are_those_of_the_library(model_type, config):
    from transformers.modeling_layers import MtpModel

    model = oracle.build(model_type, config)
    block = MtpModel(model, config["num_nextn_predict_layers"])
    assert oracle.spec(model_type, config).mtp_parameters == oracle.unique_parameters(block.layers)


@pytest.mark.parametrize(
    ("made", "bytes_per_token"),
    [
        (oracle.spec("deepseek_v2", V2_LITE), 31_104),
        (oracle.spec("deepseek_v2", num_hidden_layers=60, num_experts_per_tok=6), 69_120),
        (oracle.spec("minicpm3"), 62 * (256 + 32) * 2),
        (oracle.spec("glm4_moe_lite"), 47 * 576 * 2),
        (oracle.spec("longcat_flash"), 2 * 28 * 576 * 2),
    ],
)
def test_bytes_of_a_token(made, bytes_per_token):
    assert oracle.plan(made, 4096, "ideal").bytes_per_token == bytes_per_token


def test_deepseek_v2_lite_is_the_published_size():
    assert round(oracle.spec("deepseek_v2", V2_LITE).parameters / 1e8) == 157
    without = {key: value for key, value in V2_LITE.items() if key != "q_lora_rank"}
    assert oracle.spec("deepseek_v2", without).parameters != oracle.spec("deepseek_v2", V2_LITE).parameters


def test_heads_and_head_dim_mean_nothing_for_the_cache():
    odd = oracle.spec("deepseek_v3", num_key_value_heads=7, head_dim=999)
    assert oracle.plan(odd, 100, "ideal").needed_bytes == oracle.plan(V3, 100, "ideal").needed_bytes


def test_other_spellings_of_a_key():
    renamed = {("num_local_experts" if key == "n_routed_experts" else key): value for key, value in MOE.items()}
    assert oracle.spec("deepseek_v3", renamed) == oracle.spec("deepseek_v3", MOE)
    rotary = {("head_dim" if key == "qk_rope_head_dim" else key): value for key, value in MOE.items()}
    oracle.agrees("glm4_moe_lite", rotary, (3,))
    assert oracle.spec("glm4_moe_lite", MOE, head_dim=64) == oracle.spec("glm4_moe_lite", MOE)


def test_longcat_counts_both_attention_blocks_and_no_work_of_idle_experts():
    made = oracle.spec("longcat_flash", LONGCAT)
    assert made.num_hidden_layers == 4
    assert [notice.code for notice in made.notices] == ["experts_vary"]
    assert oracle.spec("longcat_flash", LONGCAT, zero_expert_num=0).notices == ()
    routed, unused = 2 * 6 * 3 * 16 * 32, 2 * 3 * 2 * 16 * 32
    read = made.parameters - 96 * 32 - unused - routed + routed * 4 // 6
    assert made.active_parameters == read
    half = {key: value for key, value in LONGCAT.items() if key != "num_layers"}
    assert oracle.spec("longcat_flash", half, num_hidden_layers=4) == made
    with pytest.raises(BadInput, match="even"):
        oracle.spec("longcat_flash", half, num_hidden_layers=3)


def test_wrapped_kimi_is_deepseek_v3():
    inner = {**MOE, "model_type": "kimi_k2", "num_hidden_layers": 2, "first_k_dense_replace": 1}
    wrapped = oracle.spec("kimi_k25", {"text_config": inner, "tie_word_embeddings": False})
    plain = oracle.spec("deepseek_v3", {**inner, "model_type": "deepseek_v3"})
    assert wrapped.parameters == plain.parameters
    assert oracle.plan(wrapped, 50, "ideal").needed_bytes == oracle.plan(plain, 50, "ideal").needed_bytes
    assert oracle.spec("kimi_k25").parameters == V3.parameters


def test_flops_of_a_step_and_of_a_pass():
    record = Latent(num_attention_heads=128, rank=512, rope_dim=64, nope_dim=128, value_dim=128)
    assert record.step_flops(1000, 0) == 2 * 128 * (512 + 64 + 512) * 1000
    assert record.pass_flops(0, 4, 0) == 2 * 128 * (128 + 64 + 128) * 10


@pytest.mark.parametrize(
    ("model_type", "changes", "named"),
    [
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek_v3", {"layer_types": ["linear_attention"] * 61}, "layer_types"),
        ("deepseek_v3", {"sliding_window": 512}, "sliding_window"),
        ("deepseek_v3", {"num_experts_per_tok": 257}, "num_experts_per_tok"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank"),
        ("deepseek_v3", {"n_routed_experts": 8, "num_local_experts": 16}, "num_local_experts"),
        ("deepseek_v3", {"per_layer_config": {"00": {"kv_lora_rank": 64}}}, "per_layer_config"),
        ("glm4_moe_lite", {"mlp_layer_types": ["moe"] * 47}, "mlp_layer_types"),
        ("axk1", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("minicpm3", {"num_attention_heads": 41}, "num_attention_heads"),
        ("longcat_flash", {"q_lora_rank": None}, "q_lora_rank"),
    ],
)
def test_what_no_model_of_the_family_has_is_refused(model_type, changes, named):
    with pytest.raises((BadInput, NotModelled), match=named):
        oracle.spec(model_type, changes)


def test_damaged_files_are_named_not_crashed_on():
    for key, value in (("hidden_size", "x"), ("num_hidden_layers", 10**9), ("mlp_layer_types", 3), ("n_shared_experts", -1)):
        with pytest.raises(KvcliError, match=key):
            oracle.spec("axk1", json.loads(json.dumps({key: value})))
