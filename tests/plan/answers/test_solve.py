"""Answers in every direction, each proven on both sides: the plan passes there, and not one step further."""

import json

import pytest

from kvcli.errors import BadInput
from kvcli.hardware.accelerators import table
from kvcli.hardware.match import find
from kvcli.model.resolve import resolve
from kvcli.plan.answers.answer import answer
from kvcli.plan.answers.requirements import parse_requirement
from kvcli.plan.answers.search import Goal, largest
from kvcli.plan.answers.solve import at_batch, at_context
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.split import Split
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.weights import parse_weights
from kvcli.plan.workload import Workload


def ask(name, unknown, device="h100-sxm5-80", engine="ideal", required=(), weights=None, split=None, ctx=4096, batch=1, **options):
    request = PlanRequest(
        resolve(name),
        Workload(ctx, batch),
        policy(engine, EngineOptions(**options)),
        weights=None if weights is None else parse_weights(weights),
        device=find(device) if device else None,
        split=split or Split(),
    )
    return request, answer(request, tuple(map(parse_requirement, required)), unknown)


def fits(request):
    return build(request).memory.fits


@pytest.mark.parametrize("engine", ["ideal", "vllm", "sglang", "llama.cpp", "trtllm"])
@pytest.mark.parametrize(("name", "device"), [("llama3.1-8b", "rtx4090"), ("gemma3-27b", "h100-sxm5-80"), ("qwen3-next-80b-a3b", "b200")])
def test_the_longest_context_by_brute_force(name, device, engine):
    """The last length that fits, and the first that does not, as engines page, pad and drop windows."""
    try:
        request, found = ask(name, "ctx", device, engine, batch=4)
    except Exception as error:
        pytest.fail(str(error))
    longest = found.solved.value
    if longest < request.spec.max_context_tokens:
        assert fits(at_context(request, longest))
        assert not fits(at_context(request, longest + 1))
        assert found.solved.binding == "memory"
        assert not found.solved.beyond.memory.fits
    else:
        assert found.solved.binding == "trained positions"
    # every shorter length fits too, on a sample of them
    assert all(fits(at_context(request, max(1, longest * step // 97))) for step in range(1, 97))


def test_the_longest_context_of_a_sawtooth():
    """Llama-4's chunked layers hold least just after a border: the answer is the last length up to which all fit."""
    request, found = ask("llama4-scout", "ctx", "b300", engine="ideal", batch=16)
    longest = found.solved.value
    assert fits(at_context(request, longest)) and not fits(at_context(request, longest + 1))
    lengths = range(8192, longest + 1, 8192)
    assert all(fits(at_context(request, length)) for length in lengths)
    assert len(lengths) > 3


@pytest.mark.parametrize("engine", ["ideal", "vllm", "sglang", "llama.cpp"])
def test_the_most_sequences(engine):
    request, found = ask("llama3.1-8b", "batch", "l40s", engine, ctx=8192)
    most = found.solved.value
    assert fits(at_batch(request, most))
    assert not fits(at_batch(request, most + 1))


def test_an_engines_own_bound_binds():
    """llama.cpp has at most 256 slots."""
    _, found = ask("qwen3-0.6b", "batch", "h200-sxm", "llama.cpp", ctx=256)
    assert (found.solved.value, found.solved.binding) == (256, "engine")


def test_the_fewest_devices():
    """Llama-3.1-405B in 16 bits, one sequence of 128k: 812 GB and 63 GiB (67.6 GB) need eleven of 85.0 GB, and so two nodes of 8;
    in fp8 one is more than enough (the worked answer of every sizing guide)."""
    request, found = ask("llama3.1-405b", "devices", ctx=131072)
    assert (found.solved.value, found.solved.split) == (11, Split(pipeline=11))
    for split in (Split(pipeline=10), Split(tensor=2, pipeline=5), Split(tensor=8)):
        assert not build(request._replace(split=split)).memory.fits
    request, one = ask("llama3.1-405b", "devices", ctx=131072, weights="fp8")
    assert one.solved.value <= 8
    fewer = [split for n in range(1, one.solved.value) for split in (Split(tensor=n), Split(pipeline=n))]
    for split in fewer:
        try:
            assert not build(request._replace(split=split)).memory.fits
        except BadInput:
            continue


def test_a_node_of_h100s_holds_two_long_sequences_of_405b_in_fp8():
    _, found = ask("llama3.1-405b", "batch", ctx=131072, weights="fp8", split=Split(tensor=8))
    assert found.solved.value >= 2


def test_the_fewest_tensor_ranks():
    request, found = ask("llama3.1-70b", "tp", ctx=32768)
    assert found.solved.value == 2
    assert not fits(request)


def test_the_widest_type_of_the_cache():
    _, found = ask("gemma3-27b", "kv-dtype", engine="vllm", ctx=131072, batch=4)
    assert (found.solved.value, found.plan.cache.kv.label) == ("fp8", "fp8")
    assert not found.solved.beyond.memory.fits
    _, own = ask("llama3.1-8b", "kv-dtype", ctx=4096)
    assert (own.solved.value, own.solved.beyond) == ("bf16", None)
    _, quantised = ask("llama3.1-8b", "kv-dtype", "rtx4090", "llama.cpp", ctx=131072)
    assert quantised.plan.memory.fits
    assert not quantised.solved.beyond.memory.fits


def test_the_parts_that_pass():
    request, found = ask("llama3-8b", "device", None, ctx=8192, required=["tpot<=10ms"])
    passing = set(found.solved.value)
    assert "h100-sxm5-80" in passing
    assert "l4" not in passing
    for part in table():
        if part.usable_bytes is None:
            continue
        plan = build(request._replace(device=part))
        assert (part.id in passing) == (plan.memory.fits and plan.latency.decode.seconds <= 0.010)


def test_layers_on_the_device_and_experts_on_the_host(kvcli):
    answer = kvcli("plan", "llama3.1-70b", "--weights", "q4_k_m", "--solve", "ngl", "--ctx", "8k", "--device", "rtx4090", "--json")
    assert answer.code == 0, answer.err
    solved = json.loads(answer.out)
    layers = solved["solve"]["max_ngl"]
    assert 0 < layers < 81
    assert solved["parallel"]["ngl"] == layers

    def held(count):
        plan = kvcli("plan", "llama3.1-70b", "--weights", "q4_k_m", "--ngl", str(count), "--ctx", "8k", "--device", "rtx4090", "--json")
        return json.loads(plan.out)["memory"]["fits"]

    assert (held(layers), held(layers + 1)) == (True, False)
    moe = kvcli("plan", "qwen3-235b-a22b", "--weights", "q4_k_m", "--solve", "n-cpu-moe", "--ctx", "8k", "--device", "rtx5090", "--json")
    assert json.loads(moe.out)["solve"]["min_n_cpu_moe"] > 0


def test_no_answer_is_null_and_exit_1(kvcli):
    answer = kvcli("plan", "llama3.1-405b", "--solve", "ctx", "--device", "l4", "--json")
    assert answer.code == 1
    solve = json.loads(answer.out)["solve"]
    assert solve["max_context_tokens"] is None
    assert "do not fit" in solve["reason"]
    human = kvcli("plan", "llama3.1-405b", "--solve", "batch", "--ctx", "4k", "--device", "l4")
    assert human.code == 1
    assert "none" in human.out.splitlines()[0]


def test_requirements_bind_a_search():
    """TPOT of Llama-3-8B in 16 bits on an H100: each token of the cache adds 131,072 B to what a step reads."""
    h100 = find("h100-sxm5-80")
    request, found = ask("llama3.1-8b", "ctx", required=["tpot<=5ms"])
    allowed = int(0.005 * h100.bandwidth_bound_bytes_per_s) + h100.last_level_cache_bytes
    assert found.solved.value == (allowed - 15009849344) // 131072
    assert found.solved.binding == "tpot<=5ms"
    assert build(at_context(request, found.solved.value + 1)).latency.decode.seconds > 0.005


@pytest.mark.parametrize("last", [0, 1, 2, 3, 7, 8, 9, 100, 1023, 1024])
def test_the_search_finds_every_border(last):
    """Against a condition whose border is known, with and without one in range."""
    calls = []

    def passes(n):
        calls.append(n)
        return "" if n <= last else "too much"

    assert largest(passes, 1, 1024) == (last, "" if last == 1024 else "too much")
    assert len(calls) < 40


def test_a_goal_names_what_fails():
    plan = build(PlanRequest(resolve("llama3-8b"), Workload(8192), policy("ideal"), device=find("l4")))
    assert Goal((parse_requirement("tpot<=1ms"),)).failing(plan) == "tpot<=1ms"
    assert Goal().failing(plan) == ""
