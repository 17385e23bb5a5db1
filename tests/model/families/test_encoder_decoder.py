"""Encoder-decoder families: counts and caches against models that transformers builds here, and worked numbers."""

import importlib.util
from pathlib import Path

import pytest

from kvcli.dtypes import BF16, KvTypes
from kvcli.errors import BadInput, NotModelled
from kvcli.model.config import spec_from_config
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload

transformers = pytest.importorskip("transformers")
SPEC = importlib.util.spec_from_file_location("oracle", Path(__file__).resolve().parents[3] / "benchmarks" / "oracle.py")
oracle = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(oracle)

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "dtype": "bfloat16"}
BART = {
    **IDS,
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 56,
    "max_position_embeddings": 40,
}
T5 = {**IDS, "vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3}
HALF = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 8,
    **IDS,
}
OTHER = {**HALF, "hidden_size": 48, "num_hidden_layers": 3, "num_key_value_heads": 1, "vocab_size": 80, "intermediate_size": 56}
WHISPER = {key: value for key, value in BART.items() if key != "max_position_embeddings"}
WHISPER |= {"num_mel_bins": 8, "max_source_positions": 24, "max_target_positions": 40}
TEXT = {
    "model_type": "mllama_text_model",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "cross_attention_layers": [1, 3],
    "pad_token_id": 0,
    "dtype": "bfloat16",
}
KINDS = ("bart", "mbart", "pegasus", "m2m_100", "marian", "blenderbot", "blenderbot-small")
TINY = [
    *({"model_type": kind, **BART} for kind in KINDS),
    *({"model_type": kind, **BART, "tie_word_embeddings": False} for kind in ("bart", "mbart", "m2m_100", "pegasus", "marian")),
    {"model_type": "marian", **BART, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 80},
    {"model_type": "marian", **BART, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 80, "tie_word_embeddings": False},
    {"model_type": "marian", **BART, "decoder_vocab_size": 80},
    {"model_type": "whisper", **WHISPER},
    {"model_type": "whisper", **WHISPER, "tie_word_embeddings": False},
    *({"model_type": kind, **T5} for kind in ("t5", "mt5", "umt5")),
    {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    {"model_type": "umt5", **T5, "feed_forward_proj": "relu", "relative_attention_num_buckets": 16, "num_decoder_layers": None},
    {"model_type": "t5gemma", "vocab_size": 96, "encoder": HALF, "decoder": {**HALF, "num_hidden_layers": 3}, "dtype": "bfloat16"},
    {"model_type": "t5gemma", "vocab_size": 96, "encoder": HALF, "decoder": OTHER, "tie_word_embeddings": False, "dtype": "bfloat16"},
    {
        "model_type": "t5gemma",
        "vocab_size": 96,
        "encoder": {**HALF, "attention_bias": True},
        "decoder": {**OTHER, "attention_bias": True, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
        "dtype": "bfloat16",
    },
    {"model_type": "mllama", "text_config": TEXT, "dtype": "bfloat16"},
    {"model_type": "mllama", "text_config": {**TEXT, "cross_attention_layers": [0], "tie_word_embeddings": True}, "dtype": "bfloat16"},
]


def named(config):
    skipped = ("vocab_size", *IDS)
    return "-".join([config["model_type"], *(key for key in config if key not in (*skipped, *BART, *WHISPER, *T5, "model_type"))])


def plan_of(config, tokens=8, engine="ideal", batch=1, encoder_tokens=0):
    spec = spec_from_config(config, "m", "m")
    workload = Workload(tokens, batch, encoder_tokens=encoder_tokens)
    return build(PlanRequest(spec, workload, policy(engine), kv=KvTypes(spec.dtype, spec.dtype)))


@pytest.mark.parametrize("config", TINY, ids=named)
def test_counts_and_cache_equal_those_of_transformers(config):
    row = oracle.measure(config, tokens=(1, 7, 8, 9, 20), encoder_tokens=12)
    assert all(row["cache_bytes"].values())
    assert oracle.differences(row) == []
    assert spec_from_config(config, "m", "m").tied == row["tied"]


@pytest.mark.parametrize("kind", [*KINDS, "whisper", "t5", "mt5", "umt5", "t5gemma", "mllama"])
def test_class_defaults(kind):
    config = {"model_type": kind}
    if kind == "mllama":
        config["text_config"] = {"model_type": "mllama_text_model"}
    row = oracle.measure(config, tokens=(1, 64), encoder_tokens=5)
    assert oracle.differences(row) == []


def test_a_decode_step_reads_no_encoder_and_projects_no_encoder_output():
    """What transformers runs of the decoder once the cross cache is there, module by module."""
    model, _ = oracle.make({"model_type": "bart", **BART})
    spec = spec_from_config({"model_type": "bart", **BART}, "m", "m")
    unread = [p for name, p in model.named_parameters() if "encoder_attn.k_proj" in name or "encoder_attn.v_proj" in name]
    unread += [p for name, p in model.named_parameters() if ".encoder." in name and "embed" not in name]
    unread += [p for name, p in model.named_parameters() if ".encoder.layernorm_embedding" in name]
    assert spec.encoder_parameters == sum(p.numel() for p in unread)
    assert spec.step_parameters == spec.active_parameters - spec.encoder_parameters
    plan = plan_of({"model_type": "bart", **BART})
    assert plan.weights.read_bytes_per_step == 2 * spec.step_parameters
    assert plan.weights.resident_bytes == 2 * spec.parameters


def test_vision_tower_of_mllama():
    vision = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_global_layers": 2,
        "attention_heads": 2,
        "intermediate_size": 24,
        "vision_output_dim": 32,
        "image_size": 28,
        "patch_size": 14,
        "intermediate_layers_indices": [1],
    }
    config = {"model_type": "mllama", "text_config": TEXT, "vision_config": vision}
    full = transformers.AutoConfig.for_model(**config)
    with oracle.torch.device("meta"):
        model = transformers.MllamaForConditionalGeneration(full)
    spec = spec_from_config(config, "m", "m")
    assert spec.tower_parameters + spec.parameters == sum(p.numel() for p in model.parameters())
    assert spec_from_config({**config, "vision_config": None}, "m", "m").tower_parameters == 0


WHISPER_LARGE_V3 = {
    "model_type": "whisper",
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 32,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "vocab_size": 51866,
    "num_mel_bins": 128,
    "torch_dtype": "float16",
}


def test_whisper_large_v3():
    """163,840 B a token of self-attention; 30 s of audio are 1500 frames: 32 x 2 x 1280 x 1500 x 2 B."""
    plan = plan_of(WHISPER_LARGE_V3, tokens=10, batch=2)
    assert plan.spec.parameters == 1_543_490_560  # the published safetensors total
    assert plan.cache.bytes_per_token == 163_840
    assert plan.cache.needed_bytes == 2 * 10 * 163_840
    assert plan.cache.state_bytes == 2 * 245_760_000
    assert plan.cache.read_bytes_per_step == plan.cache.needed_bytes + plan.cache.state_bytes
    assert plan.cache.written_bytes_per_step == 2 * 163_840  # the cross cache is only read
    assert [notice.code for notice in plan.notices] == []
    assert plan_of(WHISPER_LARGE_V3, encoder_tokens=750).cache.state_bytes == 245_760_000 // 2
    (record,) = [r for group in plan.spec.groups for r in group.records if r.kind == "cross_attention"]
    assert record.step_flops(10, 0) == 2 * 20 * 128 * 1500


def test_mllama_keeps_no_text_token_in_cross_layers():
    """Llama-3.2-11B-Vision: 32 of 40 layers grow; an image of 4 tiles is 6,404 tokens in the other 8."""
    config = {"model_type": "mllama", "torch_dtype": "bfloat16", "text_config": {"model_type": "mllama_text_model"}}
    plan = plan_of(config, tokens=1000, encoder_tokens=6404)
    assert plan.cache.bytes_per_token == 32 * 2 * 8 * 128 * 2
    assert plan.cache.needed_bytes == 1000 * plan.cache.bytes_per_token
    assert plan.cache.state_bytes == 8 * 2 * 8 * 128 * 2 * 6404
    assert [(row.kind, row.count) for row in plan.cache.rows] == [("full_attention", 32), ("cross_attention", 8)]


def test_t5_head_dim_is_its_own_key():
    """T5-3B: 24 layers, 32 heads of 128 with d_model 1024."""
    config = {"model_type": "t5", "d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_heads": 32, "num_layers": 24, "dtype": "bfloat16"}
    plan = plan_of(config, encoder_tokens=512)
    assert plan.cache.bytes_per_token == 24 * 2 * 32 * 128 * 2
    assert plan.cache.state_bytes == 512 * plan.cache.bytes_per_token
    assert plan.spec.parameters == 2_851_598_336  # the published total


def test_float32_files_double_the_cache():
    single, double = (plan_of({"model_type": "t5", **T5, "dtype": name}, encoder_tokens=4) for name in ("bfloat16", "float32"))
    assert double.cache.stored_bytes == 2 * single.cache.stored_bytes
    assert single.spec.dtype == BF16


@pytest.mark.parametrize("engine", ["ideal", "transformers"])
def test_unknown_encoder_tokens_are_said(engine):
    config = {"model_type": "bart", **BART}
    silent = plan_of(config, engine=engine, encoder_tokens=4)
    told = plan_of(config, engine=engine)
    assert "encoder_tokens_missing" not in [notice.code for notice in silent.notices]
    (notice,) = [notice for notice in told.notices if notice.code == "encoder_tokens_missing"]
    assert "--encoder-tokens" in notice.message
    assert told.cache.state_bytes == 0


def test_decoders_without_cross_attention_get_no_notice():
    assert not plan_of({"model_type": "gpt2", "dtype": "float32"}).notices


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"model_type": "bart", "is_encoder_decoder": False}, NotModelled, "without its encoder"),
        ({"model_type": "bart", "d_model": 1000}, BadInput, "hidden size 1000"),
        ({"model_type": "whisper", "decoder_attention_heads": 7}, BadInput, "decoder_attention_heads"),
        ({"model_type": "t5", "feed_forward_proj": "twice-gated-gelu"}, BadInput, "feed_forward_proj"),
        ({"model_type": "t5gemma", "decoder": {"layer_types": ["linear_attention"] * 26}}, BadInput, "linear_attention"),
        ({"model_type": "t5gemma", "decoder": {"sliding_window": None}}, BadInput, "sliding"),
        ({"model_type": "t5gemma", "decoder": {"num_key_value_heads": 3}}, BadInput, "num_key_value_heads"),
        ({"model_type": "mllama", "text_config": {"cross_attention_layers": [40]}}, BadInput, "40 layers"),
        ({"model_type": "mllama", "text_config": {"head_dim": 64}}, BadInput, "head_dim"),
    ],
)
def test_what_is_refused(config, error, said):
    with pytest.raises(error, match=said):
        spec_from_config(config, "m", "m")
