"""What the fullest device holds, piece on piece, against what it has."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.plan.curves.cache import stored_on_fullest, weights_on_fullest
from kvcli.plan.plan import Plan

#: Keys, values and states together, where nobody asked for a budget.
CACHE = "cache"
#: What a budget counts beside the model and what it remembers.
OVERHEADS = "overheads, at least"
RESERVE = "left by the engine"
#: How items of a budget are joined to pieces that a reader tells apart; all others are overheads.
_PIECES = {
    "weights": "weights",
    "draft_weights": "drafter",
    "draft_kv_cache": "drafter",
    "lora_slots": "adapters",
    "kv_cache": "KV cache",
    "recurrent_state": "states",
    "encoder_cache": "encoder cache",
    "kv_pool_free": "rest of the pool",
    "kv_pool_short": "rest of the pool",
    "host_part": "the host's part",
    "engine_reserve": RESERVE,
}
#: From what is the model's to what is nobody's.
ORDER = (
    "weights",
    "drafter",
    "adapters",
    "the host's part",
    CACHE,
    "KV cache",
    "states",
    "encoder cache",
    "rest of the pool",
    OVERHEADS,
    RESERVE,
)


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
