"""What holds all users at once: replicas, or ranks of which each instance holds some users; every step is planned."""

from __future__ import annotations

from collections.abc import Callable

from kvcli.check.case import Case
from kvcli.check.lengths import may_fit
from kvcli.check.splits import most_devices, named, takes_ranks
from kvcli.hardware.mig import is_slice
from kvcli.units import plural

Held = Callable[[Case], tuple[int, int] | None]


def to_hold_all(case: Case, users: int, held: Held) -> str:
    """Replicas as the case is, else with the fewest ranks that hold a user; '' where neither passes. `held`: (at least, at most)."""
    found = held(case)
    each = found[0] // max(1, case.deployment.replicas) if found else 0
    if case.asked is None:
        return ""
    own = case.asked.request.split
    if each and (case.plan is None or may_fit(case.plan)):
        return _replicas(case, users, each, own.devices)
    if not takes_ranks(case) or case.part is None or is_slice(case.part):
        return ""
    for times in (2, 4, 8):
        split = own._replace(tensor=own.tensor * times)
        wider = case.changed(tensor_parallel=split.tensor)
        if split.devices > most_devices(case) or wider.plan is None or not may_fit(wider.plan):
            continue
        found = held(wider)
        each = found[0] // max(1, case.deployment.replicas) if found else 0
        if each * max(1, case.deployment.replicas) >= users:
            return named(case, split)
        if each and (copies := _replicas(case, users, each, split.devices)):
            return f"{named(case, split)} each and {copies}"
    return ""


def _replicas(case: Case, users: int, each: int, devices: int) -> str:
    """`4 replicas`, and the devices of the pool where it has fewer."""
    copies = -(-users // each)
    pool = case.pool.devices if case.pool else None
    larger = f" in a pool with devices: {copies * devices}" if pool is not None and copies * devices > pool else ""
    return f"{plural(copies, 'replica')}{larger}"
