"""Families with experts in every layer, and Qwen's: against transformers' own models, and what a file may say wrongly."""

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

#: the usual keys, small; `head_dim` is not H / A
TINY = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LOCAL = {**TINY, "num_local_experts": 5}
COUNTED = {**TINY, "num_experts": 5}
QWEN = {**COUNTED, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 28}
HEAD = {"head_dim": 8}
BIAS = {"attention_bias": True}
TIE, UNTIE = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
WINDOW = {"sliding_window": 6}
ON = {**WINDOW, "use_sliding_window": True}
KINDS = {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
DEFAULT_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
MULTI = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
DBRX = {"vocab_size": 61, "d_model": 24, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}
JET = {key: value for key, value in LOCAL.items() if key != "num_attention_heads"}
ARIA = {**TINY, "moe_num_experts": 5, "moe_topk": 2, "moe_num_shared_experts": 3, "head_dim": 6}
HUNYUAN = {**COUNTED, "moe_topk": 2, "head_dim": 8}
del HUNYUAN["num_experts_per_tok"]

CASES = [
    ("mixtral", LOCAL),
    ("mixtral", {**LOCAL, **HEAD, **TIE, **WINDOW}),
    ("mixtral", {**LOCAL, "head_dim": None}),
    ("phimoe", LOCAL),
    ("phimoe", {**LOCAL, **BIAS, "lm_head_bias": True, **WINDOW}),
    ("olmoe", {**COUNTED, **BIAS}),
    ("olmoe", {**COUNTED, "num_key_value_heads": None, **TIE}),
    ("flex_olmo", {**COUNTED, **BIAS, **TIE}),
    ("flex_olmo", COUNTED),
    ("minimax_m2", {**LOCAL, **HEAD}),
    ("minimax_m2", {**LOCAL, **HEAD, **TIE}),
    ("gpt_oss", {**LOCAL, **HEAD, **WINDOW, **DEFAULT_ROPE}),
    ("gpt_oss", {**LOCAL, **HEAD, **WINDOW, **KINDS, **TIE, **DEFAULT_ROPE, "attention_bias": False}),
    ("granitemoe", LOCAL),
    ("granitemoe", {**LOCAL, **BIAS, **TIE, "num_key_value_heads": None}),
    ("granitemoeshared", {**LOCAL, "shared_intermediate_size": 36}),
    ("granitemoeshared", {**LOCAL, **BIAS}),
    ("granitemoe_swa", {**LOCAL, **WINDOW, "shared_intermediate_size": 36}),
    ("granitemoe_swa", {**LOCAL, **WINDOW, **KINDS, **BIAS, **TIE}),
    ("aria_text", ARIA),
    ("aria_text", {**ARIA, **BIAS, **TIE, "mlp_bias": True}),
    ("hunyuan_v1_moe", HUNYUAN),
    ("hunyuan_v1_moe", {**HUNYUAN, **BIAS, **TIE, "moe_topk": [1, 2, 3, 1]}),
    ("jetmoe", {**JET, "kv_channels": 8}),
    ("jetmoe", {**JET, "kv_channels": 8, "num_experts_per_tok": 3, **UNTIE}),
    (
        "dbrx",
        {
            **DBRX,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
            "ffn_config": {"ffn_hidden_size": 20, "moe_top_k": 2},
        },
    ),
    (
        "dbrx",
        {**DBRX, "attn_config": {"rope_theta": 10000.0, "clip_qkv": 8}, "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 3}},
    ),
    ("qwen2_moe", QWEN),
    ("qwen2_moe", {**QWEN, **ON, "max_window_layers": 3, "qkv_bias": False, **TIE}),
    ("qwen2_moe", {**QWEN, **ON, **KINDS, "decoder_sparse_step": 2}),
    ("qwen2_moe", {**QWEN, **WINDOW, "mlp_only_layers": [0, 2]}),
    ("qwen3_moe", {**QWEN, **HEAD}),
    ("qwen3_moe", {**QWEN, **ON, **BIAS, **TIE, "mlp_only_layers": [1]}),
    ("qwen3_moe", {**QWEN, **WINDOW, "decoder_sparse_step": 3}),
    ("qwen3_moe", {**TINY, "num_local_experts": 5, "moe_intermediate_size": 12}),
    ("qwen3_vl_moe_text", {**QWEN, **HEAD, **MULTI, "mlp_only_layers": [1], **UNTIE}),
    ("qwen3_vl_moe_text", {**QWEN, **HEAD, **MULTI, **BIAS, "decoder_sparse_step": 2, **UNTIE}),
    ("qwen3_omni_moe_text", {**QWEN, **HEAD, **MULTI, **UNTIE}),
    ("flint", {**QWEN, **HEAD, **WINDOW, "num_hidden_layers": 7}),
    ("flint", {**QWEN, **HEAD, **WINDOW, **KINDS, **BIAS, **TIE, "mlp_only_layers": [3]}),
]


@pytest.mark.parametrize(("model_type", "config"), CASES, ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)])
def test_against_transformers(model_type, config):
    oracle.agrees(model_type, config)


DEFAULTS = ["mixtral", "phimoe", "olmoe", "flex_olmo", "minimax_m2", "gpt_oss", "granitemoe", "granitemoeshared", "granitemoe_swa"]
DEFAULTS += ["aria_text", "jetmoe", "qwen2_moe", "qwen3_moe", "qwen3_omni_moe_text", "flint", "qwen3_vl_moe_text"]


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_class_defaults(model_type):
    if model_type == "qwen3_vl_moe_text":  # its own tie flag is true, but the model is only built inside its wrapper, whose is false
        made = oracle.spec(model_type, tie_word_embeddings=False)
        model = oracle.build(model_type, {}, "meta")
        assert made.parameters == sum(p.numel() for p in model.parameters()) + oracle.head_parameters(model, False)
        return
    oracle.same_defaults(model_type)


def test_classes_that_transformers_cannot_build_from_their_defaults():
    """DBRX lacks a key of its attention (rope_theta), Hunyuan a head_dim: by hand."""
    attention = 2048 * (2048 + 2 * 128) + 2048 * 2048
    layer = attention + 4 * 2048 + 4 * 3 * 2048 * 3584 + 2 * 2048
    assert oracle.spec("dbrx").parameters == 24 * layer + 2048 + 2 * 32000 * 2048
    layer = 4 * 4096 * 4096 + 2 * 128 + 4096 + 2 * 3 * 4096 * 11008 + 2 * 4096
    assert oracle.spec("hunyuan_v1_moe").parameters == 32 * layer + 4096 + 2 * 290943 * 4096


@pytest.mark.parametrize(
    ("model_type", "text", "inner"),
    [("qwen3_vl_moe", "text_config", "qwen3_vl_moe_text"), ("aria", "text_config", "aria_text")],
)
def test_a_wrapper_obeys_the_outer_tie_flag_only(model_type, text, inner):
    """transformers ties a multimodal model by the outer flag, whose class default is false."""
    config = {**(QWEN if inner != "aria_text" else ARIA), **TIE}
    assert not oracle.spec(model_type, {text: config}).tied
    assert oracle.spec(model_type, {text: {**config, **UNTIE}}, **TIE).tied


def test_the_outer_flag_is_what_transformers_obeys():
    import torch
    import transformers

    for outer in (True, False):
        made = transformers.AutoConfig.for_model(
            "qwen3_vl_moe", text_config={**QWEN, **MULTI, "tie_word_embeddings": not outer}, tie_word_embeddings=outer
        )
        with torch.device("meta"):
            model = transformers.AutoModelForImageTextToText.from_config(made)
        assert oracle.is_tied(model) == outer
        total = sum(p.numel() for p in model.model.language_model.parameters()) + (0 if outer else 61 * 24)
        assert oracle.spec("qwen3_vl_moe", made.to_dict()).parameters == total


def test_the_thinker_of_a_nested_file():
    config = {"thinker_config": {"text_config": {**QWEN, **HEAD}, "dtype": "bfloat16"}, "dtype": "bfloat16"}
    assert oracle.spec("qwen3_omni_moe", config).parameters == oracle.spec("qwen3_omni_moe_text", {**QWEN, **HEAD}).parameters
    inner = oracle.spec("qwen3_omni_moe_thinker", config["thinker_config"])
    assert inner.parameters == oracle.spec("qwen3_omni_moe_text", {**QWEN, **HEAD}).parameters


def test_worked_numbers_of_gpt_oss():
    """12 full and 12 window layers of 2 x 8 x 64 elements: needed at 4096 and at 100 tokens, and one less stored in windows."""
    made = oracle.spec("gpt_oss", num_hidden_layers=24, num_local_experts=32, layer_types=["sliding_attention", "full_attention"] * 12)
    assert made.parameters == 20_914_757_184
    assert made.active_parameters == 3_608_307_264
    assert oracle.plan(made, 4096, "ideal", oracle.BF16).needed_bytes == 12 * 2048 * (4096 + 128) == 103_809_024
    assert oracle.plan(made, 100, "ideal", oracle.BF16).needed_bytes == 24 * 2048 * 100
    assert oracle.plan(made, 4096, kv=oracle.BF16).stored_bytes == 103_784_448  # layouts.md, section 3


def test_worked_numbers_of_minimax_m2():
    """layouts.md: 253,952 B a token."""
    made = oracle.spec("minimax_m2")
    assert oracle.plan(made, 1000, "ideal", oracle.BF16).needed_bytes == 253_952_000


def test_a_switched_off_window_is_no_window():
    made = oracle.spec("qwen3_moe", {**QWEN, "sliding_window": 4, "use_sliding_window": False})
    assert oracle.plan(made, 50, "ideal").needed_bytes == 4 * 2 * 2 * 6 * 50 * 4


def test_per_layer_overrides():
    """Any key can be overridden for one layer."""
    made = oracle.spec("mixtral", {**LOCAL, **HEAD, "per_layer_config": {"01": {"head_dim": 16, "num_local_experts": 3}}})
    plain = oracle.spec("mixtral", {**LOCAL, **HEAD})
    assert made.parameters - plain.parameters == 24 * 8 * (4 + 4 + 4) - 2 * (24 + 3 * 24 * 20)
    assert oracle.plan(made, 10, "ideal").needed_bytes - oracle.plan(plain, 10, "ideal").needed_bytes == 2 * 2 * 8 * 10 * 4


WRONG = [
    ("mixtral", {**LOCAL, "num_experts_per_tok": 6}),
    ("mixtral", {**LOCAL, "num_experts": 4}),
    ("mixtral", {**LOCAL, "layer_types": ["full_attention"] * 3 + ["mystery"], **WINDOW}),
    ("mixtral", {**LOCAL, **KINDS}),
    ("mixtral", {**LOCAL, "per_layer_config": {"4": {"head_dim": 8}}}),
    ("mixtral", {**LOCAL, "per_layer_config": {"x": {"head_dim": 8}}}),
    ("mixtral", {**LOCAL, "per_layer_config": {"1": {"skip": ["self_attn"]}}}),
    ("qwen2_moe", {**QWEN, **KINDS, **WINDOW}),
    ("minimax_m2", {**LOCAL, "attn_type_list": [0, 1, 1, 1]}),
    ("minimax_m2", {**LOCAL, "shared_intermediate_size": 8}),
    ("minimax_m2", {**LOCAL, "use_qk_norm": False}),
    ("hunyuan_v1_moe", {**HUNYUAN, "use_cla": True}),
    ("hunyuan_v1_moe", {**HUNYUAN, "moe_intermediate_size": [8] * 4}),
    ("hunyuan_v1_moe", {**HUNYUAN, "num_shared_expert": [2] * 4}),
    ("hunyuan_v1_moe", {**HUNYUAN, "moe_topk": 9}),
    ("hunyuan_v1_moe", {**HUNYUAN, "num_experts": [4, 4, 4, 8]}),
    ("dbrx", {**DBRX, **TIE}),
]


@pytest.mark.parametrize(("model_type", "config"), WRONG, ids=[f"{case[0]}-{number}" for number, case in enumerate(WRONG)])
def test_what_the_class_does_not_build_is_refused(model_type, config):
    with pytest.raises(BadInput):
        oracle.spec(model_type, config)
