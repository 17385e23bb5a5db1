"""The bar of a device's memory, held against the document of the same plan."""

import json
import os
import pty
import random
import re
import sys
from fractions import Fraction

import pytest

from kvcli.report.memory_bar import columns_of

CASES = {
    "fits": "llama3-8b --ctx 32k --device h100-sxm5-80",
    "fits_if": "llama3.1-8b --ctx 32k --engine vllm --device rtx4090",
    "does_not_fit": "llama3.1-70b --ctx 32k --engine vllm --device h100-sxm5-80",
    "far beyond": "deepseek-v3 --ctx 8k --device l4",
    "tiny": "gpt2 --ctx 1k --device b200",
    "shared": "qwen3.5-27b --ctx 32k --device h100-sxm5-80 --engine vllm --speculative 3 --tp 2 --batch 4",
}
WEIGHTS, DRAFTER = {"weights", "lora_slots"}, {"draft_weights", "draft_kv_cache"}
CACHE = {"kv_cache", "recurrent_state", "encoder_cache", "kv_pool_free"}


def view(kvcli, case):
    out = kvcli("plan", *CASES[case].split()).out
    at = next(number for number, line in enumerate(out.splitlines()) if line.startswith("memory of"))
    lines = out.splitlines()[at:]
    bar = next(number for number, line in enumerate(lines) if set(line) <= set("#%=+/.-") and line)
    end = lines.index("", bar)
    return lines[bar], lines[bar + 1 : end]


@pytest.mark.parametrize("case", CASES)
def test_each_part_has_its_share_of_the_columns(kvcli, case):
    memory = json.loads(kvcli("plan", *CASES[case].split(), "--json").out)["memory"]
    bar, under = view(kvcli, case)
    assert len(bar) == 78
    assert re.fullmatch(r"#*%*=*\+*/*\.*-*", bar)
    low, high = sum(line["low_bytes"] for line in memory["lines"]), sum(line["high_bytes"] for line in memory["lines"])
    weights = sum(line["low_bytes"] for line in memory["lines"] if line["item"] in WEIGHTS)
    cache = sum(line["low_bytes"] for line in memory["lines"] if line["item"] in CACHE)
    drafter = sum(line["low_bytes"] for line in memory["lines"] if line["item"] in DRAFTER)
    kept = sum(line["low_bytes"] for line in memory["lines"] if line["item"] == "engine_reserve")
    held = {"#": weights, "%": drafter, "=": cache, "+": low - weights - drafter - cache - kept, "/": kept}
    amounts = {**held, ".": high - low, "-": max(0, memory["usable_bytes"] - high)}
    whole = sum(amounts.values())
    legend = " ".join(under)
    for sign, amount in amounts.items():
        assert abs(bar.count(sign) - 78 * Fraction(amount, whole)) < 2
        assert (f"{sign} " in legend) == (amount > 0)
        assert bar.count(sign) > 0 or 100 * amount < whole
    if high > memory["usable_bytes"]:
        mark = under[0].index("^")
        assert abs(mark - 78 * memory["usable_bytes"] / whole) <= 1
        assert ("too much" in under[0]) == (not memory["fits"])
    else:
        assert "^" not in legend
    assert max(map(len, under)) <= 78


def test_columns_sum_to_the_width_and_follow_the_amounts():
    chance = random.Random(3)
    for _ in range(2000):
        width = chance.randint(10, 78)
        amounts = [chance.choice((0, chance.randint(1, 10**3), chance.randint(1, 10**11))) for _ in range(5)]
        found = columns_of(amounts, width)
        whole = sum(amounts)
        if not whole:
            assert found == [0] * 5
            continue
        assert sum(found) == width
        for amount, columns in zip(amounts, found, strict=True):
            exact = Fraction(amount * width, whole)
            assert columns >= 0
            assert (columns == 0) if amount == 0 else True
            assert columns >= 1 or 100 * amount < whole
            # each of four others may take one from the largest
            assert exact - 5 < columns < exact + 1
    # by hand: 5, 3, 1.5 and 0.5 of 10 columns; the first of equal remainders gets one, and 5 % gets one of the largest part
    assert columns_of([50, 30, 15, 5], 10) == [4, 3, 2, 1]
    assert columns_of([1, 1, 1], 10) == [4, 3, 3]
    assert columns_of([996, 4], 10) == [10, 0]
    assert columns_of([990, 10], 10) == [9, 1]


def in_a_terminal(**env):
    """What the program writes to a terminal of 80 columns."""
    parent, child = pty.openpty()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "kvcli", "plan", *CASES["fits"].split()],
        {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **env},
        file_actions=[(os.POSIX_SPAWN_DUP2, child, 1), (os.POSIX_SPAWN_CLOSE, child), (os.POSIX_SPAWN_CLOSE, parent)],
    )
    os.close(child)
    found = b""
    while True:
        try:
            more = os.read(parent, 65536)
        except OSError:  # Linux says so at the end
            break
        if not more:
            break
        found += more
    os.close(parent)
    assert os.waitpid(pid, 0)[1] == 0
    return found.decode()


def test_blocks_and_colours_only_in_a_terminal_that_shows_them():
    colourful = in_a_terminal(PYTHONIOENCODING="utf-8")
    assert "\x1b[34m\u2588" in colourful
    assert colourful.count("\u2588") == 16  # 15 columns and the legend's
    grey = in_a_terminal(PYTHONIOENCODING="utf-8", NO_COLOR="1")
    assert "\x1b[3" not in grey
    assert grey.count("\u2588") == 16
    plain = in_a_terminal(PYTHONIOENCODING="ascii")
    assert "###############====.....---" in plain
    assert "\x1b[34m" not in plain
    assert plain.isascii()
