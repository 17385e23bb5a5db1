"""Limits, prices and estimates: by hand, and through the command."""

import json

import pytest

from kvcli.plan.sharing.split import Split
from kvcli.plan.time.estimates import estimates
from kvcli.plan.time.limits import cost_of, held_against, tpot_floor_s, ttft_floor_s
from kvcli.plan.time.options import Timing
from kvcli.plan.time.slo import find_slo, limits

#: p99 of TTFT and TPOT in ms, as MLPerf's mlperf.conf has them
MLPERF = {
    "llama2-70b": (2000, 200),
    "llama2-70b-interactive": (450, 40),
    "llama3.1-405b": (6000, 175),
    "llama3.1-405b-interactive": (4500, 80),
    "llama3.1-8b": (2000, 100),
    "llama3.1-8b-interactive": (500, 30),
    "deepseek-r1": (2000, 80),
    "deepseek-r1-interactive": (1500, 15),
    "gpt-oss-120b": (3000, 80),
    "gpt-oss-120b-interactive": (2000, 15),
}


def test_the_published_limits():
    assert {each.name: (each.ttft_s * 1e3, each.tpot_s * 1e3) for each in limits()} == {f"mlperf:{k}": v for k, v in MLPERF.items()}
    assert all(each.source for each in limits())


def test_a_limit_is_refuted_by_the_floor_alone(plan):
    """Weights of 15.0e9 B take 50 ms at 300 GB/s: 30 ms are refuted, 100 ms are not."""
    l4 = plan("llama3.1-8b", 2048, "l4")
    interactive = held_against(l4, find_slo("mlperf:llama3.1-8b-interactive"))
    assert (interactive.ttft_refuted, interactive.tpot_refuted) == (False, True)
    assert not held_against(l4, find_slo("MLPERF:llama3.1-8b")).tpot_refuted


def test_what_a_million_tokens_cost_at_least(plan):
    """12 an hour, 8 sequences: 12 / 3600 s x step / 8 x 1e6."""
    made = plan("llama3.1-70b", 8192, batch_size=8, split=Split(tensor=4))
    cost = cost_of(made, 12.0)
    assert cost.output_per_million == pytest.approx(12 / 3600 * tpot_floor_s(made) / 8 * 1e6)
    assert cost.prompt_per_million == pytest.approx(12 / 3600 * made.latency.prefill.seconds / (8 * 8192) * 1e6)


def test_estimates_say_what_they_rest_on(plan):
    made = plan("qwen3-30b-a3b", 512, batch_size=64, split=Split(), timing=Timing(efficiency=0.5))
    found = {each.item: each for each in estimates(made)}
    assert set(found) == {"expected_experts", "launches", "efficiency"}
    assert found["efficiency"].seconds == pytest.approx(2 * made.latency.decode.seconds)
    assert found["launches"].low_s == pytest.approx(48 * 10 * 2e-6)
    assert found["expected_experts"].seconds > made.latency.decode.seconds
    assert all(each.basis and each.low_s <= each.seconds <= each.high_s for each in found.values())
    ranks = {each.item for each in estimates(plan("qwen3-30b-a3b", 512, split=Split(tensor=4)))}
    assert ranks == {"launches", "collectives"}


def test_estimates_only_warn(plan):
    """A step of 15.0e9 B takes 4.9 ms at least on an H100; at a tenth of its rates 49 ms, over the limit of 30."""
    slo = find_slo("mlperf:llama3.1-8b-interactive")
    slow = plan("llama3.1-8b", 2048, timing=Timing(efficiency=0.1, slo=slo))
    assert not held_against(slow, slo).tpot_refuted
    (notice,) = [each for each in slow.notices if each.code == "estimate_above_limit"]
    assert "10% of what it assumes" in notice.message
    assert "estimate_above_limit" not in [each.code for each in plan("llama3.1-8b", 2048, timing=Timing(slo=slo)).notices]


def of_json(kvcli, *options):
    answer = kvcli("plan", "llama3.1-8b", "--device", "h100-sxm5-80", "--json", *options)
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_the_command(kvcli):
    options = "--prompt-tokens 8k --new-tokens 512 --batch 16 --shared-prefix 4k --slo mlperf:llama3.1-8b-interactive --price-hour 12.0"
    found = of_json(kvcli, *options.split(), "--efficiency", "70%")
    assert found["workload"] == {
        "context_tokens": 8703,
        "batch_size": 16,
        "prompt_tokens": 8192,
        "new_tokens": 512,
        "shared_prefix_tokens": 4096,
        "uncached_tokens": 8192,
    }
    times = found["latency"]
    assert times["tpot_first_s"] < times["tpot_mean_s"] == times["tpot_floor_s"] < times["tpot_last_s"]
    assert times["tpot_last_s"] == times["decode_step_floor_s"]
    assert times["ttft_floor_s"] < times["prefill_floor_s"] / 16
    assert {each["limit"] for each in times["binds"]} == {"device_memory", "decode_memory", "prefill_compute"}
    assert [each["item"] for each in times["estimates"]] == ["launches", "efficiency"]
    assert found["slo"]["ttft"] == found["slo"]["tpot"] == "not refuted"
    assert found["cost"]["output_per_million_at_least"] == pytest.approx(12 / 3600 * times["tpot_mean_s"] / 16 * 1e6)


def test_what_was_not_asked_is_null(kvcli):
    found = of_json(kvcli, "--ctx", "4k")
    times = found["latency"]
    assert found["slo"] is None and found["cost"] is None
    assert times["tpot_first_s"] == times["tpot_mean_s"] == times["tpot_last_s"] == times["decode_step_floor_s"]
    assert times["ttft_floor_s"] == times["prefill_floor_s"]
    for option in (("--slo", "mlperf:llama3.1-8b"), ("--price-hour", "2"), ("--efficiency", "0.7")):
        answer = kvcli("plan", "llama3.1-8b", "--ctx", "4k", *option, "--json")
        assert answer.code == 2 and json.loads(answer.out)["error"]["code"] == "needs_device"


def test_the_scheduler_binds(kvcli):
    options = "--ctx 8k --batch 80 --engine vllm --max-num-batched-tokens 2048 --parallel 32"
    binds = {each["limit"]: each for each in of_json(kvcli, *options.split())["latency"]["binds"]}
    assert binds["max_batched_tokens"] == {"limit": "max_batched_tokens", "asked": 8192, "allowed": 2048, "binds": True}
    assert binds["max_sequences"]["binds"]
    assert binds["device_memory"]["binds"]  # 80 GiB of cache and 15 of weights


def test_calibration_reads_records(kvcli, tmp_path):
    """The median of three records of this device; those of others, failed ones and ones without a floor are left out."""
    device = {"device": {"name": "h100-sxm5-80"}}
    records = [{"plan": device, "measured_over_floor": ratio} for ratio in (1.3, 1.5, 9.0)]
    records += [{"plan": {"device": {"name": "l4"}}, "measured_over_floor": 1.1}, {"plan": device, "measured_over_floor": None}]
    records += [{"plan": device, "measured_over_floor": 5.0, "error": {"code": "interrupted"}}, {"plan": {"device": None}}]
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps({"schema_version": 1, **each}) + "\n" for each in records))
    times = of_json(kvcli, "--ctx", "4k", "--calibrate", str(path))["latency"]
    (found,) = [each for each in times["estimates"] if each["item"] == "measured_efficiency"]
    assert found["seconds"] == pytest.approx(1.5 * times["decode_step_floor_s"])
    assert found["basis"] == "measured: 1.5 x the floor, median of 3 records in runs.jsonl"
    path.write_text("")
    answer = kvcli("plan", "llama3.1-8b", "--ctx", "4k", "--device", "l4", "--calibrate", str(path))
    assert answer.code == 2 and "no record of a known device" in answer.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--ctx 4k --slo mlperf:gpt-9", "one of mlperf:llama2-70b, "),
        ("--ctx 4k --price-hour 12usd", "--price-hour 12.0"),
        ("--ctx 4k --price-hour 0", "not a positive number"),
        ("--ctx 4k --efficiency 70", "not a share of 1"),
        ("--ctx 4k --host-bandwidth 80", "--host-bandwidth 80GB/s"),
        ("--ctx 4k --host-bandwidth 0GB/s", "--host-bandwidth 80GB/s"),
        ("--ctx 4k --calibrate missing.jsonl", "missing.jsonl cannot be read"),
        ("--ctx 4k --shared-prefix 4k", "leaves nothing of the prompt's 4,096 tokens"),
        ("--ctx 4k --uncached-tokens 8k", "more than the prompt's 4,096 tokens"),
        ("--ctx 4k --new-tokens 5k", "do not fit a context of 4,096"),
        ("--ctx 4k --prompt-tokens 4k --new-tokens 2", "--ctx 4097 or more"),
    ],
)
def test_contradictions_are_said(kvcli, options, said):
    answer = kvcli("plan", "llama3.1-8b", "--device", "l4", *options.split())
    assert answer.code == 2 and said in answer.err, answer.err


def test_a_first_token_alone(plan):
    """Replicas do not help one prompt, ranks and stages do."""
    one = ttft_floor_s(plan("llama3.1-8b", 8192))
    assert ttft_floor_s(plan("llama3.1-8b", 8192, split=Split(data=4), batch_size=4)) == pytest.approx(one)
    assert ttft_floor_s(plan("llama3.1-8b", 8192, split=Split(tensor=2, pipeline=2))) == pytest.approx(one / 4)


def test_the_view_shows_what_was_asked(kvcli):
    def view(*options):
        answer = kvcli("plan", "llama3.1-8b", "--ctx", "4k", "--device", "h100-sxm5-80", *options)
        assert answer.code == 0, answer.err
        return answer.out

    plain = view()
    assert "first token" not in plain and "estimate" not in plain
    asked = view("--engine", "vllm", "--max-num-batched-tokens", "2048")
    assert "max batched tokens binds" in asked and "first token" not in asked
    assert "max batched" not in view("--engine", "vllm", "--max-num-batched-tokens", "8192")
    rows = view("--efficiency", "0.5", "--price-hour", "2", "--slo", "mlperf:llama3.1-8b", "--uncached-tokens", "512")
    for word in ("first token", "compute binds from", "cache passes weights", "estimate: efficiency", "TTFT limit", "1M output tokens"):
        assert word in rows
    equations = view("--explain", "--tp", "2")
    assert "a vector a token for each of 32 layers" in equations and "the largest of" in equations
