"""Sums over a growing context against one step after another, and the crossings of curves against their neighbours."""

import json
import random
from pathlib import Path

import pytest

from kvcli.model import presets
from kvcli.model.config import spec_from_config
from kvcli.plan.drafter import Speculation
from kvcli.plan.sharing.offload import Offload
from kvcli.plan.sharing.split import Split
from kvcli.plan.speculative import speculate
from kvcli.plan.time.crossings import compute_bound_batch, kv_passes_weights_context
from kvcli.plan.time.growth import growth, sum_of_steps
from kvcli.plan.time.options import Timing

DATA = Path(__file__).resolve().parents[2] / "data" / "transformers_cache.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines() if line]
#: first and last context, over the borders of common windows, chunks, pools and choices
SPANS = ((1, 40), (120, 300), (1020, 1500), (4080, 4400), (8180, 8500))


def one_by_one(steps, first, last):
    return sum(steps.seconds(tokens, steps.work.batch_size) for tokens in range(first, last + 1))


def check(steps, prefix=0):
    for first, last in SPANS:
        first = max(first, prefix + 1)
        if first <= last:
            assert sum_of_steps(steps, first, last) == pytest.approx(one_by_one(steps, first, last), rel=1e-10)


@pytest.mark.parametrize("row", ROWS, ids=[row["model"] for row in ROWS])
def test_every_architecture(plan, row):
    spec = spec_from_config({"model_type": row["model_type"], **row["config"]}, row["model"], row["model"])
    prefix = random.Random(row["model"]).choice([0, 17, 100, 1500])
    made = plan(spec, 4096, batch_size=3, shared_prefix_tokens=prefix, encoder_tokens=row["encoder_tokens"] or 0)
    assert made.latency.steps.seconds(4096, 3) == made.latency.decode.seconds
    check(made.latency.steps, prefix)
    one, apart = plan(spec, 4096), plan(spec, 4096, batch_size=3)
    reads = [each.cache.read_bytes_per_step for each in (one, made, apart)]
    assert row["encoder_tokens"] or reads == sorted(reads)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama3.1-8b", {"batch_size": 700}),  # from arithmetic to memory within a span
        ("llama3.1-8b", {"batch_size": 9, "split": Split(tensor=2, pipeline=4)}),
        ("gemma3-27b", {"batch_size": 3, "split": Split(tensor=4, data=2)}),
        ("deepseek-v3", {"batch_size": 5, "split": Split(tensor=8, context=4)}),
        ("deepseek-v3", {"batch_size": 5, "split": Split(tensor=8, attention_data=8, experts=8)}),
        ("llama3.1-8b", {"drafted": Speculation(3)}),
        ("qwen3.5-27b", {"drafted": 2, "batch_size": 2}),
        ("llama3.1-8b", {"engine": "llama.cpp", "offload": Offload(20), "timing": Timing(host_bytes_per_s=80e9)}),
        ("smollm2-135m", {"device": "b200"}),  # from the cache's shelter into memory
    ],
)
def test_every_kind_of_chain(plan, model, options):
    if isinstance(options.get("drafted"), int):
        from kvcli.model.resolve import resolve

        options = {**options, "drafted": speculate(resolve(model), options["drafted"])}
    made = plan(model, 4096, **options)
    steps = made.latency.steps
    assert steps.seconds(4096, steps.work.batch_size) == pytest.approx(made.latency.decode.seconds, rel=1e-15)
    if made.shared is not None:
        read = sum(each.cache_read_bytes for each in made.shared.chain)
        assert steps.cache_read_bytes(4096, steps.work.batch_size) == read // steps.batches(steps.work.batch_size)
    check(steps)


def test_a_generation(plan):
    """Prompt 1,000 and 5 tokens: the prefill gives one, four steps see 1,001 to 1,004 tokens."""
    steps = plan("llama3.1-8b", 1004, prompt_tokens=1000, new_tokens=5).latency.steps
    grown = growth(steps)
    assert (grown.first_s, grown.last_s) == (steps.seconds(1001, 1), steps.seconds(1004, 1))
    assert grown.mean_s == pytest.approx(sum(steps.seconds(n, 1) for n in (1001, 1002, 1003, 1004)) / 4)
    # without a prompt the context has room for it beside the new tokens
    implied = plan("llama3.1-8b", 1004, new_tokens=5)
    assert implied.workload.prefill_tokens == 1000
    assert growth(implied.latency.steps) == grown


def test_long_generations_take_no_time(plan):
    """131,072 tokens in one sum, and in 128 sums of its parts."""
    steps = plan("llama3.1-8b", 131072, batch_size=64).latency.steps
    whole = sum_of_steps(steps, 1, 131072)
    parts = sum(sum_of_steps(steps, first, first + 1023) for first in range(1, 131072, 1024))
    assert whole == pytest.approx(parts, rel=1e-12)


@pytest.mark.parametrize("name", presets.names())
def test_the_cache_passes_the_weights_where_it_is_said(plan, name):
    made = plan(name, 64, batch_size=16, encoder_tokens=8)
    steps = made.latency.steps
    context = kv_passes_weights_context(steps)
    if context is None:
        assert steps.cache_read_bytes(2**27, 16) <= steps.weights_bytes
    else:
        assert steps.cache_read_bytes(context, 16) > steps.weights_bytes
        assert context == 1 or steps.cache_read_bytes(context - 1, 16) <= steps.weights_bytes


def test_llama2_passes_its_weights(plan):
    """6,607,343,616 parameters in two bytes are read, 524,288 B for each token: 25,205.8 tokens."""
    assert kv_passes_weights_context(plan("llama2-7b", 64).latency.steps) == 25_206
    assert kv_passes_weights_context(plan("llama2-7b", 64, batch_size=4).latency.steps) == 6_302


def test_arithmetic_binds_from_a_batch(plan):
    """llama3.1-8b at 64 tokens on an H100 at its highest clock: B (2 x 7,504,658,432 + 33,554,432) / (989.5e12 x 1.082) =
    (15,009,849,344 - 50 MiB + B x 64 x 131,072 B) / 3.35e12 at B = 386.
    """
    flops, read, cache = 2 * 7_504_658_432 + 4 * 32 * 32 * 128 * 64, 15_009_849_344 - 50 * 2**20, 64 * 131_072
    wanted = read / 3.35e12 / (flops / (989.5e12 * 1.082) - cache / 3.35e12)
    found = compute_bound_batch(plan("llama3.1-8b", 64).latency.steps)
    assert found == int(wanted) + 1
    assert plan("llama3.1-8b", 64, batch_size=found).latency.decode.bound == "compute"
    assert plan("llama3.1-8b", 64, batch_size=found - 1).latency.decode.bound == "memory"
    # at 32k each sequence's cache takes longer than its products
    assert compute_bound_batch(plan("llama3.1-8b", 32768).latency.steps) is None
    assert compute_bound_batch(plan("llama3.1-8b", 64, "m1").latency.steps) is None
