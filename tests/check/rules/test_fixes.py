"""The changes that are proposed: within the pool and the node, on parts that the image runs on, and true of what they name."""

import datetime
import re

import pytest

from kvcli.check import fixes, lengths
from kvcli.check.case import Case
from kvcli.check.gather import gather
from kvcli.check.run import check
from kvcli.hardware.match import find
from kvcli.plan.answers.search import largest

DAY = datetime.date(2026, 11, 29)
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def write(tmp_path):
    def run(command, fleet="{ device: l4, devices: 8 }", on="pool", more=""):
        path = tmp_path / "kvcli.yaml"
        target = f"  - name: chat\n    command: {command}\n    on: [{on}]\n{more}"
        path.write_text(f"version: 1\nfleet: {{ pool: {fleet} }}\ntargets:\n{target}")
        return path

    return run


@pytest.fixture
def said(write):
    """The outcomes of a target by rule."""

    def run(*args, **more):
        report, _ = check([write(*args, **more)], DAY)
        return {each.rule: each for each in report.cells[0].outcomes}

    return run


def serve(options="", model=MODEL):
    return f"vllm serve {model} {options}"


def tpot(limit):
    return f"    limits: {{ tpot: {limit} }}\n"


def test_ranks_that_reach_a_limit_on_time_stay_in_the_pool(said):
    """Llama-3.1-8B reads 16.06e9 B less the input table's 1.05e9 B a step, at 300e9 B/s a card: 50 ms on one, 6.3 ms on eight."""
    enough = said(serve("--max-model-len 4096"), more=tpot("10ms"))["KV006"]
    assert enough.level == "error"
    assert enough.fix.startswith("--tensor-parallel-size 8 on 8 x l4")
    few = said(serve("--max-model-len 4096"), fleet="{ device: l4, devices: 4 }", more=tpot("10ms"))["KV006"]
    assert few.level == "error"
    assert "tensor-parallel" not in few.fix
    # 50 / 4 = 12.5 ms of 14 ms is more than the 80 % that is known to be reached
    near = said(serve("--max-model-len 4096"), fleet="{ device: l4, devices: 4 }", more=tpot("14ms"))["KV006"]
    assert near.fix.startswith("--tensor-parallel-size 4 on 4 x l4 (not refuted, with a warning)")
    applied = said(serve("--max-model-len 4096 --tensor-parallel-size 4"), fleet="{ device: l4, devices: 4 }", more=tpot("14ms"))
    assert (applied["KV006"].level, applied["KV014"].level) == ("warning", "skipped")


def test_another_part_is_one_that_the_image_runs_on(said):
    found = said(serve("--max-model-len 4096"), fleet="{ device: l4, devices: 1 }", more=tpot("25ms"))["KV006"]
    part = find(re.search(r"on ([\w-]+)", found.fix)[1])
    assert part.vendor == "NVIDIA" and part.peak("bf16")
    # 15.0e9 B within 80 % of 25 ms are 751e9 B/s
    assert 750e9 < part.bandwidth_bytes_per_s < 1e12
    assert said(serve("--max-model-len 4096"), on=part.id, more=tpot("25ms"))["KV006"].level == "passed"


def test_a_limit_that_no_such_part_reaches_is_answered_with_one_that_this_part_does(said):
    found = said(serve("--max-model-len 4096"), more=tpot("1ms"))["KV006"]
    limit = re.fullmatch(r"tpot: ([\d.]+ms) as the limit", found.fix)[1]
    assert said(serve("--max-model-len 4096"), more=tpot(limit))["KV006"].level == "passed"
    below = f"{float(limit[:-2]) - 0.2:.1f}ms"
    assert said(serve("--max-model-len 4096"), more=tpot(below))["KV006"].level == "warning"


def test_devices_that_hold_a_model_stay_in_the_pool(said):
    """Llama-3.3-70B: 141e9 B of weights take at least seven cards of 23.65e9 B, and eight by its 64 heads."""
    model = serve("--max-model-len 4096", "meta-llama/Llama-3.3-70B-Instruct")
    assert said(model)["KV001"].fix == "--tensor-parallel-size 8 on 8 x l4 (with a warning, if overheads stay low)"
    assert said(model, fleet="{ device: l4, devices: 4 }")["KV001"].fix == ""
    spread = said(model, on="l4")["KV001"].fix
    count = int(re.fullmatch(r"--tensor-parallel-size 8 --pipeline-parallel-size 2 on (\d+) x l4", spread)[1])
    assert count == 16
    applied = serve("--max-model-len 4096 --tensor-parallel-size 8 --pipeline-parallel-size 2", "meta-llama/Llama-3.3-70B-Instruct")
    assert said(applied, on="l4")["KV001"].level == "passed"


def test_both_lengths_are_named(said):
    """The longest without a warning, and the longest that may start; each is the last of its kind."""
    fix = said(serve("--max-model-len 131072"))["KV001"].fix
    sure, perhaps = (
        int(number) for number in re.match(r"--max-model-len (\d+) \(up to (\d+) with a warning, if overheads stay low\)", fix).groups()
    )
    levels = {tokens: said(serve(f"--max-model-len {tokens}"))["KV001"].level for tokens in (sure, sure + 1, perhaps, perhaps + 1)}
    assert list(levels.values()) == ["passed", "warning", "warning", "error"]


@pytest.mark.parametrize("options", ["--max-model-len 131072", "--max-model-len 60001 --kv-cache-dtype fp8"])
@pytest.mark.parametrize("passes", [lengths.surely_fits, lengths.may_fit])
def test_the_longest_context_is_what_trying_by_halves_finds(write, options, passes):
    (case,) = gather([write(serve(options))]).cases
    own = case.asked.request.workload.context_tokens

    def fails(tokens):
        return "" if passes(case.changed(context_tokens=tokens).plan) else "memory"

    assert lengths.longest_context(case, passes) == largest(fails, 1, own)[0]


def test_a_search_takes_few_plans(write, monkeypatch):
    """Halving 131,072 lengths takes more than thirty."""
    (case,) = gather([write(serve("--max-model-len 131072"))]).cases
    built, was = [], Case.changed
    monkeypatch.setattr(Case, "changed", lambda self, **more: built.append(more) or was(self, **more))
    fixes.longest_context(case, fixes.may_fit)
    assert 0 < len(built) <= 16


def test_equal_questions_are_answered_once(tmp_path, monkeypatch):
    target = "  - {{ name: t{0}, command: vllm serve {1} --max-model-len 131072, on: [l4] }}\n"
    (tmp_path / "kvcli.yaml").write_text("version: 1\ntargets:\n" + "".join(target.format(i, MODEL) for i in range(3)))
    asked = []
    monkeypatch.setattr(fixes, "_to_fit", lambda case, _was=fixes._to_fit: asked.append(case) or _was(case))
    report, _ = check([tmp_path / "kvcli.yaml"], DAY)
    found = [each.fix for cell in report.cells for each in cell.outcomes if each.rule == "KV001"]
    assert (len(asked), len(found), len(set(found))) == (1, 3, 1)
    # another pool is another question
    (tmp_path / "kvcli.yaml").write_text(
        "version: 1\nfleet: { a: { device: l4, devices: 1 }, b: { device: l4, devices: 2 } }\ntargets:\n"
        + target.format(0, MODEL).replace("l4", "a, b")
    )
    report, _ = check([tmp_path / "kvcli.yaml"], DAY)
    one, two = (each.fix for cell in report.cells for each in cell.outcomes if each.rule == "KV001")
    assert "2 x l4" not in one and "2 x l4" in two


def test_a_pool_that_is_given_too_small_is_at_fault_itself(said):
    """8,192 tokens of 131,072 B are 1,073,741,824 B; 100M is 104,857,600, which hold 800 tokens."""
    serving = serve("--max-model-len 8192 --kv-cache-memory-bytes")
    found = said(f"{serving} 100M")["KV001"]
    assert (found.level, found.formula) == ("error", "1,073,741,824 B > 104,857,600 B of the pool")
    assert found.fix == "--kv-cache-memory-bytes 1073741824, or --max-model-len 800"
    assert said(f"{serving} 1073741824")["KV001"].level == "passed"
    assert said(serve("--max-model-len 800 --kv-cache-memory-bytes 100M"))["KV001"].level == "passed"
    assert said(serve("--max-model-len 801 --kv-cache-memory-bytes 100M"))["KV001"].level == "error"
    # a card on which no pool would be large enough is what is too small
    assert "--kv-cache-memory-bytes" not in said(serve("--max-model-len 100000 --kv-cache-memory-bytes 100M"))["KV001"].fix


def test_the_place_of_a_pool_that_is_too_small_is_its_own(write):
    path = write(f"|\n      {serve()} \\\n      --max-model-len 8192 \\\n      --kv-cache-memory-bytes 100M")
    report, _ = check([path], DAY)
    (found,) = (each for each in report.cells[0].outcomes if each.rule == "KV001")
    assert found.place.line == 8


def test_the_capacity_file_says_its_pool_with_a_unit(tmp_path):
    (tmp_path / "kvcli.yaml").write_text("version: 1\ntargets: [{ name: a, model: llama3.1-8b, engine: vllm, ctx: 8k, on: [l4], POOL }]\n")
    whole = (tmp_path / "kvcli.yaml").read_text()
    for size, level in (("100MB", "error"), ("1073741824B", "passed")):
        (tmp_path / "kvcli.yaml").write_text(whole.replace("POOL", f"kv_memory: {size}"))
        (found,) = (each for each in check([tmp_path / "kvcli.yaml"], DAY)[0].cells[0].outcomes if each.rule == "KV001")
        assert found.level == level
        assert level == "passed" or found.fix.startswith("kv_memory: 1073741824B")


def test_a_type_of_the_cache_is_proposed_only_where_it_is_narrower(said):
    """A cache that is in fp8 already is not made smaller by fp8."""
    wide = said(serve("--max-model-len 65536"), fleet="{ device: l4, devices: 1 }")["KV001"]
    assert "--kv-cache-dtype fp8" in wide.fix
    narrow = said(serve("--max-model-len 65536 --kv-cache-dtype fp8"), fleet="{ device: l4, devices: 1 }")["KV001"]
    assert narrow.level == "warning"
    assert "--kv-cache-dtype" not in narrow.fix
