"""Dense families against transformers' own models: each flag a reader reads is switched in some tiny config."""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the oracle")

from kvcli.errors import BadInput, NotModelled  # noqa: E402

_spec = importlib.util.spec_from_file_location("dense_oracle", Path(__file__).with_name("dense_oracle.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)
TINY = oracle.TINY
tiny_spec = oracle.tiny_spec

MHA = {key: value for key, value in TINY.items() if key not in ("num_key_value_heads", "head_dim")}
GQA = {key: value for key, value in TINY.items() if key != "head_dim"}
GPT = {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "pad_token_id": 0}
CTRL = {**GPT, "dff": 40}
NEO = {"vocab_size": 61, "hidden_size": 32, "num_layers": 3, "num_heads": 4, "max_position_embeddings": 64}
OPT = {**MHA, "ffn_dim": 48}
XGLM = {"vocab_size": 61, "d_model": 32, "ffn_dim": 48, "num_layers": 3, "attention_heads": 4, "pad_token_id": 0}
BLOOM = {"vocab_size": 61, "hidden_size": 32, "n_layer": 3, "n_head": 4}
MPT = {"vocab_size": 61, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64}
FALCON = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
NEW_FALCON = {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
HRM = {**MHA, "num_hidden_layers": 2}
TYPES = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
TIE, UNTIE = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
BIAS = {"attention_bias": True}
BIASES = {**BIAS, "mlp_bias": True}
WINDOW = {"sliding_window": 5}
LISTED = {**WINDOW, "layer_types": TYPES}

CASES = [
    ("gptj", {**GPT, "rotary_dim": 4}),
    ("gptj", {**GPT, "rotary_dim": 4, "n_inner": 40, **TIE}),
    ("codegen", {**GPT, "rotary_dim": 4}),
    ("codegen", {**GPT, "rotary_dim": 4, "n_inner": 40}),
    ("gpt_neo", {**NEO, "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 4}),
    ("gpt_neo", {**NEO, "attention_types": [[["global"], 3]], "intermediate_size": 40, **UNTIE}),
    ("gpt_bigcode", GPT),
    ("gpt_bigcode", {**GPT, "multi_query": False, "n_inner": 40, **UNTIE}),
    ("gpt-sw3", GPT),
    ("ctrl", CTRL),
    ("ctrl", {**CTRL, **UNTIE}),
    ("gpt_neox", MHA),
    ("gpt_neox", {**MHA, "num_key_value_heads": 2, "attention_bias": False, "use_parallel_residual": False, **TIE}),
    ("gpt_neox_japanese", {k: v for k, v in MHA.items() if k != "intermediate_size"}),
    ("gpt_neox_japanese", {**MHA, "intermediate_multiple_size": 2, **UNTIE}),
    ("opt", OPT),
    ("opt", {**OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    ("opt", {**OPT, "word_embed_proj_dim": 16, "enable_bias": False, **UNTIE}),
    ("opt", {**OPT, "layer_norm_elementwise_affine": False}),
    ("opt", {**OPT, "_remove_final_layer_norm": True}),
    ("biogpt", MHA),
    ("biogpt", {**MHA, **UNTIE}),
    ("xglm", XGLM),
    ("xglm", {**XGLM, **UNTIE}),
    ("bloom", BLOOM),
    ("bloom", {**BLOOM, "n_embed": 16, **UNTIE}),
    ("mpt", MPT),
    ("mpt", {**MPT, **UNTIE}),
    ("falcon", FALCON),
    ("falcon", {**FALCON, "multi_query": False, "alibi": True, "bias": True, "parallel_attn": False}),
    ("falcon", {**FALCON, "ffn_hidden_size": 40, **UNTIE}),
    ("falcon", NEW_FALCON),
    ("falcon", {**NEW_FALCON, "num_ln_in_parallel_attn": 1, "multi_query": True}),
    ("falcon", {**FALCON, "new_decoder_architecture": True, "multi_query": False, "bias": True}),
    ("persimmon", MHA),
    ("persimmon", {**MHA, "qk_layernorm": False, **TIE}),
    ("phi", GQA),
    ("phi", {**MHA, "qk_layernorm": True, "num_key_value_heads": None, **TIE}),
    ("stablelm", GQA),
    ("stablelm", {**GQA, "qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True, **TIE}),
    ("starcoder2", TINY),
    ("starcoder2", {**GQA, "use_bias": False, **WINDOW, **UNTIE}),
    ("nemotron", TINY),
    ("nemotron", {**TINY, **BIASES, **TIE}),
    ("jais2", TINY),
    ("jais2", {**TINY, "attention_bias": False, "mlp_bias": False, **TIE}),
    ("cohere", TINY),
    ("cohere", {**GQA, **BIAS, "use_qk_norm": True, **UNTIE}),
    ("cohere2", {**TINY, **WINDOW}),
    ("cohere2", {**GQA, **BIAS, **LISTED, **UNTIE}),
    ("cohere2", {**GQA, **WINDOW, "sliding_window_pattern": 2}),
    ("cohere_compass_text", {**GQA, **LISTED, "rope_parameters": {t: {"rope_type": "default", "rope_theta": 1e4} for t in set(TYPES)}}),
    ("granite", GQA),
    ("granite", {**TINY, **BIASES, **TIE}),
    ("granite_swa", {**TINY, **WINDOW}),
    ("granite_swa", {**TINY, **BIASES, **LISTED, **UNTIE}),
    ("hyperclovax", TINY),
    ("hyperclovax", {**TINY, **BIASES, "use_post_norm": False, **TIE}),
    ("olmo", TINY),
    ("olmo", {**GQA, **BIAS, **TIE}),
    ("olmo2", TINY),
    ("olmo2", {**GQA, **BIAS, **TIE}),
    ("olmo3", {**TINY, **WINDOW}),
    ("olmo3", {**GQA, **BIAS, **LISTED, **TIE}),
    ("glm", TINY),
    ("glm", {**TINY, "attention_bias": False, **TIE}),
    ("glm4", TINY),
    ("glm4", {**TINY, "attention_bias": False, **TIE}),
    ("exaone4", {**TINY, **WINDOW}),
    ("exaone4", {**TINY, **WINDOW, "sliding_window_pattern": 2}),
    ("exaone4", {**TINY, **LISTED, "sliding_window_pattern": "LLLG", **TIE}),
    ("exaone4", {**TINY, "sliding_window": None, "layer_types": ["full_attention"] * 4}),
    ("smollm3", {**TINY, **WINDOW}),
    ("smollm3", {**TINY, **WINDOW, "use_sliding_window": True, "no_rope_layer_interval": 2}),
    ("smollm3", {**TINY, **BIASES, **WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 0, 0, 1], **UNTIE}),
    ("apertus", TINY),
    ("apertus", {**TINY, **BIAS, "hidden_act": "silu", **TIE}),
    ("arcee", TINY),
    ("arcee", {**TINY, **BIASES, **TIE}),
    ("bitnet", GQA),
    ("bitnet", {**GQA, **BIAS, **TIE}),
    ("hunyuan_v1_dense", TINY),
    ("hunyuan_v1_dense", {**TINY, **BIAS, **TIE}),
    ("diffllama", TINY),
    ("diffllama", {**GQA, **BIAS, **TIE}),
    ("ministral", {**TINY, **WINDOW}),
    ("ministral", {**TINY, **LISTED, **TIE}),
    ("ministral3", TINY),
    ("ministral3", {**TINY, **WINDOW, **TIE}),
    ("doge", {**TINY, "keep_window_size": 4}),
    ("doge", {**GQA, **BIASES, **TIE}),
    ("nanochat", TINY),
    ("nanochat", {**GQA, **BIAS, **TIE}),
    ("internlm3", TINY),
    ("internlm3", {**TINY, **BIASES, "head_dim": None, **TIE}),
    ("iquestcoder", {**TINY, **BIASES}),
    ("seed_oss", TINY),
    ("seed_oss", {**TINY, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True, **TIE}),
    ("cwm", {**TINY, **WINDOW}),
    ("cwm", {**TINY, **LISTED, "mlp_bias": True, **TIE}),
    ("helium", {**TINY, "head_dim": 8}),
    ("helium", {**TINY, "head_dim": 8, **BIASES, **TIE}),
    ("ernie4_5", TINY),
    ("ernie4_5", {**TINY, "use_bias": True, **UNTIE}),
    ("gemma", TINY),
    ("gemma", {**TINY, **BIAS, **UNTIE}),
    ("gemma2", {**TINY, **WINDOW}),
    ("gemma2", {**TINY, **BIAS, **LISTED, **UNTIE}),
    ("vaultgemma", {**TINY, **WINDOW}),
    ("vaultgemma", {**TINY, **BIAS, **LISTED, **UNTIE}),
    ("gemma3_text", {**TINY, **WINDOW, "num_hidden_layers": 7}),
    ("gemma3_text", {**TINY, **WINDOW, "sliding_window_pattern": 2}),
    ("gemma3_text", {**TINY, **BIAS, **LISTED, **UNTIE}),
    ("gemma3_text", {**TINY, "sliding_window": 8, "use_bidirectional_attention": True, "num_hidden_layers": 6}),
    ("modernbert-decoder", {**MHA, "local_attention": 10}),
    ("modernbert-decoder", {**MHA, **BIASES, "local_attention": 8, "norm_bias": True, "decoder_bias": False, **UNTIE}),
    ("modernbert-decoder", {**MHA, "local_attention": 8, "classifier_bias": True, "global_attn_every_n_layers": 2}),
    ("modernbert-decoder", {**MHA, "local_attention": 8, "layer_types": TYPES}),
    ("hrm_text", HRM),
    ("hrm_text", {**HRM, **BIASES, "H_cycles": 1, "L_cycles": 2, "head_dim": 16, **TIE}),
    ("hrm_text", {**HRM, "num_layers_per_stack": 1, "num_hidden_layers": 4, "L_cycles": 1}),
]


@pytest.mark.parametrize(("model_type", "config"), CASES, ids=[f"{index}-{case[0]}" for index, case in enumerate(CASES)])
def test_a_tiny_model(model_type, config):
    oracle.check(model_type, config)


#: configs whose model transformers builds but cannot run
PARAMETERS_ONLY = [
    ("falcon", {**FALCON, "num_ln_in_parallel_attn": 2}),
    ("ministral", {**TINY, "sliding_window": None}),
    ("stablelm", TINY),
]


@pytest.mark.parametrize(("model_type", "config"), PARAMETERS_ONLY)
def test_parameters_of_a_tiny_model(model_type, config):
    assert tiny_spec(model_type, config).parameters == oracle.unique_parameters(oracle.build_model(model_type, config, "meta"))


#: classes whose own defaults do not build (5.23): Ministral and Hunyuan compute with a head dim of None, Nemotron with no KV heads
UNBUILDABLE = {"ministral", "hunyuan_v1_dense", "nemotron", "cohere_compass_text"}


@pytest.mark.parametrize("model_type", sorted({case[0] for case in CASES} - UNBUILDABLE))
def test_class_defaults(model_type):
    spec = tiny_spec(model_type, {})
    assert spec.parameters == oracle.default_parameters(model_type)


def test_gpt1_has_no_cache_in_transformers():
    config = {**GPT, "afn": "gelu"}
    spec = tiny_spec("openai-gpt", config)
    model = oracle.build_model("openai-gpt", config)
    assert spec.parameters == oracle.unique_parameters(model)
    assert getattr(model(input_ids=torch.ones((1, 3), dtype=torch.long)), "past_key_values", None) is None
    assert oracle.stored_bytes(spec, 3) == 0
    assert tiny_spec("openai-gpt", {}).parameters == oracle.default_parameters("openai-gpt")


def test_refused_variants():
    for model_type, config, key in (
        ("mpt", {**MPT, "attn_config": {"alibi": False}}, "alibi"),
        ("mpt", {**MPT, "attn_config": {"kv_n_heads": 2}}, "kv_n_heads"),
        ("mpt", {**MPT, "attn_config": {"qk_ln": True}}, "qk_ln"),
        ("mpt", {**MPT, "no_bias": False}, "no_bias"),
        ("gpt_neo", {**NEO, "attention_types": [[["global"], 2]]}, "attention_types"),
        ("gpt_neo", {**NEO, "attention_types": [[["ring"], 3]]}, "attention_types"),
        ("gpt_neo", {**NEO, "attention_types": 7}, "attention_types"),
        ("gpt_bigcode", {**GPT, "add_cross_attention": True}, "add_cross_attention"),
        ("gemma3_text", {**TINY, "layer_types": ["chunked_attention"] * 4}, "layer_types"),
        ("gemma2", {**TINY, "sliding_window": None}, "sliding_window"),
        ("exaone4", {**TINY, "sliding_window_pattern": "LXG"}, "sliding_window_pattern"),
        ("falcon", {**NEW_FALCON, "num_kv_heads": 3}, "num_kv_heads"),
        ("gptj", {**GPT, "n_head": 5}, "n_head"),
        ("doge", {**TINY, "is_moe": True}, "is_moe"),
        ("hrm_text", {**HRM, "num_layers_per_stack": 2, "num_hidden_layers": 15}, "num_hidden_layers"),
    ):
        with pytest.raises(BadInput, match=key):
            tiny_spec(model_type, config)
    for model_type in ("granite", "gptj", "internlm3", "opt"):
        with pytest.raises(NotModelled, match="per_layer_config"):
            tiny_spec(model_type, {"per_layer_config": {"00": {"head_dim": 8}}})


SLIDING = ["olmo3", "granite_swa", "cohere2", "exaone4", "smollm3", "ministral", "cwm", "gemma2", "gemma3_text", "vaultgemma"]


@pytest.mark.parametrize("model_type", SLIDING)
def test_layer_types_decide(model_type):
    """Longer lists belong to other blocks, unknown names are errors, and null is as good as absent."""
    more = {"use_sliding_window": True} if model_type == "smollm3" else {}
    listed = tiny_spec(model_type, {**TINY, **LISTED, **more})
    assert listed.windows == (5, None, None, 5)
    assert tiny_spec(model_type, {**TINY, **LISTED, **more, "layer_types": [*TYPES, "chunked_attention"]}).windows == listed.windows
    with pytest.raises(BadInput, match="chunked"):
        tiny_spec(model_type, {**TINY, **LISTED, **more, "layer_types": ["chunked_attention", *TYPES[1:]]})
    null = {"layer_types": None, "num_key_value_heads": None, "head_dim": None}
    spec = tiny_spec(model_type, {**TINY, **WINDOW, **more, **null})
    record = spec.groups[0].attention
    assert record.num_key_value_heads == 4 and record.key_dim == 8
    absent = {key: value for key, value in TINY.items() if key != "head_dim"}
    assert spec.windows == tiny_spec(model_type, {**absent, **WINDOW, **more}).windows


def test_a_window_that_is_off():
    """Qwen2-VL and SmolLM3 files may name a window that a flag switches off."""
    for model_type in ("qwen2_vl_text", "qwen2_5_vl_text", "smollm3"):
        assert set(tiny_spec(model_type, {**TINY, **WINDOW, "use_sliding_window": False}).windows) == {None}
    on = {**TINY, **WINDOW, "use_sliding_window": True, "max_window_layers": 3}
    assert tiny_spec("qwen2_vl_text", on).windows == (None, None, None, 5)


def test_head_dim_is_not_hidden_size_over_heads():
    """Seed-OSS-36B (5,120 over 80 heads of 128), Gemma-7B (3,072 over 16 of 256), Nemotron with H / A = 128."""
    assert tiny_spec("seed_oss", {"hidden_size": 5120}).groups[0].attention.key_dim == 128
    assert tiny_spec("gemma", {}).groups[0].attention.key_dim == 256
    assert tiny_spec("ministral", {}).groups[0].attention.key_dim == 128
