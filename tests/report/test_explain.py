"""`--explain`: every cache line's printed equation, redone from its digits and signs alone, gives the amount beside it."""

import re

import pytest

from kvcli.dtypes import parse_kv
from kvcli.errors import KvcliError
from kvcli.model.presets import names
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload
from kvcli.report.explain import lines

TOKEN = re.compile(r"(?<!\w)\d[\d,]*(?:\.\d+)?(?!\w)|(?<= )x(?= )|[-+/()]")


def redone(text):
    """Words dropped, ` x ` read as a product; a `where` beside it must agree with itself."""
    text, _, where = text.partition(", where ")
    if where:
        left, right = where.split(" = ")
        assert redone(left) == redone(right)
    signs = "".join("*" if each == "x" else each.replace(",", "") for each in TOKEN.findall(text))
    return eval(signs, {"__builtins__": {}})


def cache_lines(plan):
    return lines(plan)[: len(plan.cache.rows)]


@pytest.mark.parametrize("model", names())
def test_every_preset_can_be_redone_by_hand(model):
    spec = resolve(model)
    for tokens, sequences, kind in ((4096, 3, None), (1027, 1, "fp8"), (5, 2, "q8_0")):
        workload = Workload(tokens, sequences, encoder_tokens=77)
        try:
            plan = build(PlanRequest(spec, workload, policy("ideal"), kv=kind and parse_kv(kind)))
        except KvcliError:
            assert kind == "q8_0"  # rows that its blocks do not fill
            continue
        for row, (item, amount, text, _) in zip(plan.cache.rows, cache_lines(plan), strict=True):
            wanted = row.needed_bytes + row.state_bytes
            assert amount.endswith(f"{wanted:,} B"), item
            assert redone(text) == wanted, (item, text)


def test_a_latent_row_shows_its_rank_and_its_rotary_part():
    plan = build(PlanRequest(resolve("deepseek-v3"), Workload(65536, 1), policy("ideal")))
    texts = [text for _, _, text, _ in cache_lines(plan)]
    assert all("65,536 visible tokens x 1 sequence x (512 of the rank + 64 of the rotary key) x 16 bits / 8" in text for text in texts)
