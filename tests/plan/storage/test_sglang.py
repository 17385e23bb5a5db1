"""SGLang's pools: whole pages and a spare one, worked beside each case."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcli.dtypes import parse_kv
from kvcli.errors import BadInput, NotModelled
from kvcli.model.resolve import resolve
from kvcli.plan.plan import build
from kvcli.plan.request import PlanRequest
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


def test_latent_and_sparse_rows():
    assert cache("deepseek-v3", 100).stored_bytes == 101 * 61 * 1152
    assert cache("deepseek-v3", 100, kv="fp8").stored_bytes == 101 * 61 * 576
    # pages of 64: two and a spare one; the index key takes 132 B, the row 656 B in fp8
    assert cache("deepseek-v3.2", 100).stored_bytes == 192 * 61 * (1152 + 132)
    assert cache("deepseek-v3.2", 100, kv="fp8").stored_bytes == 192 * 61 * (656 + 132)
    assert cache("glm-5.2", 100, kv="fp8").stored_bytes == 192 * (78 * 656 + 21 * 132)
    with pytest.raises(BadInput, match="64"):
        cache("deepseek-v3.2", 100, page_size=32)


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
    assert cache("mistral-7b-v0.1", 4096).stored_bytes == 4097 * 131_072
    for model in ("mistral-7b-v0.1", "llama4-scout", "whisper-large-v3", "mamba-2.8b", "deepseek-v4-flash"):
        with pytest.raises(NotModelled, match="sglang"):
            cache(model, 9000)


MODELS = ["llama3-8b", "gemma3-27b", "qwen3.5-27b", "falcon-h1-7b", "deepseek-v3"]


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 300_000), st.integers(1, 9), st.sampled_from([None, "fp8"]), st.sampled_from([1, 16, 64]))
def test_stored_covers_needed_and_causes_sum(name, tokens, batch, kv, page):
    answer = cache(name, tokens, batch, kv, page_size=page)
    assert sum(size for _, size in answer.causes) == answer.stored_bytes - answer.needed_bytes - answer.state_bytes
    assert all(row.stored_bytes > row.needed_bytes + row.state_bytes for row in answer.rows)
