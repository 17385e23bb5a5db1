"""What the views of a plan say of it: they lose no plan, agree with each other, and can be checked by hand."""

import csv
import io
import re

import pytest


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


#: words after `plan llama3.1-8b` whose sweeps have more than one matrix, and how many points each has
LAYERED = [
    ("--sweep ctx=8k,16k --batch 1,4 --device l4", 4),
    ("--sweep ctx=8k,16k --kv-dtype bf16,fp8 --device l4", 4),
    ("--sweep batch=1,4 --ctx 8k,16k --device l4", 4),
    ("--sweep ctx=8k,16k --device l4 --device rtx4090", 4),
    ("--sweep ctx=8k,16k --sweep batch=1,2 --kv-dtype bf16,fp8 --device l4 --device rtx4090 --engine vllm --engine ideal", 32),
]


@pytest.mark.parametrize(("words", "points"), LAYERED)
def test_a_sweep_shows_every_plan_once_under_what_it_is_of(kvcli, words, points):
    command = ("plan", "llama3.1-8b", *words.split())
    human, listed = kvcli(*command, env={"COLUMNS": "250"}), rows_of(kvcli(*command, "--csv").out)
    assert len(listed) == points
    shown = re.findall(r"[\d.]+ [MG]iB (?:fits|maybe|no)\b", human.out)
    words_of = {"fits": "fits", "fits_if": "maybe", "does_not_fit": "no"}
    assert sorted(each.split()[-1] for each in shown) == sorted(words_of[row["verdict"]] for row in listed)
    titles = [line for line in human.out.splitlines() if line.startswith("llama3.1-8b, ")]
    assert len(titles) == len(set(titles)) > 1
    for title in titles:  # one value of each that varies, in words
        assert "ctx" in words.split("--sweep ")[1] or re.search(r"[\d,]+ tokens", title)
        assert re.search(r"(bf16|fp8) cache", title)
        assert re.search(r"on (l4|rtx4090)\b", title)


def test_points_that_cannot_be_planned_stand_in_the_matrix_they_belong_to(kvcli):
    out = kvcli("plan", "llama3.1-8b", "--sweep", "tp=2,3", "--ctx", "8k,16k", "--device", "l4").out
    first, second = out.split("\n\n")
    for block, context in ((first, "8,192 tokens"), (second, "16,384 tokens")):
        assert context in block
        assert block.count("-: --tp 3 does not divide") == 1
        assert re.search(r"^ *3 +-$", block, re.M)


def test_a_column_of_amounts_and_verdicts_is_not_called_bytes(kvcli):
    out = kvcli("plan", "llama3.1-8b", "--sweep", "ctx=8k", "--device", "l4").out
    assert re.search(r"ctx +memory$", out, re.M)
