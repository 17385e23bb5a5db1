"""Qwen4-Exp: against transformers' own model, and worked numbers."""

import importlib.util
import sys
from pathlib import Path

import pytest
from transformers.models.qwen4_exp.modeling_qwen4_exp import _find_nth_prime_after

from kvcli.errors import BadInput
from kvcli.model.cache_records import Attention
from kvcli.model.families.qwen4_exp import _next_prime

_found = importlib.util.spec_from_file_location("latent_oracle", Path(__file__).with_name("latent_oracle.py"))
oracle = importlib.util.module_from_spec(_found)
sys.modules["latent_oracle"] = oracle
_found.loader.exec_module(oracle)

INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 12, "indexer_budget": 4, "indexer_compress_ratio": 2}
TINY = {
    **INDEXER,
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "hc_count": 2,
    "hc_lowrank": 6,
    "eos_token_id": 1,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
}
NGRAMS = {"ple_layer_ids": [2, 1], "ple_embed_dim": 24, "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 50}


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        {**TINY, "layer_types": ["full_attention", "linear_attention"] * 2, "attention_bias": True, "tie_word_embeddings": True},
        {**TINY, **NGRAMS, "make_ngram_vocab_size_divisible_by": 16},
        {**TINY, **NGRAMS, "ple_layer_ids": [3], "ple_embed_dim": None, "ngram_size": 2, "ple_conv_kernel_size": 3, "hc_count": 3},
    ],
)
def test_transformers_builds_and_caches_the_same(config):
    oracle.agrees("qwen4_exp_text", config, (1, 8))


def test_the_wrapped_decoder_is_the_same():
    assert oracle.spec("qwen4_exp", {"text_config": TINY}).groups == oracle.spec("qwen4_exp_text", TINY).groups


def test_sizes_of_hashed_tables_are_the_primes_of_the_library():
    size = 20_000_000 - 1
    for count in range(1, 20):
        size = _next_prime(size)
        assert size == _find_nth_prime_after(20_000_000 - 1, count)
    assert [p for p in range(2, 60) if _next_prime(p - 1) == p] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59]


def test_hashed_tables_are_looked_up_not_read():
    made, plain = oracle.spec("qwen4_exp_text", {**TINY, **NGRAMS}), oracle.spec("qwen4_exp_text", TINY)
    primes = [53, 59, 61, 67, 71, 73, 79, 83]
    assert made.lookups == (-(-sum(primes[:4]) // 128) * 128 + -(-sum(primes[4:]) // 128) * 128) * 24 // 4
    modules = 2 * (24 * (64 + 32) + 3 * 64 + 64 * 4)
    assert made.active_parameters - plain.active_parameters == modules


def test_what_attention_needs_and_a_step_reads():
    """2 x 2 x 8 elements and an index key of 12 a token; chosen tokens and those of an incomplete block are read."""
    made = oracle.spec("qwen4_exp_text", TINY)
    (record,) = made.groups[1].records
    assert isinstance(record, Attention)
    assert oracle.plan(made, 9, "ideal").needed_bytes == 9 * (2 * 2 * 8 + 12) * 2
    assert record.read_bytes(9, oracle.BF16) == (5 * 2 * 2 * 8 + 9 * 12) * 2
    assert record.step_flops(9, 0) == 2 * 4 * 16 * 5 + 2 * 2 * 12 * 4
    assert record.pass_flops(0, 5, 0) == 2 * 4 * 16 * 15 + 2 * 2 * 12 * (0 + 1 + 1 + 2 + 2)
    columns, state = (2 * 16 + 64) * 2 * 2, 4 * 8 * 16 * 4
    assert oracle.plan(made, 9, "ideal").state_bytes == 3 * (columns + state)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"indexer_n_heads": None}, "indexer_n_heads"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads"),
        ({"indexer_budget": 5}, "indexer_budget"),
        ({**NGRAMS, "ple_layer_ids": [4]}, "ple_layer_ids"),
        ({**NGRAMS, "ple_layer_ids": [5]}, "ple_layer_ids"),
        ({**NGRAMS, "ple_embed_dim": 25}, "ple_embed_dim"),
        ({"hc_count": 1}, "hc_count"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
    ],
)
def test_what_no_model_of_the_family_has_is_refused(changes, named):
    with pytest.raises(BadInput, match=named):
        oracle.spec("qwen4_exp_text", {**TINY, **changes})
