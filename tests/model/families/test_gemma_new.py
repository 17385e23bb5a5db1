"""Gemma-3n and Gemma-4: against transformers' own models, worked numbers, and what a file may say wrongly."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the oracle")

from kvcli.errors import BadInput

_found = importlib.util.spec_from_file_location("moe_oracle", Path(__file__).with_name("moe_oracle.py"))
oracle = importlib.util.module_from_spec(_found)
sys.modules["moe_oracle"] = oracle
_found.loader.exec_module(oracle)

TINY = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "sliding_window": 6,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TIE, UNTIE = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
BIAS = {"attention_bias": True}
PLE = {"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 59}
NO_PLE = {"hidden_size_per_layer_input": 0}
KINDS = {"layer_types": ["full_attention", "sliding_attention"] * 3}
G3N = {**TINY, **PLE, "num_kv_shared_layers": 0, "laurel_rank": 5}
G4 = {**TINY, **PLE, "global_head_dim": 16}
MOE = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 12}

CASES = [
    ("gemma3n_text", {**G3N, "altup_num_inputs": 3}),
    ("gemma3n_text", {**G3N, **BIAS, **UNTIE, "num_kv_shared_layers": 1}),
    ("gemma3n_text", {**G3N, **KINDS, "num_kv_shared_layers": 3, "intermediate_size": [20, 20, 24, 24, 28, 28]}),
    ("gemma4_text", G4),
    ("gemma4_text", {**G4, **NO_PLE, **UNTIE, **BIAS}),
    ("gemma4_text", {**G4, **KINDS, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    ("gemma4_text", {**G4, **KINDS, "attention_k_eq_v": True, "num_global_key_value_heads": 1, **BIAS}),
    ("gemma4_text", {**G4, "attention_k_eq_v": False, "num_global_key_value_heads": 1}),
    ("gemma4_text", {**G4, **KINDS, "attention_k_eq_v": True, "num_kv_shared_layers": 3}),
    ("gemma4_text", {**G4, **NO_PLE, **MOE}),
    ("gemma4_text", {**G4, **MOE, "attention_k_eq_v": True}),
    ("gemma4_text", {**G4, "use_bidirectional_attention": "vision"}),
    ("gemma4_text", {**G4, "per_layer_config": {"05": {"head_dim": 12, "num_key_value_heads": 4}}}),
    ("gemma4_text", {**G4, "per_layer_config": {}}),
    ("gemma4_unified_text", {**TINY, "global_head_dim": 16}),
    ("gemma4_unified_text", {**TINY, **KINDS, **BIAS, **UNTIE, "attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    ("gemma4_unified_text", {**TINY, **KINDS, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
]


@pytest.mark.parametrize(("model_type", "config"), CASES, ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)])
def test_against_transformers(model_type, config):
    oracle.agrees(model_type, config)


@pytest.mark.parametrize("model_type", ["gemma3n_text", "gemma4_text", "gemma4_unified_text"])
def test_class_defaults(model_type):
    oracle.same_defaults(model_type)


@pytest.mark.parametrize("number", [2, 5, 8])
def test_static_caches_have_nothing_for_layers_that_share(number):
    model_type, config = CASES[number]
    made, model = oracle.spec(model_type, config), oracle.build(model_type, config)
    for limit in (4, 30):
        assert oracle.plan(made, limit, static=True).stored_bytes == oracle.preallocated(model, limit)


def test_gemma4_keeps_half_of_a_window_on_both_sides():
    """Embedding models: w // 2 + 1 (the model is not causal, so transformers has no cache to measure)."""
    made = oracle.spec("gemma4_text", {**G4, "use_bidirectional_attention": "all"})
    assert made.windows == (4, 4, 4, 4, 4, None)
    import transformers

    assert transformers.AutoConfig.for_model("gemma4_text", **G4, use_bidirectional_attention="all").sliding_window == 4


def test_gemma4_makes_the_last_layer_full():
    made = oracle.spec("gemma4_text", {**G4, "layer_types": ["sliding_attention"] * 6})
    assert made.windows == (6, 6, 6, 6, 6, None)


def test_a_resaved_gemma4_file():
    """transformers writes the dims of full layers as per_layer_config and drops global_head_dim."""
    config = {**G4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
    saved = oracle.hf_config("gemma4_text", config).to_dict()
    assert "global_head_dim" not in saved
    again, first = oracle.spec("gemma4_text", saved), oracle.spec("gemma4_text", config)
    assert again.parameters == first.parameters
    assert again.groups == first.groups


def test_worked_numbers_of_gemma3n():
    """layouts.md: 16 window and 4 full layers of 35; 40,960 B a token before the window fills; 2.349 B parameters are looked up."""
    made = oracle.spec("gemma3n", {"text_config": {}})
    assert made.parameters == 6_835_235_568
    assert made.lookups == 262144 * 35 * 256
    assert made.active_parameters == 4_486_425_328
    assert oracle.plan(made, 500, "ideal", oracle.BF16).needed_bytes == 500 * 40_960
    assert oracle.plan(made, 4096, "ideal", oracle.BF16).needed_bytes == 2048 * (16 * 512 + 4 * 4096)
    kinds = [made.groups[number].attention.kind for number in made.order]
    assert kinds[20:] == ["shared_attention"] * 15


def test_worked_numbers_of_gemma4():
    """26B-A4B: window layers 8 x 256, full layers 2 x 512 and one projection for K and V, both cached."""
    config = {
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    }
    made = oracle.spec("gemma4", {"text_config": config})
    assert made.tied
    assert made.parameters == 25_233_141_760
    needed = oracle.plan(made, 4096, "ideal", oracle.BF16).needed_bytes
    assert needed == 25 * 2 * 8 * 256 * 2 * 1024 + 5 * 2 * 2 * 512 * 2 * 4096


def test_a_wrapper_obeys_the_outer_tie_flag_only():
    assert oracle.spec("gemma4", {"text_config": {**G4, **UNTIE}}).tied
    assert not oracle.spec("gemma4", {"text_config": {**G4, **TIE}, **UNTIE}).tied
    assert oracle.spec("gemma3n", {"text_config": {**G3N, **UNTIE}}).tied


WRONG = [
    ("gemma3n_text", {**G3N, "num_kv_shared_layers": 6}),
    ("gemma3n_text", {**G3N, "num_kv_shared_layers": 4}),
    ("gemma3n_text", {**G3N, "intermediate_size": [20, 20]}),
    ("gemma4_text", {**G4, "num_kv_shared_layers": 2}),
    ("gemma4_text", {**G4, "layer_types": ["chunked_attention"] * 6}),
    ("gemma4_text", {**G4, **MOE, "top_k_experts": 6}),
    ("gemma4_text", {**G4, "enable_moe_block": True}),
    ("gemma4_unified_text", {**TINY, "enable_moe_block": True}),
    ("gemma4_unified_text", {**TINY, **PLE}),
]


@pytest.mark.parametrize(("model_type", "config"), WRONG, ids=[f"{case[0]}-{number}" for number, case in enumerate(WRONG)])
def test_what_the_class_does_not_build_is_refused(model_type, config):
    with pytest.raises(BadInput):
        oracle.spec(model_type, config)
