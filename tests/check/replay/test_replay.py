"""Manifests in the styles of public repositories, written anew, of which it is known whether they start (`cases.csv`, with sources).

`runs`: it was reported or documented to start. `fails`: it does not, and arithmetic alone says so. `overheads`: it does not, or barely,
because of what only activations, graphs or the driver decide.
"""

import csv
import datetime
from pathlib import Path

import pytest

from kvcli.check import fixes
from kvcli.check.gather import gather
from kvcli.check.requests import may_take_whole
from kvcli.check.run import check

HERE = Path(__file__).parent
GIB = 2**30
with (HERE / "cases.csv").open(encoding="utf-8") as table:
    CASES = list(csv.DictReader(table))


@pytest.fixture(scope="module")
def cells():
    report, _ = check([HERE / "kvcli.yaml"], datetime.date(2026, 1, 1))
    return {cell.target: cell for cell in report.cells}


@pytest.fixture(scope="module")
def cases():
    return {case.target.name: case for case in gather([HERE / "kvcli.yaml"]).cases}


def test_every_manifest_is_replayed_once_and_has_a_source(cells):
    assert sorted(cells) == sorted(row["target"] for row in CASES)
    assert {path.stem for path in (HERE / "manifests").iterdir()} == set(cells)
    assert len(cells) >= 24 and {row["known"] for row in CASES} == {"runs", "fails", "overheads"}
    assert all(row["source"] == "arithmetic" or row["source"].startswith("https://") for row in CASES)
    assert all(row["what"] for row in CASES)


@pytest.mark.parametrize("row", [row for row in CASES if row["known"] == "runs"], ids=lambda row: row["target"])
def test_what_runs_is_not_failed(cells, row):
    errors = [each for each in cells[row["target"]].outcomes if each.level == "error"]
    assert errors == [], row["what"]


@pytest.mark.parametrize("row", [row for row in CASES if row["known"] == "fails"], ids=lambda row: row["target"])
def test_what_arithmetic_decides_is_found(cells, row):
    cell = cells[row["target"]]
    errors = {each.rule: each for each in cell.outcomes if each.level == "error"}
    assert set(errors) == {row["rule"]}, row["what"]
    error = errors[row["rule"]]
    assert error.fix, "a failure names a way out"
    assert error.place.file.endswith(f"{row['target']}.yaml") and error.place.line > 1


@pytest.mark.parametrize("row", [row for row in CASES if row["known"] == "overheads"], ids=lambda row: row["target"])
def test_what_only_overheads_decide_is_warned_of(cells, row):
    said = {each.rule for each in cells[row["target"]].outcomes if each.level == "warning"}
    assert row["rule"] in said and cells[row["target"]].verdict == "warn", row["what"]


#: target -> the pool in tokens that its engine printed, as the source in cases.csv has it
PRINTED_TOKENS = {
    "compose-8b-3090-20k": 1952 * 16,
    "compose-8b-3090-29k": 1478 * 16,
    "compose-405b-fp8-h100": 79_392,
    "vllm-coder7b-t4": 507 * 16,
    "vllm-v2lite-l40": 63_040,
    "vllm-coder480b-h20": 205_728,
    "vllm-scout-h200": 3_861_424,
}


@pytest.mark.parametrize(("target", "tokens"), PRINTED_TOKENS.items())
def test_no_printed_pool_is_larger_than_the_bound_that_fails(cases, target, tokens):
    """A failure is certain only if no engine prints more than the upper bound."""
    assert tokens <= cases[target].plan.memory.pool.most.tokens


@pytest.mark.parametrize("target", ["compose-8b-3090-20k", "compose-8b-3090-29k", "vllm-coder480b-h20"])
def test_printed_pools_lie_in_the_range(cases, target):
    pool = cases[target].plan.memory.pool
    assert pool.least.tokens <= PRINTED_TOKENS[target] <= pool.most.tokens


@pytest.mark.parametrize(("target", "gib"), [("vllm-coder480b-h20", "62.00"), ("vllm-scout-h200", "240.00")])
def test_the_cache_of_one_request_is_what_vllm_says_it_needs(cases, target, gib):
    lines = {line.item: int(line.amount) for line in cases[target].plan.memory.ledger}
    assert f"{lines['kv_cache'] / GIB:.2f}" == gib


def test_weights_are_not_more_than_were_loaded(cases):
    """57.752 GiB a device were loaded, scales and buffers among them."""
    lines = {line.item: int(line.amount) for line in cases["compose-405b-fp8-h100"].plan.memory.ledger}
    assert 0.97 < lines["weights"] / GIB / 57.752 <= 1


def test_old_vllm_keeps_expanded_heads(cases):
    """One device, DeepSeek-V2-Lite: 5,373 blocks of 16 tokens were printed for 35.42 GiB (vllm-project/vllm#10927)."""
    whole = cases["vllm-v2lite-l40"].changed(tensor_parallel=1).asked.request
    (group, *_) = whole.spec.groups
    token_bytes = sum(each.count * record.needed_bytes(1, _kv(whole)) for each in whole.spec.groups for record in each.records)
    assert round(35.42 * GIB / (16 * token_bytes)) == pytest.approx(5373, abs=1)
    assert group.records[0].kind == "full_attention"


def _kv(request):
    from kvcli.dtypes import KvTypes

    return KvTypes(request.spec.dtype, request.spec.dtype)


def test_groups_of_old_sglang_are_its_ranks(cases):
    split = cases["sglang-v25-dp-h100"].asked.request.split
    assert (split.tensor, split.attention_data) == (8, 8)
    assert cases["sglang-v25-tp-h100"].asked.request.split.attention_data == 1


def test_a_length_is_proposed_that_was_reported_to_start(cases):
    """vllm#6156: 30,720 tokens started where 163,840 did not; a proposal must hold whether the prompt goes whole or in chunks."""
    case = cases["vllm-v2lite-l40"]
    longest = fixes.longest_context(case, fixes.surely_fits)
    assert 30_720 <= longest < 163_840
    assert may_take_whole(case.deployment, longest)
    whole = case.changed(context_tokens=longest).changed(max_batched_tokens=longest)
    assert fixes.surely_fits(whole.plan)


def test_proposals_are_in_the_engines_words_and_for_the_card(cells):
    fix = {row["target"]: {each.rule: each.fix for each in cells[row["target"]].outcomes} for row in CASES}
    assert "nvfp4" not in fix["vllm-gptoss-h100"]["KV001"]  # no cache of four-bit floats on Hopper
    assert fix["llama-32b-q4-3090-long"]["KV001"].endswith("or 2 x rtx3090")
    assert fix["vllm-gemma3-tp3"]["KV004"] == "the nearest that does: --tensor-parallel-size 2 or 4"
    assert fix["compose-qwen35-397b-pro6000"]["KV009"] == ""  # what kvcli has no rule for, no change of the deployment mends
