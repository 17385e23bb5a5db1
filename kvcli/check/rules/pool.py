"""A pool of a size that was given, which is too small for the one request it must admit: the pool is at fault, not the length."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.check import fixes
from kvcli.check.case import Case
from kvcli.check.nodes import Place
from kvcli.check.words import spelled
from kvcli.plan.budget.memory import MemoryPlan
from kvcli.units import format_bytes, plural


class ShortPool(NamedTuple):
    message: str
    formula: str
    place: Place
    fix: str


def short_pool(case: Case, memory: MemoryPlan) -> ShortPool | None:
    """None where the pool is the engine's own, or where the device could not hold one that is large enough."""
    line = next((line for line in memory.ledger if line.item == "kv_pool_short"), None)
    if line is None or case.asked is None:
        return None
    sizes = {name: int(value) for name, value in line.formula.terms}
    own, stored = sizes["pool"], sizes["stored"]
    large = case.changed(kv_memory_bytes=stored).plan
    if large is None or not fixes.may_fit(large):
        return None
    tokens = case.asked.request.workload.context_tokens
    message = f"one request of {plural(tokens, 'token')} takes {format_bytes(stored)} of a pool that is given {format_bytes(own)}"
    ways = [spelled(case, "kv_memory_bytes", stored) + ("" if fixes.surely_fits(large) else " (with a warning, if overheads stay low)")]
    longest = fixes.longest_context(case, fixes.may_fit)
    ways += [spelled(case, "context_tokens", longest)] if longest else []
    return ShortPool(message, f"{stored:,} B > {own:,} B of the pool", case.place("kv_memory_bytes"), ", or ".join(ways))
