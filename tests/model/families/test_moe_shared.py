"""Families with shared experts, windows and chunks: against transformers' own models, and what a file may say wrongly."""

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
    "moe_intermediate_size": 12,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD = {"head_dim": 8}
BIAS = {"attention_bias": True}
TIE, UNTIE = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
WINDOW = {"sliding_window": 6}
KINDS = {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
MLPS = {"mlp_layer_types": ["sparse", "dense", "sparse", "dense"]}
MULTI = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
ROUTED = {**TINY, "n_routed_experts": 5, "n_shared_experts": 2}
COUNTED = {**TINY, "num_experts": 5}
SHARED = {**COUNTED, "num_shared_experts": 2}
ERNIE = {**TINY, "moe_num_experts": 5, "moe_k": 2, "moe_num_shared_experts": 2, **HEAD}
LAGUNA = {**COUNTED, **HEAD, "shared_expert_intermediate_size": 28}
STEP = {**TINY, **HEAD, "n_routed_experts": 5, "share_expert_dim": 28, "num_hidden_layers": 5, **WINDOW}
STEP_KINDS = {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"], **WINDOW}
MIMO = {**TINY, "head_dim": 8, "v_head_dim": 6, "n_routed_experts": 5, "num_hidden_layers": 7, **WINDOW}
LLAMA4 = {**TINY, **HEAD, "intermediate_size_mlp": 36, "num_local_experts": 5, "attention_chunk_size": 6, "num_experts_per_tok": 1}
SPARK = {**TINY, **HEAD, **WINDOW, "moe_hidden_size": 18, "num_local_experts": 5}
GLIMMER = {**TINY, **HEAD, **WINDOW}
COHERE = {**COUNTED, **HEAD, **WINDOW}

CASES = [
    ("glm4_moe", {**ROUTED, **HEAD}),
    ("glm4_moe", {**ROUTED, **BIAS, **TIE, "first_k_dense_replace": 2, "use_qk_norm": True, "num_nextn_predict_layers": 1}),
    ("glm4_moe", {**ROUTED, "hidden_size": 26, "num_attention_heads": 6}),
    ("glm4v_moe_text", {**ROUTED, "head_dim": 16, **MULTI}),
    ("glm4v_moe_text", {**ROUTED, "head_dim": 16, **MULTI, "attention_bias": False, "first_k_dense_replace": 3}),
    ("solar_open", {**ROUTED, **HEAD}),
    ("solar_open", {**ROUTED, **HEAD, **BIAS, **TIE}),
    ("dots1", ROUTED),
    ("dots1", {**ROUTED, **HEAD, **BIAS, **TIE, **WINDOW, "max_window_layers": 2, "first_k_dense_replace": 1}),
    ("dots1", {**ROUTED, **WINDOW, **KINDS}),
    ("dots1", {**ROUTED, "sliding_window": None, "max_window_layers": 2}),
    ("exaone_moe", {**SHARED, **WINDOW}),
    ("exaone_moe", {**SHARED, **HEAD, **WINDOW, **TIE, "sliding_window_pattern": 3, "first_k_dense_replace": 2}),
    ("exaone_moe", {**SHARED, **WINDOW, **KINDS, **MLPS, "sliding_window_pattern": "LLLG"}),
    ("ernie4_5_moe", ERNIE),
    ("ernie4_5_moe", {**ERNIE, "use_bias": True, **UNTIE, "moe_layer_start_index": 0, "moe_layer_end_index": 2}),
    ("ernie4_5_moe", {**ERNIE, "moe_layer_interval": 2, "moe_num_shared_experts": 0, "moe_layer_end_index": -1}),
    ("hy_v3", {**SHARED, **HEAD}),
    ("hy_v3", {**SHARED, **HEAD, **BIAS, **TIE, **MLPS, "mlp_bias": True}),
    ("afmoe", {**SHARED, **HEAD, **WINDOW}),
    ("afmoe", {**SHARED, **HEAD, **WINDOW, **BIAS, **TIE, "num_dense_layers": 2, "global_attn_every_n_layers": 3}),
    ("afmoe", {**SHARED, **HEAD, **WINDOW, **KINDS, "num_key_value_heads": None}),
    ("cohere2_moe", COHERE),
    ("cohere2_moe", {**COHERE, **BIAS, **UNTIE, "num_shared_experts": 2, "sliding_window_pattern": 2, "rms_norm_eps": 1e-5}),
    ("cohere2_moe", {**COHERE, "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 44, "sliding_window_pattern": 3}),
    ("cohere2_moe", {**COHERE, "first_k_dense_replace": 3, "prefix_dense_sliding_window_pattern": 3, "num_key_value_heads": None}),
    ("cohere2_moe", {**COHERE, **KINDS, **MLPS}),
    ("laguna", LAGUNA),
    ("laguna", {**LAGUNA, **WINDOW, **KINDS, **BIAS, **TIE, "num_attention_heads_per_layer": [4, 8, 8, 2], "gating": "per-element"}),
    ("laguna", {**LAGUNA, **MLPS, "gating": False}),
    ("laguna", {**LAGUNA, "gating": "per-head"}),
    ("mellum", {**TINY, **HEAD, "num_local_experts": 5}),
    ("mellum", {**COUNTED, **HEAD, **WINDOW, **KINDS, **MLPS, **BIAS, **TIE}),
    ("beam", {**COUNTED, **HEAD, **WINDOW, "num_hidden_layers": 7, "n_group": 1, "topk_group": 1}),
    ("beam", {**COUNTED, **HEAD, **WINDOW, **KINDS, **MLPS, **BIAS, **TIE, "n_group": 1, "topk_group": 1}),
    ("kolibri1", {**COUNTED, **HEAD, **WINDOW, "num_hidden_layers": 6, "shared_expert_intermediate_size": 28}),
    ("kolibri1", {**TINY, "num_local_experts": 5, **HEAD, **WINDOW, **KINDS, **TIE, "shared_expert_intermediate_size": 12}),
    ("step3p5", STEP),
    ("step3p5", {**STEP, **STEP_KINDS, "num_sliding_attention_heads": 8, **BIAS, "mlp_bias": True}),
    ("step3p5", {**STEP, **STEP_KINDS, "attention_other_setting": {"num_attention_heads": 6}, "moe_layers_enum": "1,3"}),
    ("step3p5", {**STEP, "mlp_layer_types": ["sparse", "dense", "sparse", "dense", "sparse"]}),
    ("mimo_v2_flash", MIMO),
    ("mimo_v2_flash", {**MIMO, **BIAS, **TIE, "sliding_window_size": 6}),
    ("mimo_v2_flash", {**MIMO, "num_hidden_layers": 4, **KINDS, **MLPS}),
    ("llama4_text", LLAMA4),
    ("llama4_text", {**LLAMA4, **BIAS, **TIE, "interleave_moe_layer_step": 2, "num_experts_per_tok": 2}),
    ("llama4_text", {**LLAMA4, "moe_layers": [1], "no_rope_layers": [0, 1, 1, 0]}),
    ("llama4_text", {**LLAMA4, "no_rope_layer_interval": 2, "no_rope_layers": []}),
    ("llama4_text", {**LLAMA4, "layer_types": ["full_attention", "chunked_attention", "full_attention", "full_attention"]}),
    ("muse_spark_text", SPARK),
    ("muse_spark_text", {**SPARK, **MLPS, **BIAS, **KINDS}),
    ("muse_glimmer_text", GLIMMER),
    ("muse_glimmer_text", {**GLIMMER, **BIAS, **KINDS}),
]


@pytest.mark.parametrize(("model_type", "config"), CASES, ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)])
def test_against_transformers(model_type, config):
    oracle.agrees(model_type, config)


DEFAULTS = ["glm4_moe", "glm4v_moe_text", "solar_open", "exaone_moe", "ernie4_5_moe", "hy_v3", "afmoe", "cohere2_moe", "laguna", "mellum"]
DEFAULTS += ["beam", "kolibri1", "step3p5", "mimo_v2_flash", "llama4_text", "muse_spark_text", "muse_glimmer_text"]


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_class_defaults(model_type):
    oracle.same_defaults(model_type)


def test_llama4_forgets_at_the_border_of_a_chunk():
    """Needed: ((n - 1) mod 8192) + 1 tokens in 36 chunked layers; transformers keeps min(n, 8191)."""
    made = oracle.spec("llama4_text")
    row = 2 * 8 * 128 * 2
    for tokens, seen in ((1, 1), (8192, 8192), (8193, 1), (12000, 3808)):
        assert oracle.plan(made, tokens, "ideal", oracle.BF16).needed_bytes == row * (12 * tokens + 36 * seen)
        assert oracle.plan(made, tokens, kv=oracle.BF16).stored_bytes == row * (12 * tokens + 36 * min(tokens, 8191))
    assert oracle.plan(made, 8193, "ideal", oracle.BF16).read_bytes_per_step == row * (12 * 8193 + 36)


def test_llama4_maverick():
    """Experts in every other layer; 16.150 B read for one token (layouts.md, section 10)."""
    made = oracle.spec("llama4", {"text_config": {"num_local_experts": 128, "interleave_moe_layer_step": 2}})
    attention = 2 * 5120 * (40 + 8) * 128 + 2 * 5120
    dense, sparse = 3 * 5120 * 16384, 129 * 3 * 5120 * 8192 + 128 * 5120
    assert made.parameters == 48 * attention + 24 * (dense + sparse) + 5120 + 2 * 202048 * 5120
    assert round(made.active_parameters / 1e6) == 16_150


def test_mimo_counts_the_query_in_its_window():
    """A published file: 128 visible tokens, of which transformers keeps 128 (its own window is 129)."""
    published = {"sliding_window": 128, "sliding_window_size": 128}
    made = oracle.spec("mimo_v2_flash", published)
    full, sliding = 9 * 4 * (192 + 128) * 2, 39 * 8 * (192 + 128) * 2
    assert oracle.plan(made, 4096, "ideal", oracle.BF16).needed_bytes == full * 4096 + sliding * 128
    assert oracle.plan(made, 4096, kv=oracle.BF16).stored_bytes == full * 4096 + sliding * 128 == 119_930_880
    own = oracle.spec("mimo_v2_flash")  # without a key: transformers' own number, 129
    assert oracle.plan(own, 4096, "ideal", oracle.BF16).needed_bytes == full * 4096 + sliding * 129
    assert oracle.plan(own, 4096, kv=oracle.BF16).stored_bytes == 119_930_880


@pytest.mark.parametrize(
    ("model_type", "config"), [("mimo_v2_flash", {**MIMO, "sliding_window_size": 6}), ("mimo_v2_flash", MIMO), ("llama4_text", LLAMA4)]
)
def test_static_caches_allocate_whole_windows_and_chunks(model_type, config):
    made, model = oracle.spec(model_type, config), oracle.build(model_type, config)
    for limit in (4, 6, 7, 30):
        assert oracle.plan(made, limit, static=True).stored_bytes == oracle.preallocated(model, limit)


def test_mimo_keys_of_published_files():
    """The lists of 0 and 1 and the dims of sliding layers."""
    listed = {
        "num_hidden_layers": 4,
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 10,
        "swa_v_head_dim": 4,
    }
    made = oracle.spec("mimo_v2_flash", {**MIMO, **listed})
    assert oracle.plan(made, 20, "ideal").needed_bytes == (2 * 2 * 14 * 20 + 2 * 2 * 14 * 6) * 4
    layers = [made.groups[number] for number in made.order]
    assert [bool(layer.parameters.num_experts) for layer in layers] == [False, True, True, True]
    assert layers[1].parameters.query == 24 * 4 * 10
    assert layers[1].parameters.attention_output == 4 * 4 * 24


def test_step_with_the_padded_lists_and_aliases_of_published_files():
    """Trailing entries belong to MTP blocks."""
    aliases = {"num_attention_groups": 2, "moe_num_experts": 5, "moe_top_k": 2, "share_expert_dims": 28}
    config = {key: value for key, value in STEP.items() if key not in ("num_key_value_heads", "n_routed_experts", "num_experts_per_tok")}
    del config["share_expert_dim"]
    padded = {**STEP_KINDS, "layer_types": [*STEP_KINDS["layer_types"], "sliding_attention"], "num_nextn_predict_layers": 1}
    made = oracle.agrees("step3p5", {**config, **aliases, **padded})
    assert made.parameters == oracle.spec("step3p7", {"text_config": {**STEP, **STEP_KINDS}}).parameters
    assert oracle.spec("step3p5", oracle.hf_config("step3p5", {**STEP, **STEP_KINDS, "num_sliding_attention_heads": 8}).to_dict()).groups


def test_a_resaved_step_file():
    config = {**STEP, **STEP_KINDS, "num_sliding_attention_heads": 8}
    saved = oracle.hf_config("step3p5", config).to_dict()
    assert "per_layer_config" in saved
    assert oracle.spec("step3p5", saved).parameters == oracle.spec("step3p5", config).parameters


def test_exaone_patterns_as_text():
    """Published files say "LLLG"; their class would need the list beside it."""
    by_text = oracle.spec("exaone_moe", {**SHARED, **WINDOW, "sliding_window_pattern": "LLG"})
    assert by_text.windows == (6, 6, None, 6)
    assert oracle.spec("exaone_moe", {**SHARED, "sliding_window": None}).windows == (None,) * 4


def test_glm4v_obeys_an_inner_tie_flag():
    """As its outer class does for files of before release 5."""
    assert oracle.spec("glm4v_moe", {"text_config": {**ROUTED, **TIE}}).tied
    assert not oracle.spec("glm4v_moe", {"text_config": ROUTED}).tied


def test_muse_spark_ties_nothing():
    """Its class names no tied matrices. With its towers transformers builds 822,036,513,792 parameters."""
    made = oracle.spec("muse_spark", {"text_config": {}, **TIE})
    assert not made.tied
    assert made.parameters == 822_036_513_792 - 1_852_639_744 - 117_840_384 - 41_943_040 - 33_554_432


def test_flops_of_a_step_count_the_query_heads_and_stop_at_the_window():
    made = oracle.spec("laguna", {**LAGUNA, **WINDOW, **KINDS, "num_attention_heads_per_layer": [4, 8, 8, 2]})
    records = [made.groups[number].attention for number in made.order]
    assert [record.step_flops(50, 0) for record in records] == [2 * 4 * 16 * 50, 2 * 8 * 16 * 6, 2 * 8 * 16 * 6, 2 * 2 * 16 * 50]


WRONG = [
    ("glm4_moe", {**ROUTED, "num_experts_per_tok": 6}),
    ("glm4v_moe_text", {**ROUTED, "use_qk_norm": True}),
    ("solar_open", {**ROUTED, "first_k_dense_replace": 1}),
    ("solar_open", {**ROUTED, "use_qk_norm": True}),
    ("dots1", TINY),
    ("exaone_moe", {**SHARED, "sliding_window_pattern": "LXG"}),
    ("hy_v3", {**SHARED, "mlp_layer_types": ["dense", "moe", "sparse", "sparse"]}),
    ("laguna", {**LAGUNA, "num_attention_heads_per_layer": [4, 4]}),
    ("laguna", {**LAGUNA, "gating": 3}),
    ("hy_v3", {**SHARED, "first_k_dense_replace": 2}),
    ("kolibri1", {**COUNTED, **MLPS}),
    ("step3p5", {**STEP, **STEP_KINDS, "sliding_window": None}),
    ("step3p5", {**STEP, "moe_num_experts": 7}),
    ("step3p5", {**STEP, "use_head_wise_attn_gate": False}),
    ("step3p5", {**STEP, "moe_layers_enum": "1,x"}),
    ("step3p5", {**STEP, **STEP_KINDS, "attention_other_setting": {"num_attention_groups": 4}}),
    ("mimo_v2_flash", {**MIMO, "add_full_attention_sink_bias": True}),
    ("mimo_v2_flash", {**MIMO, "n_shared_experts": 1}),
    ("mimo_v2_flash", {**MIMO, "num_key_value_heads": 3}),
    ("llama4_text", {**LLAMA4, "attention_chunk_size": None}),
    ("llama4_text", {**LLAMA4, "no_rope_layers": [1, 1]}),
    ("llama4_text", {**LLAMA4, **KINDS}),
    ("muse_spark_text", {**SPARK, "layer_types": ["window_attention"] * 4}),
]


@pytest.mark.parametrize(("model_type", "config"), WRONG, ids=[f"{case[0]}-{number}" for number, case in enumerate(WRONG)])
def test_what_the_class_does_not_build_is_refused(model_type, config):
    with pytest.raises(BadInput):
        oracle.spec(model_type, config)
