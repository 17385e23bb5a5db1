"""What the views of a plan say of it: they lose no plan, agree with each other, and can be checked by hand."""

import csv
import io
import json
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


RTX4090 = ("plan", "llama3.1-8b", "--ctx", "32k", "--engine", "vllm", "--device", "rtx4090")


def test_what_hangs_on_overheads_is_said_alike_in_every_view(kvcli):
    under = "fits only if overheads stay under 2.672 GiB"
    assert f"memory of rtx4090: {under}" in kvcli(*RTX4090).out
    required = kvcli(*RTX4090, "--require", "fits")
    assert required.code == 0
    assert required.out.startswith(f"met: fits - {under}\n")
    swept = kvcli("plan", "llama3.1-8b", "--sweep", "ctx=32k", "--engine", "vllm", "--device", "rtx4090").out
    assert re.search(r"^32,768 +[\d.]+ GiB maybe$", swept, re.M)
    assert re.search(r"\| maybe \|", kvcli(*RTX4090, "--md").out)
    assert re.search(r"^rtx4090 .* maybe ", kvcli("plan", "llama3.1-8b", "--ctx", "32k", "--engine", "vllm").out, re.M)


@pytest.mark.parametrize(
    "words",
    [
        "llama3.1-8b --ctx 64k --engine vllm",
        "llama3.1-8b --ctx 32k --batch 2",
        "llama3.1-70b --ctx 32k --tp 2 --engine sglang",
        "llama3-8b --ctx 8k --ngl 20 --engine llama.cpp",
        "qwen3.5-27b --ctx 32k --engine vllm --speculative 3",
    ],
)
def test_parts_that_many_have_fit_as_they_do_when_named(kvcli, words):
    listed = kvcli("plan", *words.split(), env={"COLUMNS": "200"}).out
    verdicts = dict(re.findall(r"^([a-z]+\d\S*) +[\d.]+ GiB +(yes|maybe|no) ", listed, re.M))
    assert len(verdicts) == 9
    named = [word for part in verdicts for word in ("--device", part)]
    plans = json.loads(kvcli("plan", *words.split(), *named, "--json").out)["plans"]
    words_of = {"fits": "yes", "fits_if": "maybe", "does_not_fit": "no"}
    assert verdicts == {plan["device"]["name"]: words_of[plan["memory"]["verdict"]] for plan in plans}


def test_a_solved_plan_says_what_it_hangs_on_and_what_surely_fits(kvcli):
    command = ("plan", "llama3.1-8b", "--device", "l4", "--engine", "vllm")
    head, *_ = kvcli(*command, "--solve", "ctx", env={"COLUMNS": "400"}).out.splitlines()
    value, under, surely = re.fullmatch(
        r"longest context: ([\d,]+) \(only if overheads stay under ([\d.]+ [KMG]?i?B)\) - memory binds: .*; "
        r"with overheads at their high ends too: ([\d,]+)",
        head,
    ).groups()
    asked = kvcli(*command, "--ctx", value.replace(",", "")).out
    assert f"fits only if overheads stay under {under}" in asked
    most = int(surely.replace(",", ""))
    verdicts = [json.loads(kvcli(*command, "--ctx", str(n), "--json").out)["memory"]["verdict"] for n in (most, most + 1)]
    assert verdicts == ["fits", "fits_if"]
    words = "--weights q4_k_m --device rtx3090 --devices 2 --kv-dtype q8_0 --batch 4 --solve ctx"
    none = kvcli("plan", "llama3.1-70b", *words.split())
    said = " ".join(none.out.split())
    assert "longest context: 11,599 (only if overheads stay under 142.3 KiB)" in said
    assert "with overheads at their high ends too: none" in said


def test_parts_too_little_is_known_of_are_named_in_the_view(kvcli):
    command = ("plan", "llama3.1-70b", "--prompt-tokens", "8k", "--require", "ttft<=500ms", "--solve", "device")
    (row,) = rows_of(kvcli(*command, "--csv").out)
    unproven = row["reason"].partition("; of ")[2].partition(" too little")[0].split(", ")
    assert "tpu-8t" in unproven
    said = " ".join(kvcli(*command).out.split())
    assert f"of {', '.join(unproven)} too little is known to refute or to rank them" in said


def test_a_peak_that_is_unknown_is_said_where_its_floors_are(kvcli):
    command = ("plan", "llama3.1-8b", "--ctx", "8k", "--device", "tpu-8t", "--require", "ttft<=500ms", "--require", "fits")
    said = " ".join(kvcli(*command).out.split())
    assert re.search(r"met: ttft<=500ms - the floor is [\d.]+ ms: not refuted by bandwidth, peak unknown", said)
    assert "memory binds, peak unknown" in said
    assert "peak unknown" not in kvcli("plan", "llama3.1-8b", "--ctx", "8k", "--device", "l4", "--require", "ttft<=5s").out


def test_what_binds_reads_as_words(kvcli):
    out = kvcli(*["plan", "llama3-8b", "--ctx", "8k", "--ngl", "1", "--host-bandwidth", "50GB/s", "--device", "h100-sxm5-80"]).out
    assert "host memory binds" in out
    assert "host_memory" not in out


@pytest.mark.parametrize(
    "words",
    ["llama3.1-8b --ctx 32k --engine vllm --device rtx4090", "llama3.1-70b --ctx 8k --tp 2 --pp 2 --device h100-sxm5-80 --engine vllm"],
)
def test_rows_have_the_sums_that_their_verdict_is_of(kvcli, words):
    command = ("plan", *words.split())
    (row,) = rows_of(kvcli(*command, "--csv").out)
    document = json.loads(kvcli(*command, "--json").out)
    memory = document["memory"]
    assert int(row["memory_total_bytes"]) == memory["total_bytes"]
    assert int(row["memory_high_bytes"]) > int(row["memory_total_bytes"])
    assert int(row["headroom_bytes"]) == int(row["usable_bytes"]) - int(row["memory_total_bytes"])
    assert (int(row["headroom_bytes"]) >= 0) is (row["fits"] == "true")
    split = [int(row[name]) for name in ("devices", "tp", "pp", "ep")]
    assert split == ([4, 2, 2, 1] if "--tp" in words else [1, 1, 1, 1])
    assert list(row)[:3] == ["model", "context_tokens", "batch_size"]  # columns are only added


def test_a_comparison_shows_what_a_no_is_of(kvcli):
    command = ("plan", "llama3.1-8b", "--ctx", "32k,64k", "--engine", "vllm", "--device", "rtx4090")
    listed = rows_of(kvcli(*command, "--csv").out)
    out = kvcli(*command, env={"COLUMNS": "200"}).out
    for row in listed:
        assert re.search(rf" {int(row['memory_total_bytes']) / 2**30:.3f} GiB +(maybe|no) ", out)


@pytest.mark.parametrize("view", ["--csv", "--md", "--explain", "--require=fits"])
def test_points_without_a_plan_are_named_with_their_reason(kvcli, view):
    command = ("plan", "llama3.1-70b", "--sweep", "tp=1,2,3,5,7", "--ctx", "8k", "--device", "h100-sxm5-80")
    answer = kvcli(*command, view)
    assert answer.code == (1 if "require" in view else 0)  # one device does not hold it
    for ranks in (3, 5, 7):
        assert answer.err.count(f"note: not planned: tp {ranks}: --tp {ranks} does not divide") == 1
    assert "llama3.1-70b" in answer.out
    assert "tp=3" not in answer.out


def test_a_required_sweep_fails_only_where_all_its_points_do(kvcli):
    command = ("plan", "llama3.1-70b", "--ctx", "8k", "--device", "h100-sxm5-80", "--require", "fits", "--sweep")
    found = kvcli(*command, "tp=2,3", "--json")
    document = json.loads(found.out)
    assert (found.code, [each["parallel"]["tp"] for each in document["plans"]], [each["tp"] for each in document["failed"]]) == (
        0,
        [2],
        [3],
    )
    assert kvcli(*command, "tp=3,5").code == 2


def test_one_is_no_plural(kvcli):
    assert "1 sequence of 1 token," in kvcli("plan", "llama3-8b", "--ctx", "1").out
    command = ("plan", "llama3.1-8b", "--ctx", "32k", "--device", "l4", "--require", "batch>=1")
    assert "at most 1 sequence passes (" in kvcli(*command).out
    out = kvcli("plan", "llama3.1-8b", "--ctx", "32k", "--device", "l4", "--explain").out
    assert "1 sequences" not in out
