"""TensorRT-LLM's blocks of 32."""

import pytest

from kvcli.dtypes import parse_kv
from kvcli.errors import BadInput, NotModelled
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload


def cache(model, tokens, batch=1, kv=None, **options):
    engine = policy("trtllm", EngineOptions(**options))
    return build(PlanRequest(resolve(model), Workload(tokens, batch), engine, kv=parse_kv(kv) if kv else None)).cache


def test_blocks():
    """llama3-8b, 131,072 B a token: 33 tokens take two blocks of 32."""
    answer = cache("llama3-8b", 33, batch=5)
    assert (answer.stored_bytes, answer.blocks, answer.block_tokens) == (5 * 64 * 131_072, 10, 32)
    assert answer.causes == (("page rounding", 5 * 31 * 131_072),)
    assert cache("llama3-8b", 33, kv="fp8", block_size=64).stored_bytes == 64 * 65_536
    assert cache("llama3-8b", 32).causes == ()


def test_latent_rows_are_whole():
    assert cache("deepseek-v3", 32).stored_bytes == 32 * 61 * 1152


def test_windows_and_chunks_forget_nothing():
    """Gemma-2-9B: 42 layers of 8,192 B a token, half of them with a window of 4,096; Llama-4-Scout: 48 of 4,096 B."""
    answer = cache("gemma2-9b", 8200, batch=2)
    assert (answer.stored_bytes, answer.blocks) == (2 * 8224 * 42 * 8192, 2 * 257)
    assert dict(answer.causes) == {"page rounding": 2 * 24 * 42 * 8192, "windows kept in full": 2 * (8200 - 4096) * 21 * 8192}
    assert [notice.code for notice in answer.notices] == ["trtllm_windows_kept"]
    assert cache("gemma2-9b", 4096).notices == ()
    assert cache("llama4-scout", 8224).stored_bytes == 8224 * 48 * 4096
    # of the second chunk 32 tokens are needed
    assert dict(cache("llama4-scout", 8224).causes) == {"windows kept in full": 8192 * 36 * 4096}
    assert cache("mistral-7b-v0.1", 8192).stored_bytes == 8192 * 131_072


def test_index_keys_of_sparse_layers():
    """V3.2: 576 elements and an index key of 128 + 4 B in each of 61 layers; GLM-5.2: 21 of 78 layers have one."""
    answer = cache("deepseek-v3.2", 64)
    assert answer.stored_bytes == 64 * 61 * (1152 + 132)
    assert dict(answer.causes) == {"fp8 index keys with a scale": -64 * 61 * 124}
    assert cache("deepseek-v3.2", 64, kv="fp8").stored_bytes == 64 * 61 * (576 + 132)
    assert cache("glm-5.2", 64, kv="fp8").stored_bytes == 64 * (78 * 576 + 21 * 132)


def test_states_in_the_models_type():
    """Qwen3-Next: 36 slots a sequence of 8,192 x 3 columns and 32 x 128 x 128 in bf16, 12 layers of 2,048 B a token."""
    answer = cache("qwen3-next-80b-a3b", 33, batch=3)
    state = 8192 * 3 * 2 + 32 * 128 * 128 * 2
    assert answer.stored_bytes == 3 * (36 * state + 12 * 64 * 2048)
    assert dict(answer.causes) == {"state dtype": -3 * 36 * 32 * 128 * 128 * 2, "page rounding": 3 * 31 * 12 * 2048}
    for model in ("qwen3.5-27b", "nemotron-h-8b"):
        with pytest.raises(NotModelled, match="changed between"):
            cache(model, 16)


def test_what_is_refused():
    for model in ("whisper-large-v3", "granite-4.0-h-tiny", "deepseek-v4-flash", "mamba-2.8b"):
        with pytest.raises(NotModelled, match="trtllm"):
            cache(model, 8193)
    with pytest.raises(BadInput, match="q8_0"):
        cache("llama3-8b", 1, kv="q8_0")
    with pytest.raises(BadInput, match=r"0\.9"):
        cache("llama3-8b", 1, version="0.9")
