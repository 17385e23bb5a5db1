"""Measured runs, to the digit: a fake clock, a tiny model, and worked numbers."""

import json

import pytest

torch = pytest.importorskip("torch", reason="measuring needs torch")
from dataclasses import replace  # noqa: E402

from kvcli import dtypes, records  # noqa: E402
from kvcli.errors import BadInput, CannotRunHere  # noqa: E402
from kvcli.hardware.match import find  # noqa: E402
from kvcli.measure import devices  # noqa: E402
from kvcli.measure.bandwidth import ReadRate  # noqa: E402
from kvcli.measure.compare import agreements, measure_all  # noqa: E402
from kvcli.measure.environment import environment  # noqa: E402
from kvcli.measure.run import Runner, attach_reference, check_length, check_memory, run_plan  # noqa: E402
from kvcli.model.config import spec_from_config  # noqa: E402
from kvcli.model.resolve import resolve  # noqa: E402
from kvcli.runtime.sampling import Sampler, SamplingOptions  # noqa: E402
from kvcli.runtime.source import open_source  # noqa: E402

CPU = torch.device("cpu")
TINY = spec_from_config(
    {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "max_position_embeddings": 64,
        "dtype": "float32",
    },
    "tiny",
    "test",
)


class FakeClock:
    """Every reading is the given number of nanoseconds after the one before."""

    def __init__(self, *steps):
        self.steps, self.now = list(steps), 0

    def __call__(self):
        self.now += self.steps.pop(0) if self.steps else 0
        return self.now


def runner(cache="static", clock=None, part=None):
    model = open_source(TINY, None, random=True).load(torch.float32, CPU, 64)
    return Runner(model, dtypes.FP32, cache, "random", part, clock)


def measure(which, new_tokens=4, stop=frozenset(), on_token=None):
    return which.measure([1, 2, 3], Sampler(SamplingOptions(), CPU), new_tokens, stop, on_token)


def test_times_are_those_of_the_clock():
    """Readings come in pairs: begin and end of the prefill, then of each of the three decode steps."""
    clock = FakeClock(0, 5_000_000, 1, 1_000_000, 1, 2_000_000, 1, 3_000_000)
    record, generation = measure(runner(clock=clock))
    assert record.samples == {"prefill_ns": [5_000_000], "decode_step_ns": [[1_000_000, 2_000_000, 3_000_000]]}
    assert record.ttft_s == 0.005
    assert record.tpot_s == 0.002
    assert record.decode_tokens_per_s == 500
    assert record.prefill_tokens_per_s == 600
    assert record.output_token_count == len(generation.token_ids) == 4
    assert record.stopped == "length"
    assert record.measured_over_floor is None


def test_one_token_has_no_tpot():
    record, _ = measure(runner(clock=FakeClock(0, 1000)), new_tokens=1)
    assert record.ttft_s == 1e-6
    assert record.tpot_s is record.decode_tokens_per_s is None


def test_the_ratio_to_the_floor_of_a_known_part():
    """Steps see 4, 5 and 6 tokens. A token is 2 layers x 2 heads x 8 dims x 2 x 4 B = 256 B."""
    part = replace(find("l4"), last_level_cache_bytes=1, bandwidth_bytes_per_s=1e6, bandwidth_bound_bytes_per_s=2e6)
    record, _ = measure(runner(clock=FakeClock(0, 1, 0, 10**9, 0, 10**9, 0, 10**9), part=part))
    read = 4 * TINY.active_parameters + 256 * 5
    assert record.mean_read_bytes_per_step == read
    assert record.tpot_floor_s == pytest.approx((read - 1) / 2e6)
    assert record.measured_over_floor == pytest.approx(2e6 / (read - 1))
    assert record.mbu == pytest.approx(read / 1e6)
    assert record.mfu is not None


def test_the_ratio_to_a_reference_on_an_unknown_machine():
    record, _ = measure(runner(clock=FakeClock(0, 1, 0, 10**9, 0, 10**9, 0, 10**9)))
    attach_reference(record, ReadRate(1e6, "sum", 2**29))
    assert record.measured_over_reference == pytest.approx(1e6 / record.mean_read_bytes_per_step)
    assert record.reference["kernel"] == "sum"
    attach_reference(record, None)


def test_a_record_is_one_line_of_json_and_comes_back(tmp_path):
    record, _ = measure(runner())
    path = tmp_path / "results" / "x.jsonl"
    records.append(path, record)
    records.append(path, record)
    assert path.read_text().count("\n") == 2
    first, second = records.read(path)
    assert first == second == json.loads(records.dumps(record.document()))
    wanted = {"kind", "plan", "environment", "samples", "ttft_s", "tpot_s", "decode_tokens_per_s", "prefill_tokens_per_s", "mbu", "mfu"}
    wanted |= {"measured_over_floor", "memory", "text", "output_token_ids_sha256", "definitions", "schema_version"}
    assert wanted <= set(first)
    assert "error" not in first
    path.write_text(path.read_text() + "{broken\n")
    with pytest.raises(BadInput, match="line 3"):
        records.read(path)
    path.write_text('{"schema_version": 99}\n')
    with pytest.raises(BadInput, match="schema_version"):
        records.read(path)
    with pytest.raises(BadInput, match="read"):
        records.read(tmp_path / "absent.jsonl")


def test_an_environment_names_no_host_user_or_path():
    import getpass
    import socket

    text = json.dumps(environment(CPU))
    for word in (socket.gethostname(), getpass.getuser()):
        assert f'"{word}"' not in text
    assert "/home" not in text


def test_a_stop_token_ends_the_text_and_is_not_part_of_it():
    _, free = measure(runner(), new_tokens=10)
    stop = free.token_ids[3]
    expected = free.token_ids[: free.token_ids.index(stop)]
    record, generation = measure(runner(), new_tokens=10, stop=frozenset([stop]))
    assert generation.token_ids == expected
    assert record.stopped == "stop token"


def test_an_interrupt_keeps_what_was_made():
    seen = []

    def on_token(token):
        seen.append(token)
        if len(seen) == 2:
            raise KeyboardInterrupt

    record, generation = measure(runner(), new_tokens=10, on_token=on_token)
    assert generation.token_ids == seen
    assert record.error == {"code": "interrupted", "message": "interrupted", "hint": ""}
    assert record.document()["error"]["code"] == "interrupted"
    assert record.output_token_count == 2


def test_too_long_a_prompt_is_refused_before_anything_runs():
    with pytest.raises(BadInput) as caught:
        check_length(resolve("smollm2-135m"), 8190, 3)
    assert "8192" in caught.value.message
    assert "--max-new-tokens 2" in caught.value.hint
    check_length(resolve("smollm2-135m"), 8190, 2)
    with pytest.raises(BadInput) as caught:
        check_length(resolve("smollm2-135m"), 9000, 1)
    assert "shorten" in caught.value.hint


def test_out_of_memory_shows_need_beside_what_was_free(monkeypatch):
    plan = run_plan(resolve("llama3-8b"), dtypes.FP32, "static", 10, 20, None)
    monkeypatch.setattr("kvcli.measure.run.free_bytes", lambda device: 2**30)
    with pytest.raises(CannotRunHere) as caught:
        check_memory(plan, CPU)
    assert f"{plan.total_bytes:,} B" in caught.value.message
    assert "1,073,741,824 B" in caught.value.message
    monkeypatch.setattr("kvcli.measure.run.free_bytes", lambda device: None)
    check_memory(plan, CPU)


def test_an_allocation_that_fails_midway_is_the_same_sentence(monkeypatch):
    which = runner()
    monkeypatch.setattr(which.model, "forward", lambda *a, **k: torch.empty(2**60))
    with pytest.raises(CannotRunHere, match="out of memory"):
        measure(which)
    assert devices.is_out_of_memory(MemoryError())
    assert not devices.is_out_of_memory(RuntimeError("shapes differ"))


def test_logits_that_are_not_finite_are_said(monkeypatch):
    which = runner()
    real = which.model.forward
    monkeypatch.setattr(which.model, "forward", lambda *a, **k: real(*a, **k) * float("nan"))
    with pytest.raises(CannotRunHere) as caught:
        measure(which)
    assert caught.value.code == "logits_not_finite"


def test_a_prompt_without_tokens_is_refused():
    class NoTokens:
        chat_template = None

        def encode(self, text, special):
            return []

        def with_bos(self, ids):
            return ids

    source = replace(open_source(TINY, None, random=True), tokenizer=NoTokens())
    for text in ("\x04", ""):
        with pytest.raises(BadInput) as caught:
            source.encode(text, raw=True)
        assert caught.value.code == "empty_prompt"


def test_another_error_is_not_mistaken_for_memory(monkeypatch):
    which = runner()

    def broken(*args, **kwargs):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(which.model, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        measure(which)


def test_caches_agree_and_a_wrong_one_does_not():
    kinds = [runner(kind) for kind in ("none", "static", "dynamic")]
    found_records, results = measure_all(kinds, SamplingOptions(), [1, 2, 3], [2, 5])
    assert len(found_records) == len(results) == 6
    assert [result.positions for result in results] == [3 + 4, 4, 4, 3 + 4 + 5 + 6 + 7, 7, 7]
    agreed = agreements(results)
    assert len(agreed) == 4
    assert all(agreement.holds for agreement in agreed)
    wrong = replace(results[1], token_ids=(0, 0))
    assert not all(agreement.holds for agreement in agreements([results[0], wrong]))
    far = replace(results[1], last_logits=results[1].last_logits + 1)
    assert not all(agreement.holds for agreement in agreements([results[0], far]))


def test_devices_and_types_that_are_not_there():
    assert devices.pick_device("cpu") == CPU
    for name in ("cuda:99", "cuda"):
        if not torch.cuda.is_available():
            with pytest.raises(CannotRunHere):
                devices.pick_device(name)
    for name in ("tpu9", "mps", "meta", ""):
        with pytest.raises(BadInput):
            devices.pick_device(name)
    assert devices.pick_dtype("auto", CPU) == dtypes.FP32
    assert devices.pick_dtype("bf16", CPU) == dtypes.BF16
    with pytest.raises(BadInput, match="int8"):
        devices.pick_dtype("int8", CPU)


def test_the_read_rate_is_the_best_of_three_kernels(monkeypatch):
    from kvcli.measure import bandwidth

    monkeypatch.setattr(bandwidth, "MIN_BYTES", 2**20)
    # the second kernel's second repetition is the fastest: 2**20 B in 1,000 ns
    steps = [5000] * 8 + [0, 1000] + [5000] * 8
    clock = FakeClock(*[step if index % 2 else 0 for index, step in enumerate(steps)])
    rate = bandwidth.read_rate(CPU, clock)
    assert rate == ReadRate(2**20 / 1000 * 1e9, "matrix-vector product", 2**20)
    monkeypatch.setattr(bandwidth, "free_bytes", lambda device: None)
    monkeypatch.setattr(bandwidth, "MIN_BYTES", 2**58)  # a limit that free_bytes does not see
    assert bandwidth.read_rate(CPU) is None
    monkeypatch.setattr(bandwidth, "MIN_BYTES", 2**20)
    monkeypatch.setattr(bandwidth, "free_bytes", lambda device: 2**20)
    assert bandwidth.read_rate(CPU) is None
