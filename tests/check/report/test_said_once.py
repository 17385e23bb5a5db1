"""Whose memory a number is, and remarks that several targets share: said once, in every form for people."""

import datetime

import pytest

from kvcli.check.run import check
from kvcli.report.check.github import github
from kvcli.report.check.markdown import markdown
from kvcli.report.check.text import text

DAY = datetime.date(2026, 11, 29)
#: Llama-3.1-8B keeps 131,072 B a token: 20 users of 32,768 tokens are 80 GiB
SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len"
TARGET = f"  - {{ name: %s, on: [l4], command: {SERVE} %s, load: {{ users: 20, ctx_p99: %s }} }}\n"


@pytest.fixture
def report(tmp_path):
    def run(*targets):
        path = tmp_path / "kvcli.yaml"
        path.write_text("version: 1\ntargets:\n" + "".join(targets))
        return check([path], DAY)[0]

    return run


def test_whose_memory_it_is_where_one_request_fails(report):
    """KV001 is of one request of 65,536 tokens, 8 GiB; the head of 80 GiB, which no engine holds at once."""
    found = report(TARGET % ("chat", 65536, 32768))
    whose = "20 sequences of 32,768 tokens at once"
    head, second, *_ = text(found, False).splitlines()
    assert head.startswith("FAIL chat on l4: memory ") and head.endswith(f" of {whose}")
    assert second == f"  memory: this is {whose}, of which an engine lets some wait; KV001 counts one request"
    row = next(line for line in markdown(found).splitlines() if line.startswith("| **FAIL**"))
    assert f"<br>of {whose}" in row
    assert f"this is {whose}" in markdown(found)
    assert f"this is {whose}" in github(found)


def test_nothing_is_said_where_the_number_is_of_one_request(report):
    found = report((TARGET % ("chat", 65536, 32768)).replace("users: 20, ", ""))
    assert "at once" not in text(found, False).splitlines()[0]
    assert found.cells[0].memory_of == ""


def test_replicas_share_the_users(report, tmp_path):
    (tmp_path / "a.yaml").write_text(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: { name: a }\nspec:\n  replicas: 4\n  template:\n    spec:\n      containers:\n"
        "        - name: c\n          image: vllm/vllm-openai:v0.9.2\n"
        "          args: [--model=meta-llama/Llama-3.1-8B-Instruct, --max-model-len=65536]\n"
    )
    found = report("  - { name: chat, on: [l4], from: a.yaml, load: { users: 20, ctx_p99: 32768 } }\n")
    assert found.cells[0].memory_of == "5 sequences of 32,768 tokens at once"


@pytest.mark.parametrize("form", [github, markdown])
def test_targets_that_are_alike_share_their_remarks(report, form):
    """Five rules skipped, and two defaults assumed, of three targets: a line for each kind, not twenty."""
    lines = form(report(*(TARGET % (name, 8192, 4096) for name in "abc"))).splitlines()
    remarks = [line for line in lines if line.removeprefix("- ").startswith(("skipped", "assumed"))]
    assert len(remarks) == 2
    assert all("a on l4, b on l4, c on l4" in line for line in remarks)
    assert all(rule in remarks[0] for rule in ("KV002", "KV005", "KV006", "KV015"))


def test_what_differs_stays_apart(report):
    lines = github(report(TARGET % ("a", 8192, 4096), TARGET % ("b", 65536, 4096))).splitlines()
    assumed = [line for line in lines if line.startswith("assumed")]
    assert [line.partition(":")[0] for line in assumed] == ["assumed for a on l4, b on l4", "assumed for a on l4"]


def test_a_length_for_the_users_is_named_where_it_fits(report):
    """Requests of 8,192 tokens on 4,096: the longer length fits an L4. Of 120,000 tokens, 15.7e9 B beside 16.06e9 B, it does not."""

    def fix(tokens):
        return next(each.fix for each in report(TARGET % ("a", 4096, tokens)).cells[0].outcomes if each.rule == "KV003")

    assert fix(8192) == "--max-model-len 8192"
    assert fix(120000) == ""
