"""TensorRT-LLM's blocks of 32."""

import pytest

from kvcli.dtypes import parse_kv
from kvcli.errors import BadInput, NotModelled
from kvcli.model.resolve import resolve
from kvcli.plan.plan import build
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


def test_what_is_refused():
    assert cache("gemma2-9b", 4096).stored_bytes == 4096 * 42 * 8 * 512 * 2
    for model in ("gemma2-9b", "llama4-scout", "deepseek-v3.2", "qwen3.5-27b", "whisper-large-v3"):
        with pytest.raises(NotModelled, match="trtllm"):
            cache(model, 8193)
    with pytest.raises(BadInput, match="q8_0"):
        cache("llama3-8b", 1, kv="q8_0")
    with pytest.raises(BadInput, match=r"0\.9"):
        cache("llama3-8b", 1, version="0.9")
