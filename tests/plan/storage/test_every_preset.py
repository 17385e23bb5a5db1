"""Every preset under every engine: an answer whose parts add up, or a refusal with its reason. Exceptions are named, each of them."""

import functools

import pytest

from kvcli.errors import KvcliError, NotModelled
from kvcli.model.presets import names
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import ENGINES, policy
from kvcli.plan.workload import Workload

#: around windows and chunks of presets, and far beyond them
WORKLOADS = [Workload(1, encoder_tokens=77), Workload(1000), Workload(9001, 3, encoder_tokens=77), Workload(131_072)]
ENCODERS = {"bart-large-cnn", "whisper-large-v3"}
MAMBA = {"falcon-mamba-7b", "mamba-130m", "mamba-2.8b", "mamba-codestral-7b", "mamba2-2.7b"}
MAMBA_HYBRIDS = {"falcon-h1-0.5b", "falcon-h1-7b", "granite-4.0-h-small", "granite-4.0-h-tiny"}
NEMOTRON_H = {"nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b", "nemotron-h-56b", "nemotron-h-8b"}
QWEN35 = {"qwen3.5-122b-a10b", "qwen3.5-27b", "qwen3.5-397b-a17b", "qwen3.6-27b-nvfp4", "qwen3.6-35b-a3b-nvfp4"}
DEEPSEEK_V4 = {"deepseek-v4-flash", "deepseek-v4-flash-nvfp4", "deepseek-v4-pro"}
SPARSE_MLA = {"deepseek-v3.2", "glm-5", "glm-5-fp8", "glm-5.1", "glm-5.2"}

#: what has no rule; the built-in transformer runs what it runs
REFUSED = {
    "llama.cpp": ENCODERS,
    "ollama": ENCODERS,
    "sglang": ENCODERS | MAMBA,
    "trtllm": ENCODERS | MAMBA | MAMBA_HYBRIDS | NEMOTRON_H | QWEN35 | DEEPSEEK_V4,
}


@functools.cache
def spec_of(name):
    return resolve(name)


def answers(engine):
    """(name, workload, cache plan) of every preset that is answered, and those that are not."""
    found, refused = [], {}
    for name in names():
        for workload in WORKLOADS:
            try:
                found.append((name, workload, build(PlanRequest(spec_of(name), workload, policy(engine))).cache))
            except KvcliError as error:
                refused.setdefault(name, []).append(error)
    return found, refused


@pytest.mark.parametrize("engine", ENGINES)
def test_it_answers_or_says_why_not(engine):
    found, refused = answers(engine)
    for name, errors in refused.items():
        for error in errors:
            assert error.hint, (name, error.message)
            assert "\n" not in error.message
            assert engine in error.message or engine == "kvcli", (name, error.message)
            # ollama gives hybrids one sequence
            assert isinstance(error, NotModelled) or (engine == "ollama" and error.code == "too_many_slots"), (name, error.message)
    unknown = {name for name, errors in refused.items() if isinstance(errors[0], NotModelled)}
    if engine == "kvcli":
        plain = {"full_attention", "sliding_attention"}
        assert unknown == {
            name
            for name in names()
            if not {record.kind for group in spec_of(name).groups for record in group.records} <= plain or name in DEEPSEEK_V4
        }
    else:
        assert unknown == REFUSED.get(engine, set())
    for name, workload, cache in found:
        assert sum(row.stored_bytes for row in cache.rows) == cache.stored_bytes, name
        difference = cache.stored_bytes - cache.needed_bytes - cache.state_bytes
        assert sum(size for _, size in cache.causes) == difference, (name, workload)
        assert all(size for _, size in cache.causes), name
        assert all(type(size) is int for _, size in cache.causes), name


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "transformers"])
def test_stored_attention_covers_needed_attention(engine):
    """Index keys are the exception: SGLang and TensorRT-LLM keep 132 B of them where 16 bits would take 256."""
    short = {(name, row.kind) for name, _, cache in answers(engine)[0] for row in cache.rows if row.stored_bytes < row.needed_bytes}
    assert short == ({(name, "latent_attention") for name in SPARSE_MLA} if engine in ("sglang", "trtllm") else set())


def test_transformers_keeps_one_token_less_than_a_full_window():
    """And nothing else: the next step brings its own."""
    seen = set()
    for name, workload, cache in answers("transformers")[0]:
        n = workload.context_tokens
        for row, record in zip(cache.rows, (r for group in spec_of(name).groups for r in group.records), strict=True):
            missing = row.needed_bytes - row.stored_bytes
            if missing <= 0:
                continue
            limit = getattr(record, "chunk_tokens", None) or record.window_tokens
            assert record.visible_tokens(n) == limit, (name, row)
            token = cache.kv.key.bytes_for(record.dim) if name in DEEPSEEK_V4 else record.token_bytes(cache.kv)
            assert missing == workload.batch_size * row.count * token, (name, row)
            seen.add(row.kind)
    assert seen == {"sliding_attention", "chunked_attention", "compressed_sparse_attention", "heavily_compressed_attention"}


@pytest.mark.parametrize("engine", ENGINES)
def test_states_are_narrower_only_where_an_engine_says_so(engine):
    """States in float32 that vLLM and TensorRT-LLM keep in 16 bits, and a float32 file that vLLM runs in bf16."""
    short = {
        (name, row.kind)
        for name, _, cache in answers(engine)[0]
        for row in cache.rows
        if row.state_bytes and row.stored_bytes < row.needed_bytes + row.state_bytes
    }
    narrow = {
        "vllm": {(name, "linear_attention") for name in MAMBA | MAMBA_HYBRIDS | {"qwen3-next-80b-a3b"}}
        | {("bart-large-cnn", "cross_attention")},
        "trtllm": {("qwen3-next-80b-a3b", "linear_attention")},
    }
    assert short == narrow.get(engine, set())
