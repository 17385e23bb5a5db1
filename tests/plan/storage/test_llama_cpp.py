"""llama.cpp's buffers: worked sizes, each of whose workings stands beside it, and what holds for every model."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcli import dtypes
from kvcli.errors import BadInput, NotModelled
from kvcli.model.cache_records import Attention
from kvcli.model.latent_records import Compressed, Latent
from kvcli.model.layers import LayerGroup, LayerParameters
from kvcli.model.resolve import resolve
from kvcli.model.state_records import Cross, Recurrent
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload

MIB, GIB = 2**20, 2**30
LLAMA = resolve("llama3-8b")


def plan(model, context, batch=1, kv=None, engine="llama.cpp", **options):
    spec = resolve(model) if isinstance(model, str) else model
    rule = policy(engine, EngineOptions(**options))
    return build(PlanRequest(spec, Workload(context, batch), rule, kv=dtypes.parse_kv(kv) if kv else None))


def model_of(*records, model_type="llama", layers=1):
    groups = tuple(LayerGroup(index, layers, (record,), LayerParameters()) for index, record in enumerate(records))
    return replace(LLAMA, model_type=model_type, groups=groups, order=tuple(range(len(records))))


def stored(*arguments, **options):
    return plan(*arguments, **options).cache.stored_bytes


@pytest.mark.parametrize(
    ("model", "context", "batch", "options", "size"),
    [
        # 62 layers x 131,072 cells x 8,192 B: 2 x 16 heads x 128 x 2 B
        ("gemma3-27b", 131072, 1, {"swa_full": True}, 62 * GIB),
        # 10 layers of that, and 52 of pad256(1,024 + 512) = 1,536 cells
        ("gemma3-27b", 131072, 1, {}, 10 * GIB + 52 * 1536 * 8192),
        # 12 x 131,072 and 12 x pad256(128 + 512 = 640) = 768 cells of 2 x 8 x 64 x 2 B
        ("gpt-oss-20b", 131072, 1, {}, 12 * 2048 * (131072 + 768)),
        # four slots of their own: 4 x 768; in one buffer pad256(4 x 128 + 512) = 1,024
        ("gpt-oss-20b", 8192, 4, {}, 12 * 2048 * 4 * (8192 + 768)),
        # one buffer of 8,192 cells for four slots, in which one sequence may take all; the window's cells grow with the slots
        ("gpt-oss-20b", 8192, 1, {"parallel": 4, "kv_unified": True, "shared_tokens": 8192}, 12 * 2048 * (8192 + 1024)),
        # 36 layers x 40,960 x 4,096 B = 5.625 GiB, with one sequence of 40,960 and with four of 10,240
        ("qwen3-8b", 40960, 1, {"parallel": 4, "kv_unified": True, "shared_tokens": 40960}, 36 * 40960 * 4096),
        ("qwen3-8b", 10240, 4, {"parallel": 4, "kv_unified": True, "shared_tokens": 40960}, 36 * 40960 * 4096),
        ("gpt-oss-20b", 8192, 4, {"kv_unified": True}, 12 * 2048 * (4 * 8192 + 1024)),
        # the window cache is never longer than the full one
        ("gpt-oss-20b", 300, 1, {}, 24 * 2048 * 512),
        ("gpt-oss-20b", 8192, 1, {"ubatch": 2048}, 12 * 2048 * (8192 + 2304)),
        # chunks of 8,192 are windows: 36 of 48 layers hold pad256(8,192 + 512) = 8,704 cells of 2 x 8 x 128 x 2 B
        ("llama4-scout", 65536, 1, {}, 4096 * (12 * 65536 + 36 * 8704)),
        # 1,000 tokens are 1,024 cells for each of three sequences; together 3,000 are 3,072
        ("llama3-8b", 1000, 3, {}, 131072 * 3 * 1024),
        ("llama3-8b", 1000, 3, {"kv_unified": True}, 131072 * 3072),
        # 300 tokens: 512 each, or 900 -> 1,024 for all
        ("llama3-8b", 300, 3, {}, 131072 * 3 * 512),
        ("llama3-8b", 300, 3, {"kv_unified": True}, 131072 * 1024),
        ("llama3-8b", 1024, 1, {"parallel": 4}, 131072 * 4 * 1024),
        # windows that it does not read: 32 layers of 32,768 cells
        ("mistral-7b-v0.1", 32768, 1, {}, 4 * GIB),
        ("phi-3-mini-4k", 4096, 1, {}, 1536 * MIB),
        # 576 elements a row and no values; 128 more for the indexer, in layers that own one
        ("deepseek-v3", 4096, 1, {}, 61 * 576 * 2 * 4096),
        ("deepseek-v3.2", 4096, 1, {}, 61 * (576 + 128) * 2 * 4096),
        ("glm-5.2", 4096, 1, {}, (78 * 576 + 21 * 128) * 2 * 4096),
        # float32, K - 1 = 3 columns, a row for each slot: 48 x (10,240 x 3 + 48 x 128 x 128) x 4 B
        ("qwen3.5-27b", 256, 2, {}, 2 * (48 * (10240 * 3 + 786432) * 4 + 65536 * 256)),
        # 64 layers x 5,120 channels x (3 columns + 16 state) x 4 B = 23.75 MiB, whatever the context
        ("mamba-2.8b", 4096, 1, {}, 64 * 5120 * 19 * 4),
    ],
)
def test_worked(model, context, batch, options, size):
    assert stored(model, context, batch, **options) == size


def test_deepseek_v4_has_six_buffers():
    """Of each slot: 2,048 raw cells at most 128 + 512 -> 768, entries padded to 256, compressor states in float32."""
    d, index = 512, 128
    csa = 768 * d * 2 + 1024 * (d + index) * 2 + 2 * 8 * 2 * (d + index) * 4  # 4,096 / 4 entries
    hca = 768 * d * 2 + 256 * d * 2 + 2 * 128 * d * 4  # 4,096 / 128 = 32 entries in 256 cells
    assert stored("deepseek-v4-flash", 4096) == 2 * 768 * d * 2 + 21 * csa + 20 * hca
    # every slot has streams of its own although 8,192 cells are counted in one
    csa2 = 768 * d * 2 + 2048 * (d + index) * 2 + 2 * 8 * 2 * (d + index) * 4
    assert stored("deepseek-v4-flash", 4096, 2, kv_unified=True) == 2 * (2 * 768 * d * 2 + 21 * csa2 + 20 * hca)


def test_minimax_m3_keeps_values_beside_index_keys():
    record = Attention(64, 4, 128, 128, index_dim=128, index_heads=4)
    held = plan(model_of(record, model_type="minimax_m3_vl_text"), 4096)
    assert held.cache.stored_bytes == 4096 * 2 * (2 * 4 * 128 + 128 + 128)
    assert dict(held.cache.causes) == {"values beside index keys": 4096 * 2 * 128}
    with pytest.raises(NotModelled, match="index keys"):
        stored(model_of(record), 4096)


def test_layers_that_share_keep_nothing():
    own, shared = Attention(8, 2, 128, 128), Attention(8, 2, 128, 128, owns_cache=False)
    assert stored(model_of(own, shared), 256) == 256 * 1024


@pytest.mark.parametrize(
    ("kv", "bytes_per_32"),
    # block sizes of ggml-common.h
    [("f32", 128), ("f16", 64), ("bf16", 64), ("q8_0", 34), ("q5_1", 24), ("q5_0", 22), ("q4_1", 20), ("q4_0", 18), ("iq4_nl", 18)],
)
def test_types(kv, bytes_per_32):
    values = 32 * 8 * 128 * 4096  # of keys, and as many of values
    assert stored("llama3-8b", 4096, kv=kv) == 2 * values * bytes_per_32 // 32
    assert stored("llama3-8b", 4096, kv=f"{kv}:f16") == values * (bytes_per_32 + 64) // 32


def test_auto_is_fp16_and_scales_are_no_difference():
    assert resolve("smollm2-135m").dtype.name == "bf16"
    assert plan("smollm2-135m", 256).cache.kv.label == "fp16"
    assert plan("gpt2", 256).cache.kv.label == "fp16"
    assert plan("smollm2-135m", 256, engine="ollama").cache.kv.label == "fp16"
    assert plan("smollm2-135m", 256, engine="transformers").cache.kv.label == "bf16"
    held = plan("llama3-8b", 4096, kv="q8_0")
    assert held.cache.stored_bytes == held.cache.needed_bytes and not held.cache.causes


@pytest.mark.parametrize("kv", ["fp8", "int8", "nvfp4", "q8_0:int4"])
def test_types_it_has_not_are_refused(kv):
    with pytest.raises(BadInput, match="no cache of type"):
        stored("llama3-8b", 256, kv=kv)


def test_one_type_for_latent_rows():
    with pytest.raises(BadInput, match="latent rows in one type"):
        stored("deepseek-v3", 256, kv="q8_0:f16")


def test_rows_must_fill_blocks():
    with pytest.raises(BadInput, match="does not fill them"):
        stored(model_of(Attention(4, 4, 80, 80)), 256, kv="q8_0")


@pytest.mark.parametrize(
    ("record", "model_type"),
    [
        (Cross(8, 8, 64, 64), "t5"),
        (Recurrent("linear_attention", 8, 4, 8), "made_up"),
        (Recurrent("linear_attention", state_elements=8, plain_elements=8), "mamba"),
        (Attention(8, 8, 64, 64, window_tokens=128), "made_up"),
        (Latent(8, 512, 64, 128, 128, window_tokens=128), "deepseek_v3"),
        (Latent(8, 512, 64, 128, 128, index_dim=128, index_pool=16), "glm5_next_text"),
    ],
)
def test_what_has_no_rule_is_refused(record, model_type):
    with pytest.raises(NotModelled):
        stored(model_of(record, model_type=model_type), 4096)


def test_unknown_windows_are_known_in_full():
    assert stored(model_of(Attention(8, 8, 64, 64, window_tokens=128), model_type="made_up"), 4096, swa_full=True) == 4096 * 2048


def test_it_has_one_window_length():
    two = (Attention(8, 8, 64, 64, window_tokens=128), Attention(8, 8, 64, 64, window_tokens=256))
    with pytest.raises(NotModelled, match="different lengths"):
        stored(model_of(*two, model_type="gemma2"), 4096)


def test_slots():
    with pytest.raises(BadInput, match="cannot hold 3 sequences"):
        stored("llama3-8b", 256, 3, parallel=2)
    with pytest.raises(BadInput, match="at most 256 slots"):
        stored("llama3-8b", 256, 257)
    assert dict(plan("llama3-8b", 1000, 1, parallel=4).cache.causes) == {
        "slots without a sequence": 3 * 1000 * 131072,
        "padding of cells": 4 * 24 * 131072,
    }


def notices(*arguments, **options):
    return {notice.code: notice.message for notice in plan(*arguments, **options).notices}


def test_a_shared_buffer_is_bounded_as_a_whole():
    shared = {"parallel": 4, "kv_unified": True, "shared_tokens": 8000}
    cache = plan("qwen3-8b", 4000, 2, **shared).cache
    assert cache.stored_bytes == 36 * 4096 * 8192  # padded to 256
    assert cache.stored_bytes - cache.needed_bytes == 36 * 4096 * 192 == sum(size for _, size in cache.causes)
    with pytest.raises(BadInput, match="8,000 tokens cannot hold 8,004"):
        plan("qwen3-8b", 2001, 4, **shared)


def test_the_flags_that_realise_it_are_said():
    assert notices("llama3-8b", 1000, 3)["engine_flags"].endswith("with -c 3000 -np 3")
    said = notices("gpt-oss-20b", 1000, 1, kv="q8_0:q4_0", parallel=2, kv_unified=True, swa_full=True, ubatch=4096)
    assert said["engine_flags"].endswith("-c 2000 -np 2 -kvu --swa-full -b 4096 -ub 4096 -ctk q8_0 -ctv q4_0")
    assert "flash attention" in said["needs_flash_attention"]
    assert "needs_flash_attention" not in notices("llama3-8b", 256, kv="q8_0:f16")


def test_versions():
    assert plan("llama3-8b", 256).cache.engine_version == "2026-11"
    # cells padded to 32, one buffer; latent rows have values of 512 beside them
    assert stored("llama3-8b", 1000, 3, version="2025-05") == 131072 * 3008
    assert stored("llama3-8b", 1000, kv="q8_0", version="2025-05") == 131072 * 1024 * 34 // 64
    assert stored("deepseek-v3", 4096, version="2025-05") == 61 * (576 + 512) * 2 * 4096
    assert stored("gemma3-27b", 131072, version="2025-05") == 62 * GIB
    with pytest.raises(BadInput, match="no storage rule"):
        stored("llama3-8b", 256, version="b1")
    with pytest.raises(BadInput, match="stores so in any case"):
        stored("llama3-8b", 256, version="2025-05", swa_full=True)
    for model in ("mamba-2.8b", "deepseek-v3.2", "deepseek-v4-flash"):
        with pytest.raises(NotModelled, match="2025-05"):
            stored(model, 256, version="2025-05")


def test_ollama_is_llama_cpp_without_its_options():
    assert stored("gemma3-12b", 8192, 4, engine="ollama") == stored("gemma3-12b", 8192, 4)
    assert stored("llama3-8b", 8192, kv="q4_0", engine="ollama", parallel=2) == stored("llama3-8b", 8192, kv="q4_0", parallel=2)
    said = notices("llama3-8b", 8192, 2, kv="q8_0", engine="ollama")["engine_flags"]
    assert "num_ctx 8192 and OLLAMA_NUM_PARALLEL=2 and OLLAMA_KV_CACHE_TYPE=q8_0: -c 16384 -np 2" in said
    for options in ({"ubatch": 512}, {"kv_unified": True}, {"swa_full": True}, {"version": "0.1"}):
        with pytest.raises(BadInput):
            stored("llama3-8b", 256, engine="ollama", **options)
    with pytest.raises(BadInput, match="one type"):
        stored("llama3-8b", 256, kv="q8_0:f16", engine="ollama")
    with pytest.raises(BadInput, match="no cache of type q5_0"):
        stored("llama3-8b", 256, kv="q5_0", engine="ollama")
    assert stored("qwen3-next-80b-a3b", 256, engine="ollama")
    with pytest.raises(BadInput, match="one sequence of qwen3_next"):
        stored("qwen3-next-80b-a3b", 256, 2, engine="ollama")


RECORDS = [
    (Attention(8, 2, 64, 32), "llama"),
    (Attention(8, 2, 64, 32, window_tokens=700), "gemma2"),
    (Attention(8, 2, 64, 32, window_tokens=700), "mistral"),
    (Attention(8, 2, 64, 32, chunk_tokens=1000), "llama4_text"),
    (Latent(8, 512, 64, 128, 128, index_dim=128), "deepseek_v32"),
    (Compressed(8, 512, 128), "deepseek_v4"),
    (Compressed(8, 512, 128, 4, 128), "deepseek_v4"),
    (Compressed(8, 512, 128, 128), "deepseek_v4"),
    (Recurrent("linear_attention", 128, 4, 1024), "mamba"),
]


@pytest.mark.parametrize(("record", "model_type"), RECORDS)
@given(
    context=st.integers(1, 5000),
    batch=st.integers(1, 5),
    empty=st.integers(0, 3),
    ubatch=st.integers(1, 3000),
    unified=st.booleans(),
    swa_full=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_properties(record, model_type, context, batch, empty, ubatch, unified, swa_full):
    model = model_of(record, model_type=model_type)
    options = {"parallel": batch + empty, "ubatch": ubatch, "kv_unified": unified}
    cache = plan(model, context, batch, swa_full=swa_full, **options).cache
    assert sum(size for _, size in cache.causes) == cache.stored_bytes - cache.needed_bytes - cache.state_bytes
    assert all(size > 0 for _, size in cache.causes)
    assert cache.stored_bytes >= cache.needed_bytes + cache.state_bytes
    # small windows never cost more, and buffers do not depend on how many slots are in use
    assert stored(model, context, batch, swa_full=False, **options) <= stored(model, context, batch, swa_full=True, **options)
    assert cache.stored_bytes == stored(model, context, 1, swa_full=swa_full, **options)
