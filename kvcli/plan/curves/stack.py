"""What the fullest device holds, piece on piece, against what it has."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.plan.curves.cache import stored_on_fullest, weights_on_fullest
from kvcli.plan.plan import Plan

#: How items of a budget are joined to pieces that a reader tells apart.
_PIECES = {
    "weights": "weights",
    "draft_weights": "drafter",
    "draft_kv_cache": "drafter",
    "kv_cache": "KV cache",
    "recurrent_state": "states",
    "engine_reserve": "left by the engine",
}
#: Everything else that a budget names.
OVERHEADS = "overheads, at least"
#: Keys, values and states together, where nobody asked for a budget.
CACHE = "cache"
ORDER = ("weights", "drafter", CACHE, "KV cache", "states", OVERHEADS, "left by the engine")


class Stack(NamedTuple):
    """`pieces` sum to what is certain, `high_bytes` is what it may become; `usable_bytes` is None without a device of known memory."""

    pieces: tuple[tuple[str, int], ...]
    high_bytes: int
    usable_bytes: int | None
    verdict: str


def stack(plan: Plan) -> Stack:
    memory = plan.memory
    if memory is None:
        draft = plan.device_bytes - weights_on_fullest(plan) - stored_on_fullest(plan)
        bare = (("weights", weights_on_fullest(plan)), ("drafter", draft), (CACHE, stored_on_fullest(plan)))
        return Stack(tuple(pair for pair in bare if pair[1]), plan.device_bytes, None, "")
    sizes = dict.fromkeys(ORDER, 0)
    for line in memory.ledger:
        sizes[_PIECES.get(line.item, OVERHEADS)] += int(line.amount)
    for need in memory.needs:
        sizes[_PIECES.get(need.line.item, OVERHEADS)] += need.low_bytes
    pieces = tuple((name, size) for name, size in sizes.items() if size)
    return Stack(pieces, memory.high_bytes, memory.usable_bytes, memory.verdict)
