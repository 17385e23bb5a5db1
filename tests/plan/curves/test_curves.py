"""What pictures draw, as numbers: every curve is held against plans, against `--solve`, or against arithmetic done by hand."""

from dataclasses import replace
from functools import cache

import pytest

from kvcli.hardware.match import find
from kvcli.model.presets import names as preset_names
from kvcli.model.resolve import resolve
from kvcli.plan.answers.search import Goal
from kvcli.plan.answers.solve import at_context, solve
from kvcli.plan.build import build
from kvcli.plan.curves.cache import cache_curve
from kvcli.plan.curves.series import LONGEST_NAME, MOST_SERIES, Point, common, names, over_batch, over_context
from kvcli.plan.curves.stack import stack
from kvcli.plan.curves.steps import most_sequences, roofline, step_curve
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.split import ALONE, Split
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload

spec_of = cache(resolve)
rule = cache(policy)


def point(model, context, batch=1, device=None, engine="ideal", split=ALONE, **work):
    part = find(device) if device else None
    request = PlanRequest(spec_of(model), Workload(context, batch, **work), rule(engine, EngineOptions()), device=part, split=split)
    return Point(request, build(request))


def test_the_cache_is_the_formula_and_crosses_where_it_says():
    """Llama 3 8B by hand: 2 x 32 layers x 8 heads x 128 x 2 B a token, 4 times as many heads without sharing."""
    curve = cache_curve(point("llama3-8b", 8192, 16, "l4"), 8192)
    assert curve.stored == tuple((n, 16 * 131_072 * n) for n, _ in curve.stored)
    assert curve.multi_head == tuple((n, 4 * size) for n, size in curve.stored)
    assert (curve.query_heads, curve.kv_heads) == (32, 8)
    assert curve.weights_bytes == 16_060_522_496
    assert curve.stored[0][0] == 1
    assert curve.stored[-1][0] == 8192
    crossings = {each.what: each.tokens for each in curve.crossings}
    # 16,060,522,496 / 2,097,152 = 7,658.2…
    assert crossings["weights"] == 7659
    # usable 22.03 GiB of an L4 less the weights, nothing certain beside them: / 2,097,152
    assert crossings["device"] == (find("l4").usable_bytes - 16_060_522_496) // 2_097_152


@pytest.mark.parametrize("engine", ["ideal", "vllm", "sglang", "llama.cpp", "trtllm"])
def test_the_device_is_crossed_where_solve_says(engine):
    asked = point("qwen3-8b", 40_960, 6, "rtx4090", engine)
    curve = cache_curve(asked, 40_960)
    solved = solve(asked.request, "ctx", Goal())
    assert solved.binding == "memory"
    (crossing,) = (each for each in curve.crossings if each.what == "device")
    assert crossing.tokens == solved.value
    # the curve of what is left lies above the cache there and below it one step on
    room, stored = dict(curve.room), dict(curve.stored)
    assert all((stored[n] <= room[n]) == (n <= solved.value) for n in room)


def test_nothing_crosses_beyond_the_picture():
    assert cache_curve(point("llama3-8b", 8192, 1, "h200-sxm"), 8192).crossings == ()


def test_a_saw_tooth_shows_its_teeth():
    """Llama 4's chunked layers forget at each border of 8,192 tokens."""
    asked = point("llama4-scout", 65_536)
    curve = dict(cache_curve(asked, 65_536).stored)
    for border in range(8192, 65_536, 8192):
        assert curve[border] > curve[border + 1]
    assert all(size == build(at_context(asked.request, n)).cache.stored_bytes for n, size in curve.items())


def test_a_window_bends_where_it_is_full():
    curve = dict(cache_curve(point("gemma3-27b", 131_072), 131_072).stored)
    assert curve[1024] == 62 * 8192 * 1024  # 62 layers, 2 x 16 heads x 128 x 2 B
    assert 1024 in curve


def test_many_heads_are_said_only_where_they_are_shared():
    assert cache_curve(point("gpt2", 1024), 1024).multi_head == ()
    assert cache_curve(point("deepseek-v3", 4096), 4096).multi_head == ()


@pytest.mark.parametrize(
    "asked",
    [
        point("llama3-8b", 8192, 4, "l4"),
        point("mixtral-8x7b", 32_768, 8, "h100-sxm5-80", split=Split(tensor=2)),
        point("llama3.1-70b", 32_768, 8, "h100-sxm5-80", split=Split(tensor=4, pipeline=2)),
        point("llama3.1-8b", 131_072, 8, "h100-sxm5-80", shared_prefix_tokens=100_000),
    ],
    ids=["one", "tp", "tp-pp", "prefix"],
)
def test_floors_over_the_batch_are_those_of_plans(asked):
    curve = step_curve(asked, 96)
    work = asked.request.workload
    for batch, seconds in curve.floor:
        plan = build(asked.request._replace(workload=work._replace(batch_size=batch)))
        assert seconds == pytest.approx(plan.latency.decode.seconds, rel=1e-12)
        assert seconds == max(dict(term)[batch] for _, term in curve.terms)
    assert curve.asked == ((work.batch_size, pytest.approx(asked.plan.latency.decode.seconds, rel=1e-12)),)
    assert {batch for batch, _ in curve.floor} >= {1, work.batch_size, 96}


def test_the_batch_that_memory_holds_is_the_one_solved():
    asked = point("llama3-8b", 8192, 1, "l4")
    curve = step_curve(asked, 64)
    # 22.03 GiB less 14.958 GiB of weights hold seven sequences of 1 GiB
    assert curve.held == solve(asked.request, "batch", Goal()).value == 7


def test_the_picture_goes_on_to_where_arithmetic_binds():
    asked = point("llama3-8b", 32, 1, "l4")
    curve = step_curve(asked, most_sequences([asked]))
    assert 64 < curve.compute_from < curve.floor[-1][0]
    terms = {name: dict(values) for name, values in curve.terms}
    last = curve.floor[-1][0]
    assert terms["compute"][last] > terms["memory"][last]


def test_no_floor_no_curve():
    assert step_curve(point("llama3-8b", 8192), 64) is None
    assert roofline(point("llama3-8b", 8192), landmarks=True) is None


def test_points_under_the_roof():
    """H100 SXM: 989.5 TFLOP/s of bf16 and 3.35 TB/s by its data sheet; at its highest clock 1,980 instead of 1,830 MHz."""
    asked = point("llama3-8b", 8192, 16, "h100-sxm5-80")
    found = roofline(asked, landmarks=True)
    assert found.nominal.ridge == pytest.approx(989.5e12 / 3.35e12)
    part = find("h100-sxm5-80")
    assert found.roof.flops_per_s == part.peak_bound("bf16") == pytest.approx(989.5e12 * 1980 / 1830, rel=1e-3)
    assert found.roof.bytes_per_s == part.bandwidth_bound_bytes_per_s >= 3.35e12
    decode = {work.batch_size: work.intensity for work in found.work if work.phase == "decode"}
    assert set(decode) == {1, 8, 16, 64}
    assert decode[16] == asked.plan.latency.arithmetic_intensity
    # one sequence of one token: 2 FLOP for each 2 B of a matrix, and fewer with what the cache adds
    assert roofline(point("llama3-8b", 1, 1, "h100-sxm5-80"), landmarks=False).work[0].intensity == pytest.approx(1.0, rel=0.01)
    (prefill,) = (work for work in found.work if work.phase == "prefill")
    # matrices are read once for 16 x 8,192 tokens: at least 2 FLOP x tokens / 2 B, more with attention
    assert 131_072 < prefill.intensity < 2 * 131_072
    assert found.nominal.at(decode[1]) == decode[1] * 3.35e12
    assert found.nominal.at(1e6) == 989.5e12
    # what the floor of the same step says, but for what stays in the last-level cache
    seconds = asked.plan.latency.decode.seconds
    assert asked.plan.latency.steps.flops(8192, 16) / seconds == pytest.approx(found.roof.at(decode[16]), rel=0.01)


@pytest.mark.parametrize("engine", ["ideal", "vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("model", ["llama3-8b", "granite-4.0-h-tiny", "gemma3-27b"])
def test_pieces_sum_to_what_is_certain(model, engine):
    asked = point(model, 8192, 2, "h100-sxm5-80", engine)
    found = stack(asked.plan)
    assert sum(size for _, size in found.pieces) == asked.plan.memory.total_bytes
    assert found.usable_bytes == asked.plan.memory.usable_bytes
    assert found.high_bytes == asked.plan.memory.high_bytes
    bare = point(model, 8192, 2, None, engine).plan
    assert sum(size for _, size in stack(bare).pieces) == bare.device_bytes
    assert stack(bare).usable_bytes is None


def test_names_say_what_differs():
    points = [point("llama3-8b", 8192, batch, device) for batch in (1, 8) for device in ("l4", "h100-sxm5-80")]
    assert names(points) == ["l4, 1 sequence", "h100-sxm5-80, 1 sequence", "l4, 8 sequences", "h100-sxm5-80, 8 sequences"]
    assert common(points) == "llama3-8b, ideal, bf16 cache, bf16 weights, 8,192 tokens"
    assert names(points[:1]) == ["llama3-8b"]
    assert len(over_batch(points)) == 2
    assert len(over_context(points)) == 4
    assert {each.plan.workload.batch_size for each in over_batch(points)} == {8}
    assert {each.asked for each in over_batch(points)} == {(1, 8)}
    assert [batch for batch, _ in step_curve(over_batch(points)[0], 64).asked] == [1, 8]
    assert MOST_SERIES == 8


def test_names_too_long_keep_their_ends_and_stay_apart():
    one = point("gpt2", 512)
    spec = replace(one.plan.spec, name="a" * 60 + "-middle-" + "z" * 60)
    alike = [one._replace(plan=one.plan._replace(spec=replace(spec, name=spec.name.replace("middle", word)))) for word in ("left", "right")]
    found = names(alike)
    assert len(set(found)) == 2
    assert all(len(each) <= LONGEST_NAME + 5 for each in found)
    assert names([one._replace(plan=one.plan._replace(spec=spec))]) == ["a" * 32 + "…" + "z" * 32]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_its_curves(name):
    spec = resolve(name)
    part = find("h100-sxm5-80")
    request = PlanRequest(spec, Workload(min(spec.max_context_tokens, 4096)), policy("ideal", EngineOptions()), device=part)
    asked = Point(request, build(request))
    curve = cache_curve(asked, request.workload.context_tokens)
    assert curve.stored[-1] == (request.workload.context_tokens, asked.plan.cache.stored_bytes)
    assert all(size >= 0 for _, size in curve.stored)
    if curve.multi_head:
        assert curve.multi_head[-1][1] > curve.stored[-1][1]
    steps = step_curve(asked, 64)
    assert all(one[1] <= other[1] for one, other in zip(steps.floor, steps.floor[1:], strict=False))
    assert sum(size for _, size in stack(asked.plan).pieces) == asked.plan.memory.total_bytes
