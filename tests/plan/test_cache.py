"""Worked cache sizes, each exact. The working stands beside each case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcli import dtypes
from kvcli.errors import BadInput
from kvcli.model.cache_records import Attention
from kvcli.model.config import spec_from_config
from kvcli.model.presets import names
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload, positions_computed

MIB, GIB = 2**20, 2**30


def plan(model, context, batch=1, kv=None, engine="ideal", **more):
    spec = resolve(model) if isinstance(model, str) else model
    return build(PlanRequest(spec, Workload(context, batch), policy(engine), kv=dtypes.parse_kv(kv) if kv else None, **more))


@pytest.mark.parametrize(
    ("model", "kv", "per_token", "at_4096", "at_32768", "batch_16"),
    [
        # 2 x 32 layers x 32 heads x 128 x 2 B = 524,288 B
        ("llama2-7b", "fp16", 524_288, 2 * GIB, 16 * GIB, 32 * GIB),
        # one byte an element: half of it
        ("llama2-7b", "int8", 262_144, 1 * GIB, 8 * GIB, 16 * GIB),
        # 2 x 32 layers x 8 heads x 128 x 2 B = 131,072 B
        ("llama3-8b", "fp16", 131_072, GIB // 2, 4 * GIB, 8 * GIB),
        ("llama3-8b", "int8", 65_536, GIB // 4, 2 * GIB, 4 * GIB),
    ],
)
def test_the_table(model, kv, per_token, at_4096, at_32768, batch_16):
    assert plan(model, 4096, kv=kv).cache.bytes_per_token == per_token
    assert plan(model, 4096, kv=kv).cache.needed_bytes == at_4096
    assert plan(model, 32768, kv=kv).cache.needed_bytes == at_32768
    assert plan(model, 4096, batch=16, kv=kv).cache.needed_bytes == batch_16


def test_a_window_on_every_layer():
    """Mistral v0.1: 131,072 B a token stop growing at 4,096 tokens: 0.5 GiB at any longer context."""
    cache = plan("mistral-7b-v0.1", 32768).cache
    assert cache.needed_bytes == GIB // 2
    assert cache.bytes_per_token == 0
    assert cache.rows[0].window_tokens == 4096
    assert plan("mistral-7b-v0.1", 4096).cache.bytes_per_token == 131_072
    assert plan("mistral-7b-v0.3", 32768).cache.needed_bytes == 4 * GIB


def test_llama31_at_128000_tokens_and_in_a_batch():
    """131,072 B x 128,000 = 16,777,216,000 B; 32 x 4,096 x 131,072 B = 16 GiB."""
    assert plan("llama3.1-8b", 128_000).cache.needed_bytes == 16_777_216_000
    assert plan("llama3.1-8b", 4096, batch=32).cache.needed_bytes == 16 * GIB


def gpt2(**changes):
    return spec_from_config({"model_type": "gpt2", **changes}, "gpt2", "test")


def test_a_small_model_with_learned_positions():
    """2 x 4 layers x 512 x 4 B x 128 tokens x 32 sequences = 64 MiB."""
    assert plan(gpt2(n_embd=512, n_layer=4, n_head=8), 128, batch=32, kv="fp32").cache.needed_bytes == 64 * MIB


@pytest.mark.parametrize(("context", "mib"), [(1024, 72), (2048, 144), (4096, 288)])
def test_gpt2_in_fp32(context, mib):
    """2 x 12 layers x 768 x 4 B = 73,728 B a token."""
    cache = plan("gpt2", context, kv="fp32").cache
    assert cache.bytes_per_token == 73_728
    assert cache.needed_bytes == mib * MIB


def test_quantised_rows_hold_their_scales():
    """q8_0: 34 B for 32 values; q4_0: 18 B. A row of 128 is 4 blocks: 136 B and 72 B; 2 x 32 x 8 of them a token."""
    assert plan("llama3-8b", 1, kv="q8_0").cache.needed_bytes == 2 * 32 * 8 * 136
    assert plan("llama3-8b", 1, kv="q4_0").cache.needed_bytes == 2 * 32 * 8 * 72
    assert plan("llama3-8b", 1, kv="q8_0:q4_0").cache.needed_bytes == 32 * 8 * (136 + 72)
    with pytest.raises(BadInput, match="48"):
        plan(gpt2(n_embd=192, n_head=4), 1, kv="q8_0")


def test_read_and_written_bytes():
    cache = plan("mistral-7b-v0.1", 32768, batch=3).cache
    assert cache.read_bytes_per_step == 3 * GIB // 2
    assert cache.written_bytes_per_step == 3 * 131_072


def test_engine_kvcli_stores_what_its_caches_hold():
    assert plan("llama3-8b", 4096, engine="kvcli").cache.stored_bytes == GIB // 2
    spec = resolve("llama3-8b")
    none = build(PlanRequest(spec, Workload(4096), policy("kvcli", EngineOptions(cache="none"))))
    assert none.cache.stored_bytes == 0
    assert none.cache.needed_bytes == GIB // 2
    with pytest.raises(BadInput, match="int8"):
        plan("llama3-8b", 4096, kv="int8", engine="kvcli")


def test_positions_computed_with_and_without_a_cache():
    """From one token to 1,000 more: each position once, or 1 + 2 + … + 1,000."""
    assert positions_computed(1, 1000, cached=True) == 1000
    assert positions_computed(1, 1000, cached=False) == 500_500
    assert positions_computed(10, 3, cached=False) == 10 + 11 + 12


@given(st.integers(0, 300), st.integers(1, 300), st.none() | st.integers(1, 200))
def test_visible_pairs_is_the_sum_of_visible_tokens(cached, new, window):
    attention = Attention(1, 1, 1, 1, window)
    assert attention.visible_pairs(cached, new) == sum(attention.visible_tokens(cached + i) for i in range(1, new + 1))


@given(st.sampled_from(names()), st.integers(1, 200_000), st.integers(1, 64), st.sampled_from(["fp32", "fp16", "int8", "q8_0"]))
def test_linear_in_batch_monotone_in_context_and_rows_sum(name, context, batch, kv):
    try:
        one, many, longer = plan(name, context, kv=kv).cache, plan(name, context, batch, kv).cache, plan(name, context + 1, kv=kv).cache
    except BadInput as error:
        assert error.code == "row_not_in_blocks"
        return
    assert many.needed_bytes == batch * one.needed_bytes
    assert longer.needed_bytes == one.needed_bytes + longer.bytes_per_token
    # chunks are forgotten at their border, and the tokens of a compressed entry when it closes
    sheds = {"chunked_attention", "compressed_sparse_attention", "heavily_compressed_attention"} & {row.kind for row in one.rows}
    assert sheds or longer.bytes_per_token >= 0
    for field in ("needed_bytes", "state_bytes", "stored_bytes"):
        assert sum(getattr(row, field) for row in many.rows) == getattr(many, field)
    assert sum(row.bytes_per_token for row in many.rows) == batch * one.bytes_per_token


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_window_as_long_as_the_context_is_no_window(context, extra):
    full, windowed = Attention(8, 2, 64, 64), Attention(8, 2, 64, 64, context + extra - 1)
    assert full.visible_tokens(context) == windowed.visible_tokens(context)


def test_the_prefill_peak_of_window_layers_is_said():
    """gpt-oss-20b, 4,096 tokens: the dynamic cache holds 103,784,448 B between steps, and 201,326,592 B right after the prefill."""
    from kvcli.units import format_bytes

    gpt_oss = plan("gpt-oss-20b", 4096, engine="transformers")
    assert gpt_oss.cache.stored_bytes == 103_784_448
    (notice,) = [notice for notice in gpt_oss.notices if notice.code == "prefill_peak"]
    assert format_bytes(201_326_592 - 103_784_448) in notice.message
    assert not [n for n in plan("llama3-8b", 4096, engine="transformers").notices if n.code == "prefill_peak"]
