"""What makes a limit on time reachable: more tensor ranks, another part of the maker's, or a limit that the floor leaves open."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from kvcli.check.case import Case, planned
from kvcli.check.lengths import may_fit, surely_fits
from kvcli.check.splits import more_ranks, most_devices, named, takes_ranks
from kvcli.hardware.accelerators import Accelerator, table
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.time.limits import tpot_floor_s, ttft_floor_s

#: The best that is known to be reached of a floor's rate, so that a limit closer to the floor warns (published results of 2025 and 2026).
BEST_EFFICIENCY = 0.8
#: Parts that are planned to find one; those that their rates refute are not among them.
MOST_PARTS = 6


class Limit(NamedTuple):
    """`name`: tpot or ttft."""

    name: str
    seconds: float

    def floor(self, plan: Plan) -> float:
        return tpot_floor_s(plan) if self.name == "tpot" else ttft_floor_s(plan)

    def met(self, plan: Plan) -> bool:
        """Not refuted, on devices that may hold it."""
        return plan.latency is not None and may_fit(plan) and self.floor(plan) <= self.seconds

    def with_ease(self, plan: Plan) -> bool:
        """Neither refuted nor warned of."""
        return self.met(plan) and surely_fits(plan) and self.floor(plan) <= BEST_EFFICIENCY * self.seconds


def to_be_faster(case: Case, request: PlanRequest, limit: Limit) -> str:
    """More ranks in a node or the pool, the part with least memory that passes, or else the least limit that is not refuted."""
    return case.models.once((*case.question(), request.workload, limit), lambda: _found(case, request, limit))


def _found(case: Case, request: PlanRequest, limit: Limit) -> str:
    found = [each for each in (_ranks(case, request, limit), _part(case, request, limit)) if each]
    return ", or ".join(found) or _least_limit(request, limit)


def _ranks(case: Case, request: PlanRequest, limit: Limit) -> str:
    if not takes_ranks(case):
        return ""
    splits = list(more_ranks(request.split, most_devices(case)))
    plans = ((split, planned(request._replace(split=split))) for split in reversed(splits))
    widest = next(((split, plan) for split, plan in plans if plan is not None), None)
    if widest is None or not limit.met(widest[1]):
        return ""  # more ranks have lower floors
    first = None
    for split in splits:
        plan = planned(request._replace(split=split)) if split != widest[0] else widest[1]
        if plan is None or not limit.met(plan):
            continue
        if limit.with_ease(plan):
            return named(case, split)
        first = first or split
    return f"{named(case, first)} (not refuted, with a warning)" if first else ""


def _part(case: Case, request: PlanRequest, limit: Limit) -> str:
    """Of the same maker and kind, with units for bf16, which older parts lack and engines now want."""
    own = planned(request)
    if case.part is None or own is None or own.latency is None or own.latency.steps is None:
        return ""
    needed, first, tried = own.device_bytes, "", 0
    for part in sorted(table(), key=lambda part: (part.usable_bytes or 0, part.bandwidth_bytes_per_s)):
        alike = part.vendor == case.part.vendor and part.kind == case.part.kind and part.peak("bf16") > 0 and part.id != case.part.id
        if not alike or (part.usable_bytes or 0) < needed or _refuted(own, part, limit):
            continue
        if limit.name == "ttft" and not part.peak(*own.weights.multiply_units):
            continue  # a prompt's time is mostly arithmetic's
        plan = planned(request._replace(device=part))
        tried += 1
        if plan is not None and limit.with_ease(plan):
            return f"on {part.id}"
        if plan is not None and limit.met(plan):
            first = first or f"on {part.id} (not refuted, with a warning)"
        if tried == MOST_PARTS:
            break
    return first


def _refuted(own: Plan, part: Accelerator, limit: Limit) -> bool:
    """Whether the terms of the own step, or prompt, on another part are above the limit; cheaper than a plan."""
    steps = own.latency.steps if own.latency else None
    if steps is None or not part.bandwidth_bound_bytes_per_s:
        return True
    there = steps._replace(device=part, peak=0.0, link_bytes_per_s=0.0)
    work = own.workload
    if limit.name == "tpot":
        return there.seconds(work.context_tokens, work.batch_size) / steps.tokens > limit.seconds
    line = own.latency.prefill.lines[0] if own.latency else None
    return line is None or there.prefill(line, 1).seconds > limit.seconds


def _least_limit(request: PlanRequest, limit: Limit) -> str:
    """In tenths of a millisecond, or of a second; the plan that is refuted here is the proof of it."""
    plan = planned(request)
    if plan is None or plan.latency is None:
        return ""
    floor = Fraction(limit.floor(plan)) / Fraction(str(BEST_EFFICIENCY))
    unit, name = (Fraction(1, 1000), "ms") if floor < 1 else (Fraction(1), "s")
    whole, tenths = divmod(math.ceil(floor / unit * 10), 10)
    amount = f"{whole}.{tenths}" if tenths else f"{whole}"
    return f"{limit.name}: {amount}{name} as the limit"
