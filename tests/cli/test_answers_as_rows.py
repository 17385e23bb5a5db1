"""`--csv` and `--md` beside `--require` and `--solve`, held against the JSON of the same answers."""

import csv
import io
import json

import pytest

REQUIRED = {
    "met by some": "llama3-8b deepseek-v3 --ctx 8k,64k --require fits --require tpot<=20ms --require headroom>=10% --device h100-sxm5-80",
    "all kinds": "llama3.1-8b --ctx 8k --require headroom>=4GiB --require ttft<=1ms --require batch>=4 --require ctx>=32k --device l4",
    "all met": "llama3.1-8b --ctx 8k --require fits --require tpot<=1s --device h100-sxm5-80",
}
SOLVED = {
    "ctx": "llama3.1-8b --solve ctx --device l4 --device h100-sxm5-80 --batch 1,8",
    "device": "llama3.1-70b llama3-8b --solve device --require headroom>=100GiB",
    "nothing": "llama3.1-70b --solve ctx --device l4",
    "kv-dtype": "llama3.1-8b --solve kv-dtype --ctx 128k --device l4",
}


def answers(kvcli, words):
    as_json, as_csv, as_md = (kvcli("plan", *words.split(), f"--{view}") for view in ("json", "csv", "md"))
    assert as_json.code == as_csv.code == as_md.code
    document = json.loads(as_json.out)
    _, _, head, _, *body = as_md.out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in (head, *body)]
    return as_json.code, document.get("plans", [document]), list(csv.DictReader(io.StringIO(as_csv.out))), cells


def raw(value):
    """As a spreadsheet has it."""
    return {None: "", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)


@pytest.mark.parametrize("words", REQUIRED.values(), ids=REQUIRED)
def test_each_requirement_is_two_columns(kvcli, words):
    code, plans, rows, (head, *body) = answers(kvcli, words)
    assert len(plans) == len(rows) == len(body)
    passes = [all(each["met"] for each in plan["requirements"]) for plan in plans]
    assert code == (0 if all(passes) else 1)
    assert [row["passes"] for row in rows] == [raw(each) for each in passes]
    assert [cells[-1] for cells in body] == ["yes" if each else "no" for each in passes]
    for plan, row, cells in zip(plans, rows, body, strict=True):
        assert row["model"] == plan["model"]["name"]
        assert int(row["needed_bytes"]) == plan["kv_cache"]["needed_bytes"]
        for each in plan["requirements"]:
            assert row[f"{each['expr']} met"] == raw(each["met"])
            assert row[f"{each['expr']} value"] == raw(each["value"])
            at = head.index(f"required: {each['expr']}")
            assert cells[at] == ("met" if each["met"] else "NOT met")
            assert head[at + 1] == "its value"
            assert cells[at + 1]


@pytest.mark.parametrize("words", SOLVED.values(), ids=SOLVED)
def test_what_was_solved_for_is_a_column(kvcli, words):
    code, plans, rows, (head, *body) = answers(kvcli, words)
    assert len(plans) == len(rows) == len(body)
    for plan, row, cells in zip(plans, rows, body, strict=True):
        solve = dict(plan["solve"])
        assert row["binding"] == solve.pop("binding")
        assert row["reason"] == solve.pop("reason")
        value = next((value for key, value in solve.items() if value is not None and key.startswith(("max", "min", "kv_", "dev"))), None)
        assert row["answer"] == ("|".join(value) if isinstance(value, list) else raw(value))
        assert row["passes"] == ("true" if value is not None else "false")
        shown = ", ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value or "none"
        assert cells[head.index("answer")] == shown
    assert code == (1 if any(row["answer"] == "" for row in rows) else 0)


def test_values_carry_their_units_in_markdown(kvcli):
    def last(*required):
        words = [word for each in required for word in ("--require", each)]
        out = kvcli("plan", "llama3.1-8b", "--ctx", "8k", "--device", "l4", *words, "--md").out
        assert out.startswith("llama3.1-8b, 8,192 tokens, 1 sequence, ")
        return out.splitlines()[-1]

    # 22.030 GiB usable less 15.958 of weights and cache
    memory = last("headroom>=4GiB", "ttft<=1ms", "headroom>=50%", "fits")
    for cell in ("| met | 6.072 GiB |", "| NOT met | 1.021 s |", "| NOT met | 27.6% |", "| met | fits with 6.072 GiB |"):
        assert cell in memory
    # what is left holds six more such sequences
    assert "| met | 7 | met | 57,937 |" in last("batch>=4", "ctx>=32k")


def test_what_cannot_be_shown_is_refused(kvcli):
    for words in ("--require fits --explain", "--emit vllm --engine vllm --csv", "--emit vllm --engine vllm --md"):
        answer = kvcli("plan", "llama3.1-8b", "--device", "l4", *words.split())
        assert answer.code == 2
        assert answer.out == ""
        assert "cannot be shown with" in answer.err
