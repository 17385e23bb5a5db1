"""SGLang's pools: whole pages and a spare one, worked beside each case."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcli.dtypes import parse_kv
from kvcli.errors import BadInput, NotModelled
from kvcli.model.config import spec_from_config
from kvcli.model.presets import load
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage import sglang_v4
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload


def cache(model, tokens, batch=1, kv=None, **options):
    engine = policy("sglang", EngineOptions(**options))
    return build(PlanRequest(resolve(model), Workload(tokens, batch), engine, kv=parse_kv(kv) if kv else None)).cache


def test_pages_and_a_spare_one():
    """llama3-8b, 131,072 B a token: 100 tokens and a slot; in pages of 64 two pages a sequence and one more for the pool."""
    answer = cache("llama3-8b", 100)
    assert (answer.stored_bytes, answer.blocks, answer.block_tokens) == (101 * 131_072, 100, 1)
    paged = cache("llama3-8b", 100, batch=3, page_size=64)
    assert (paged.stored_bytes, paged.blocks, paged.block_tokens) == ((3 * 2 + 1) * 64 * 131_072, 6, 64)
    assert dict(paged.causes) == {"spare pages": 64 * 131_072, "page rounding": 3 * 28 * 131_072}


def test_two_pools_for_windows():
    """gpt-oss-20b, 12 + 12 layers of 2,048 B: 1,000 and 128 tokens, each pool with a slot to spare."""
    answer = cache("gpt-oss-20b", 1000)
    assert answer.stored_bytes == 12 * 2048 * (1001 + 129)
    assert [notice.code for notice in answer.notices] == ["sglang_window_pool"]
    # 128 tokens may lie in three pages of 64
    assert cache("gpt-oss-20b", 1000, page_size=64).stored_bytes == 12 * 2048 * 64 * (16 + 1 + 3 + 1)
    assert cache("gpt-oss-20b", 100).notices == ()


def test_windows_without_a_pool_stay():
    """Gemma-2 and Cohere-2 are on no list, nor is Mistral: all tokens stay. Gemma-2-9B: 42 layers of 16 x 256 x 2 B a token."""
    answer = cache("gemma2-9b", 10_000, batch=2)
    row = 16 * 256 * 2
    assert answer.stored_bytes == 42 * row * 20_001
    assert dict(answer.causes) == {"spare pages": 42 * row, "windows kept in full": 21 * row * 2 * (10_000 - 4096)}
    assert [notice.code for notice in answer.notices] == ["sglang_windows_kept"]
    assert cache("mistral-7b-v0.1", 9000).stored_bytes == 9001 * 131_072
    assert cache("command-r7b", 9000).stored_bytes == 9001 * 32 * 4096


def test_a_chunk_is_a_window():
    """Llama-4-Scout: 12 full layers and 36 of chunks of 8,192, 4,096 B a token each; at 9,000 a chunk has 808 of its tokens."""
    answer = cache("llama4-scout", 9000)
    assert answer.stored_bytes == 4096 * (12 * 9001 + 36 * 8193)
    assert dict(answer.causes) == {"spare pages": 48 * 4096, "windows kept": 36 * 4096 * (8192 - 808)}
    # 8,192 tokens may lie in 129 pages of 64
    assert cache("llama4-scout", 9000, page_size=64).stored_bytes == 4096 * 64 * (12 * (141 + 1) + 36 * (129 + 1))


@pytest.mark.parametrize(("window_tokens", "rows"), [(262_144, 16_396), (524_288, 32_780)])
def test_state_rows_as_measured(window_tokens, rows):
    """https://github.com/sgl-project/sglang/pull/40337: rows of the pool of CSA states; it has a ring of 8 for every 128 tokens."""
    assert sglang_v4.state_rows(window_tokens // 128 * 8, 4) == rows


def test_deepseek_v4_worked():
    """Flash, 43 layers, two sequences of 1,000 tokens in four pages of 256 each. A page of 256 windows takes 260 x 576 B, of 64 entries
    65 x 576, of two 3 x 576, of 64 index keys 64 x 132; each pool has one to spare. Windows lie in two pages. 21 CSA layers: two rings
    of 8 rows a window page, of 8,192 and 2,048 B, and 12 rows; 20 HCA layers: 128 rows of 4,096 B a sequence and 3 x 128."""
    answer = cache("deepseek-v4-flash", 1000, batch=2)
    windows, entries, few, index = 260 * 576, 65 * 576, 3 * 576, 64 * 132
    csa, hca = 8 * 2 * 2 * 2 + 12, 2 * 128 + 3 * 128
    stored = 43 * 5 * windows + 21 * (9 * (entries + index) + csa * 10_240) + 20 * (9 * few + hca * 4096)
    assert (answer.stored_bytes, answer.blocks, answer.block_tokens, answer.kv.label) == (stored, 8, 256, "fp8")
    # open: 1,000 = 250 x 4, and 104 tokens of the eighth entry of 128
    opened = 2 * (21 * 2 * 4 * 640 + 20 * 104 * 2 * 512)
    assert dict(answer.causes) == {
        "spare pages": 43 * windows + 21 * (entries + index + 12 * 10_240) + 20 * (few + 3 * 128 * 4096),
        "page alignment": 43 * 4 * (windows - 256 * 584) + 21 * 8 * (entries - 64 * 584) + 20 * 8 * (few - 2 * 584),
        "windows kept": 43 * 2 * (512 - 128) * 584,
        "page rounding": 2 * (21 * (256 - 250) * (584 + 132) + 20 * (8 - 7) * 584),
        "fp8 rows and index keys with scales": 2 * (43 * 128 * 72 + 21 * 250 * (72 + 4) + 20 * 7 * 72),
        "compressor states": 2 * (21 * 32 * 10_240 + 20 * 128 * 4096) - opened,
    }
    assert [notice.code for notice in answer.notices] == ["sglang_window_pool"]
    assert cache("deepseek-v4-pro", 256).stored_bytes == 61 * 2 * windows + 30 * (2 * (entries + index) + 28 * 10_240) + 31 * (
        2 * few + 4 * 128 * 4096
    )


def test_deepseek_v4_types_and_pages():
    with pytest.raises(BadInput, match="fp8"):
        cache("deepseek-v4-flash", 16, kv="bf16")
    with pytest.raises(BadInput, match="256"):
        cache("deepseek-v4-flash", 16, page_size=64)
    assert cache("deepseek-v4-flash", 16, page_size=256).notices == ()
    config = dict(load("deepseek-v4-flash").config)
    for changes in ({"head_dim": 256}, {"index_head_dim": 64}, {"sliding_window": 96}):
        spec = spec_from_config(config | changes, "other", "test")
        with pytest.raises(NotModelled, match="shape"):
            build(PlanRequest(spec, Workload(16), policy("sglang")))


def test_latent_and_sparse_rows():
    assert cache("deepseek-v3", 100).stored_bytes == 101 * 61 * 1152
    assert cache("deepseek-v3", 100, kv="fp8").stored_bytes == 101 * 61 * 576
    # pages of 64: two and a spare one; the index key takes 132 B, the row 656 B in fp8
    assert cache("deepseek-v3.2", 100).stored_bytes == 192 * 61 * (1152 + 132)
    assert cache("deepseek-v3.2", 100, kv="fp8").stored_bytes == 192 * 61 * (656 + 132)
    assert cache("glm-5.2", 100, kv="fp8").stored_bytes == 192 * (78 * 656 + 21 * 132)
    with pytest.raises(BadInput, match="64"):
        cache("deepseek-v3.2", 100, page_size=32)


def test_index_keys_have_a_pool():
    """MiniMax-M3: 60 layers of 4 x 256 elements and 57 keys of 128, in pages of 128 and a spare one. In fp8 it depends on the device."""
    kinds = ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57
    spec = spec_from_config({"model_type": "minimax_m3_vl_text", "dtype": "bfloat16", "layer_types": kinds}, "m3", "test")
    answer = build(PlanRequest(spec, Workload(200), policy("sglang"))).cache
    assert (answer.stored_bytes, answer.block_tokens) == (3 * 128 * (60 * 4 * 256 * 2 + 57 * 128 * 2), 128)
    assert dict(answer.causes) == {"spare pages": 128 * 137_472, "page rounding": 56 * 137_472}
    assert build(PlanRequest(spec, Workload(200), policy("sglang", EngineOptions(page_size=1)))).cache.stored_bytes == 201 * 137_472
    with pytest.raises(NotModelled, match="depends on the device"):
        build(PlanRequest(spec, Workload(200), policy("sglang"), kv=parse_kv("fp8")))


def test_a_pool_of_states():
    """Qwen3-Next: 36 states of 8,192 x 3 columns in bf16 and 32 x 128 x 128 in float32, a spare one; 12 layers of 2,048 B a token."""
    state = 8192 * 3 * 2 + 32 * 128 * 128 * 4
    answer = cache("qwen3-next-80b-a3b", 10, batch=4)
    assert answer.stored_bytes == 36 * 5 * state + 12 * 2048 * 41
    assert dict(answer.causes) == {"spare slot of the state pool": 36 * state, "spare pages": 12 * 2048}


def test_what_is_refused():
    for kv in ("q8_0", "int8", "fp32", "nvfp4", "fp8:bf16"):
        with pytest.raises(BadInput, match="sglang keeps"):
            cache("llama3-8b", 16, kv=kv)
    with pytest.raises(BadInput, match=r"0\.4"):
        cache("llama3-8b", 16, version="0.4")
    for model in ("whisper-large-v3", "mamba-2.8b", "bart-large-cnn", "falcon-mamba-7b"):
        with pytest.raises(NotModelled, match="sglang"):
            cache(model, 900)
    # on the list, but without full layers
    spec = resolve("gpt-oss-20b")
    windows = replace(spec, groups=spec.groups[:1], order=(0,) * 12)
    with pytest.raises(NotModelled, match="all have windows"):
        build(PlanRequest(windows, Workload(900), policy("sglang")))


MODELS = ["llama3-8b", "gemma3-27b", "gpt-oss-20b", "llama4-scout", "qwen3.5-27b", "falcon-h1-7b", "deepseek-v3"]


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 300_000), st.integers(1, 9), st.sampled_from([None, "fp8"]), st.sampled_from([1, 16, 64]))
def test_stored_covers_needed_and_causes_sum(name, tokens, batch, kv, page):
    answer = cache(name, tokens, batch, kv, page_size=page)
    assert sum(size for _, size in answer.causes) == answer.stored_bytes - answer.needed_bytes - answer.state_bytes
    assert all(row.stored_bytes > row.needed_bytes + row.state_bytes for row in answer.rows)
