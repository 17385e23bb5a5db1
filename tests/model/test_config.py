"""The config reader: class defaults, gotchas, and errors that name file, key and value."""

import json

import pytest

from kvcli.errors import BadInput, NotModelled
from kvcli.model.config import load_json, spec_from_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}


def read(**changes):
    return spec_from_config({**LLAMA, **changes}, "model", "config.json")


def test_the_plain_case():
    spec = read()
    (group,) = spec.groups
    assert (group.count, group.attention.num_key_value_heads, group.attention.key_dim, group.attention.value_dim) == (32, 8, 128, 128)
    assert spec.parameters == 8_030_261_248
    assert spec.active_parameters == 8_030_261_248 - 128256 * 4096
    assert spec.notices == ()


def test_null_heads_mean_one_for_each_query_head():
    assert read(num_key_value_heads=None).groups[0].attention.num_key_value_heads == 32


def test_null_head_dim_is_derived_and_a_given_one_wins():
    assert read(head_dim=None).groups[0].attention.key_dim == 128
    assert read(head_dim=64).groups[0].attention.key_dim == 64


def test_tied_tables_count_once_and_are_read():
    spec = read(tie_word_embeddings=True)
    assert spec.parameters == spec.active_parameters == 8_030_261_248 - 128256 * 4096


def test_missing_dtype_is_said():
    spec = spec_from_config({key: value for key, value in LLAMA.items() if key != "dtype"}, "model", "config.json")
    assert spec.dtype.name == "bf16"
    assert [notice.code for notice in spec.notices] == ["dtype_assumed"]
    assert read(dtype=None, torch_dtype="float16").dtype.name == "fp16"


def test_mistral_window_defaults_on_and_null_is_off():
    mistral = {**LLAMA, "model_type": "mistral"}
    assert spec_from_config(mistral, "m", "f").groups[0].attention.window_tokens == 4096
    assert spec_from_config({**mistral, "sliding_window": None}, "m", "f").groups[0].attention.window_tokens is None
    assert spec_from_config({**mistral, "sliding_window": 512}, "m", "f").groups[0].attention.window_tokens == 512


def test_qwen_windows_are_off_unless_switched_on():
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert [g.attention.window_tokens for g in spec_from_config(qwen, "m", "f").groups] == [None]
    groups = spec_from_config({**qwen, "use_sliding_window": True}, "m", "f").groups
    assert [(g.first, g.count, g.attention.window_tokens) for g in groups] == [(0, 28, None), (28, 4, 4096)]


def test_a_window_that_is_null_is_none_even_when_switched_on():
    qwen = {**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}
    assert [g.attention.window_tokens for g in spec_from_config(qwen, "m", "f").groups] == [None]


def test_gpt2_in_the_newer_spelling_and_its_variant():
    newer = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}
    spec = spec_from_config({"model_type": "gpt2", **newer}, "m", "f")
    assert (spec.parameters, spec.num_hidden_layers, spec.max_context_tokens) == (32_168_448, 2, 256)
    stray = spec_from_config({"model_type": "gpt2", "num_key_value_heads": 2, "head_dim": 32}, "m", "f")
    assert stray.parameters == 124_439_808
    with pytest.raises(NotModelled, match="cross-attention"):
        spec_from_config({"model_type": "gpt2", "add_cross_attention": True}, "m", "f")


def test_a_class_default_that_does_not_fit_says_that_it_is_one():
    without = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    with pytest.raises(BadInput, match="by the class default"):
        spec_from_config({**without, "model_type": "mistral", "num_attention_heads": 4}, "m", "f")


def test_layer_types_rule_and_may_be_longer_than_the_layers():
    kinds = ["full_attention", "sliding_attention"] * 16
    qwen = {**LLAMA, "model_type": "qwen3", "use_sliding_window": True, "sliding_window": 128, "layer_types": [*kinds, "mtp"]}
    groups = spec_from_config(qwen, "m", "f").groups
    assert [(g.first, g.count, g.attention.window_tokens) for g in groups] == [(0, 16, None), (1, 16, 128)]
    with pytest.raises(BadInput, match="layer_types"):
        spec_from_config({**qwen, "layer_types": kinds[:5]}, "m", "f")
    with pytest.raises(BadInput, match="mamba"):
        spec_from_config({**qwen, "layer_types": ["mamba"] * 32}, "m", "f")


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("llama", {"head_dim": 24, "num_key_value_heads": None}),
        ("mistral", {"sliding_window": 16}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 32}),
        ("qwen3", {"attention_bias": True}),
        ("phi3", {}),
        ("gpt2", {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 40, "n_inner": 100}),
        ("gpt2", {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 40}),
    ],
)
def test_parameters_and_cache_against_transformers(model_type, changes):
    """The oracle: transformers builds the same config and its parameters and cache elements are counted."""
    torch = pytest.importorskip("torch", reason="transformers, the oracle, needs torch")
    transformers = pytest.importorskip("transformers", reason="the oracle")
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    # gpt2 has names of its own for all of these
    config = {"vocab_size": 100, "pad_token_id": 0, **({} if model_type == "gpt2" else sizes), **changes}
    built = transformers.AutoConfig.for_model(model_type, **config)
    model = transformers.AutoModelForCausalLM.from_config(built)
    spec = spec_from_config({"model_type": model_type, **config}, "m", "f")
    assert spec.parameters == sum(p.numel() for p in model.parameters())
    cache = model(torch.zeros((1, 5), dtype=torch.long), use_cache=True).past_key_values
    layers = [(layer.keys.numel(), layer.values.numel()) for layer in cache.layers]
    attention = spec.groups[0].attention
    assert layers == [(5 * attention.num_key_value_heads * attention.key_dim, 5 * attention.num_key_value_heads * attention.value_dim)] * 3


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"num_hidden_layers": -3}, "num_hidden_layers", "-3"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers", "'32'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "1000000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers", "True"),
        ({"num_key_value_heads": 5}, "num_key_value_heads", "5"),
        ({"hidden_size": 4097}, "num_attention_heads", "32"),
        ({"vocab_size": 1.5}, "vocab_size", "1.5"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps", "nan"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps", "-1e-05"),
        ({"rope_theta": 0}, "rope_theta", "0"),
        ({"rope_theta": 10**400}, "rope_theta", "1000"),
        ({"partial_rotary_factor": 1e17}, "partial_rotary_factor", "1e+17"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor", "0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "'yes'"),
        ({"dtype": 16}, "dtype", "16"),
        ({"rope_scaling": "linear"}, "rope_scaling", "'linear'"),
        ({"head_dim": 7}, "head_dim", "7"),
        ({"layer_types": "full", "model_type": "qwen2"}, "layer_types", "'full'"),
    ],
)
def test_a_bad_value_names_file_key_and_value(changes, key, value):
    with pytest.raises(BadInput) as caught:
        read(**changes)
    assert all(part in caught.value.message for part in ("config.json", key, value))


def test_missing_field_and_unknown_type():
    config = dict(LLAMA)
    del config["hidden_size"]
    with pytest.raises(BadInput, match="hidden_size"):
        spec_from_config(config, "m", "config.json")
    with pytest.raises(NotModelled, match="not_a_model"):
        read(model_type="not_a_model")
    with pytest.raises(BadInput, match="model_type"):
        read(model_type=None)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"a":' * 100_000, b"null", b"12"])
def test_a_file_that_is_no_config(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"config\.json"):
        load_json(path)


def test_unreadable_files(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        load_json(tmp_path / "config.json")
    with pytest.raises(BadInput, match="is a directory"):
        load_json(tmp_path)
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(BadInput, match="larger"):
        load_json(big)


def test_reading_a_folder_takes_its_name(tmp_path):
    from kvcli.model.resolve import resolve

    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert resolve(str(folder)).name == "my-model"
    assert resolve(str(folder / "config.json")).parameters == 8_030_261_248


def test_a_multimodal_file_plans_its_decoder_and_says_what_that_leaves_out():
    text = {"model_type": "gemma3_text", "hidden_size": 640, "num_hidden_layers": 2, "intermediate_size": 64}
    spec = spec_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}, "dtype": "bfloat16"}, "m", "f")
    assert {"image_tokens", "towers_not_counted"} <= {notice.code for notice in spec.notices}
    plain = spec_from_config({**text, "dtype": "bfloat16"}, "m", "f")
    assert plain.notices == ()
    assert spec.groups == plain.groups


def test_an_unknown_type_names_itself_and_what_the_file_has():
    with pytest.raises(NotModelled) as caught:
        spec_from_config({"model_type": "brand_new", "hidden_size": 8, "n_experts": 4}, "m", "f")
    assert all(word in caught.value.message for word in ("brand_new", "hidden_size", "n_experts"))
    assert "--assume gqa" in caught.value.hint


def test_a_plain_type_with_its_keys_nested_is_not_read_as_class_defaults():
    nested = {key: value for key, value in LLAMA.items() if key not in ("model_type", "dtype")}
    spec = spec_from_config({"model_type": "llama", "dtype": "bfloat16", "text_config": nested}, "m", "f")
    assert spec.parameters == 8_030_261_248
    inner = spec_from_config({"model_type": "llama", "text_config": {**nested, "model_type": "qwen2"}}, "m", "f")
    assert inner.model_type == "qwen2"


def codes(config):
    return {notice.code for notice in spec_from_config({**LLAMA, **config}, "m", "f").notices}


def test_what_could_mislead_is_labelled():
    assert codes({}) == set()
    assert codes({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}) == {"remote_code"}
    assert codes({"architectures": ["LlamaForCausalLM"]}) == set()
    assert codes({"architectures": ["LlamaForSequenceClassification"]}) == {"head_assumed"}
    assert codes({"sliding_window": 4096}) == {"window_unused"}
    assert codes({"sliding_window": None}) == set()
    assert codes({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}) == set()
    with pytest.raises(NotModelled, match="own code"):
        read(num_key_value_heads_per_layer=[4] * 32)


def test_mistral_obeys_layer_types():
    mistral = {**LLAMA, "model_type": "mistral", "num_hidden_layers": 4, "sliding_window": 9}
    kinds = ["full_attention", "sliding_attention"] * 2
    windows = [g.attention.window_tokens for g in spec_from_config({**mistral, "layer_types": kinds}, "m", "f").groups]
    assert windows == [None, 9]
    full = spec_from_config({**mistral, "layer_types": ["full_attention"] * 4}, "m", "f").groups
    assert [g.attention.window_tokens for g in full] == [None]


@pytest.mark.parametrize("wrapper", ["voxtral", "glmasr", "mistral3"])
def test_a_wrapper_with_defaults_of_its_own_must_say_its_sizes(wrapper):
    for config in ({"model_type": wrapper}, {"model_type": wrapper, "text_config": {"num_hidden_layers": 3}}):
        with pytest.raises(BadInput, match="has no"):
            spec_from_config(config, "m", "f")


def test_an_unknown_outer_type_is_refused_whatever_it_nests():
    with pytest.raises(NotModelled, match="mystery_cross"):
        spec_from_config({"model_type": "mystery_cross", "text_config": LLAMA}, "m", "f")


def test_the_only_spelling_given_is_the_one_that_counts():
    assert spec_from_config({"model_type": "xlstm", "num_blocks": 4}, "m", "f").parameters == 1_218_760_768
    with pytest.raises(BadInput, match="is_gated_act"):
        spec_from_config({"model_type": "t5", "is_gated_act": True}, "m", "f")
