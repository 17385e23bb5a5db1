"""DeepSeek-V4: window, compressed entries and open tokens, against transformers' own model, and worked numbers."""

import importlib.util
import sys
from pathlib import Path

import pytest

from kvcli.errors import BadInput
from kvcli.model.latent_records import Compressed

_found = importlib.util.spec_from_file_location("latent_oracle", Path(__file__).with_name("latent_oracle.py"))
oracle = importlib.util.module_from_spec(_found)
sys.modules["latent_oracle"] = oracle
_found.loader.exec_module(oracle)

WINDOW, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "hc_mult": 2,
    "sliding_window": 6,
    "o_groups": 2,
    "o_lora_rank": 8,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 2,
    "max_position_embeddings": 128,
    "layer_types": [WINDOW, CSA, HCA, CSA],
    "compress_rates": {CSA: 3, HCA: 5},
}
V4_FLASH = {"compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0]}


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        {**TINY, "mlp_bias": True, "tie_word_embeddings": True, "hc_mult": 3, "o_groups": 4},
        {**TINY, "layer_types": None, "compress_rates": None, "compress_rate_csa": 4, "compress_rate_hca": 8},
        {**TINY, "layer_types": None, "compress_rates": None, "compress_ratios": [0, 4, 128, 4, 0], "num_hash_layers": 1},
    ],
)
def test_transformers_builds_and_caches_the_same(config):
    oracle.agrees("deepseek_v4", config, (1, 7, 13), steps=6)


def test_absent_keys_take_the_class_defaults():
    oracle.same_defaults("deepseek_v4")


@pytest.mark.parametrize(("tokens", "stored"), [(1, 194_560), (64, 6_215_680), (4096, 34_247_680), (32_768, 231_511_040)])
def test_v4_flash_in_transformers(tokens, stored):
    assert oracle.plan(oracle.spec("deepseek_v4", V4_FLASH), tokens).stored_bytes == stored


def test_v4_flash_needs_a_window_and_its_entries():
    """2 window, 21 CSA and 20 HCA layers; 6,880 B a token in the long run, and 215,040 B of the last closed CSA entries."""
    made = oracle.spec("deepseek_v4", V4_FLASH)
    window, overlap = 43 * 128 * 512 * 2, 21 * 4 * 2 * (512 + 128) * 2
    assert overlap == 215_040
    for tokens in (4096, 32_768):
        cache = oracle.plan(made, tokens, "ideal")
        assert cache.needed_bytes == window + 6880 * tokens + overlap
        assert cache.state_bytes == 0
    # one more token opens entries, which hold more than they will when closed
    grown = oracle.plan(made, 4097, "ideal").needed_bytes - oracle.plan(made, 4096, "ideal").needed_bytes
    assert grown == 21 * 4 * (512 + 128) * 2 + 20 * 2 * 512 * 2
    assert oracle.plan(made, 4224, "ideal").needed_bytes - oracle.plan(made, 4223, "ideal").needed_bytes < 0


def test_what_a_step_reads():
    record = Compressed(4, 16, 6, ratio=4, index_dim=8, index_heads=2, index_topk=3)
    assert record.read_bytes(43, oracle.BF16) == (16 * (6 + 3) + 8 * 10) * 2
    assert record.step_flops(43, 0) == 4 * 4 * 16 * (6 + 3) + 2 * 2 * 8 * 10
    assert record.written_bytes(oracle.BF16) == (16 + 4 * (16 + 8)) * 2
    assert Compressed(4, 16, 6).written_bytes(oracle.BF16) == 32


def test_the_prediction_block_is_counted_apart():
    made = oracle.spec("deepseek_v4", V4_FLASH, num_nextn_predict_layers=1)
    plain = oracle.spec("deepseek_v4", V4_FLASH)
    window = plain.groups[0].parameters.total
    assert made.parameters == plain.parameters
    assert (made.mtp_parameters, plain.mtp_parameters) == (window + 2 * 4096**2 + 3 * 4096 + 16 * 4096 + 5, 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"compress_ratios": [2] * 43}, "compress_ratios"),
        ({"compress_ratios": [4]}, "compress_ratios"),
        ({"layer_types": ["full_attention"] * 43}, "layer_types"),
        ({"mlp_layer_types": ["dense"] * 43}, "mlp_layer_types"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
        ({"attention_bias": True}, "attention_bias"),
        ({"o_groups": 7}, "o_groups"),
    ],
)
def test_what_no_model_of_the_family_has_is_refused(changes, named):
    with pytest.raises(BadInput, match=named):
        oracle.spec("deepseek_v4", changes)
