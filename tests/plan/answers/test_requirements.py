"""`--require`: what is met, what is refuted, and the changes that would pass, each built again."""

import json
import shlex

import pytest

from kvcli.errors import BadInput
from kvcli.plan.answers.requirements import parse_requirement


@pytest.mark.parametrize(
    ("text", "quantity", "limit", "share"),
    [
        ("fits", "fits", 0, False),
        ("headroom>=10%", "headroom", 0.1, True),
        ("headroom >= 4GiB", "headroom", 4 * 2**30, False),
        ("headroom>=1.5GB", "headroom", 1_500_000_000, False),
        ("tpot<=20ms", "tpot", 0.02, False),
        ("ttft<=1.5s", "ttft", 1.5, False),
        ("batch>=8", "batch", 8, False),
        ("ctx>=32k", "ctx", 32768, False),
    ],
)
def test_forms(text, quantity, limit, share):
    found = parse_requirement(text)
    assert (found.quantity, found.share) == (quantity, share)
    assert found.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fits>=1",
        "headroom",
        "headroom<=10%",
        "headroom>=100%",
        "headroom>=10",
        "tpot>=20ms",
        "tpot<=20",
        "ttft<=",
        "batch>=0",
        "ctx>=x",
    ],
)
def test_other_forms_are_refused(text):
    with pytest.raises(BadInput):
        parse_requirement(text)


def plan(kvcli, *words):
    answer = kvcli("plan", *words, "--json")
    return answer.code, json.loads(answer.out)


def test_a_met_requirement_is_exit_0(kvcli):
    code, found = plan(kvcli, "llama3-8b", "--ctx", "8k", "--device", "h100-sxm5-80", "--require", "fits", "--require", "tpot<=20ms")
    assert code == 0
    assert [(each["expr"], each["met"]) for each in found["requirements"]] == [("fits", True), ("tpot<=20ms", True)]
    assert "not refuted" in found["requirements"][1]["said"]


def test_an_unmet_one_is_exit_1_with_its_number(kvcli):
    code, found = plan(kvcli, "llama3-8b", "--ctx", "8k", "--device", "l4", "--require", "tpot<=20ms", "--require", "headroom>=50%")
    assert code == 1
    tpot, headroom = found["requirements"]
    assert (tpot["met"], headroom["met"]) == (False, False)
    assert tpot["value"] == found["latency"]["decode_step_floor_s"]
    assert headroom["value"] == pytest.approx(found["memory"]["headroom_bytes"] / found["memory"]["usable_bytes"])


def test_without_requirements_a_misfit_is_exit_0(kvcli):
    code, found = plan(kvcli, "llama3.1-70b", "--ctx", "8k", "--device", "l4")
    assert (code, found["memory"]["fits"], found["requirements"]) == (0, False, [])


def test_batch_and_ctx_ask_for_a_search(kvcli):
    code, found = plan(kvcli, "llama3-8b", "--ctx", "8k", "--device", "rtx4090", "--require", "batch>=8", "--require", "ctx>=4k")
    assert code == 0
    assert found["requirements"][0]["value"] >= 8
    code, found = plan(kvcli, "llama3-8b", "--ctx", "8k", "--device", "rtx4090", "--require", "batch>=9")
    assert (code, found["requirements"][0]["value"]) == (1, 8)


def test_changes_pass_when_they_are_made(kvcli):
    """What the text names is typed and asked again."""
    asked = ["llama3.1-70b", "--ctx", "128k", "--batch", "2", "--device", "h200-sxm", "--require", "fits"]
    answer = kvcli("plan", *asked)
    assert answer.code == 1
    line = next(line for line in answer.out.splitlines() if line.startswith("would pass with"))
    changes = [shlex.split(change.replace("(", "").replace(")", "")) for change in line.removeprefix("would pass with ").split(", or ")]
    assert {change[0] for change in changes} >= {"--ctx", "--devices"}
    for option, value, *more in changes:
        kept = []
        skip = False
        for word in asked:
            if skip or word == option:
                skip = not skip
                continue
            kept.append(word)
        words = [*kept, *(more or [option, value])]
        assert kvcli("plan", *words).code == 0, words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--require fits", "needs a --device"),
        ("--require nonsense --device l4", "not a requirement"),
        ("--solve ctx", "needs a --device"),
        ("--solve weather --device l4", "nothing kvcli solves for"),
        ("--solve batch --batch 4 --device l4", "another option gives"),
        ("--require fits --device l4 --explain", "cannot be shown with"),
        ("--emit ollama --device l4", "no engine whose options"),
        ("--emit vllm", "cannot realise what ideal stores"),
        ("--sweep ctx=4k --sweep batch=1 --sweep tp=2", "two axes"),
        ("--sweep colour=4k", "no axis"),
        ("--sweep batch=1,2 --batch 4", "given twice"),
    ],
)
def test_contradictions_are_exit_2(kvcli, words, said):
    ctx = () if "ctx" in words else ("--ctx", "4k")
    answer = kvcli("plan", "llama3-8b", *ctx, *words.split())
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
