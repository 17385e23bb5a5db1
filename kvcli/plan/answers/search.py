"""What a search asks of a plan, what it answers, and the search itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvcli.errors import BadInput, KvcliError, NotModelled
from kvcli.plan.answers.requirements import Requirement, on_plan
from kvcli.plan.build import build
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.split import Split


class Solved(NamedTuple):
    """`value` is None where nothing passes. `plan` passed; `beyond` is the next step, which did not (None where there is none).

    `binding` names what stopped it: memory, a requirement, the trained positions. `reason` says it in a sentence. `request` is that of
    `plan`.
    """

    unknown: str
    value: int | str | tuple[str, ...] | None
    plan: Plan | None
    beyond: Plan | None
    binding: str
    reason: str
    split: Split | None = None
    request: PlanRequest | None = None


class Goal(NamedTuple):
    """What a plan must meet; memory in any case, and where `certain` even with overheads at their high ends."""

    requirements: tuple[Requirement, ...] = ()
    certain: bool = False

    def failing(self, plan: Plan) -> str:
        """The first thing a plan does not meet, empty where it passes."""
        if plan.memory is not None and not (plan.memory.verdict == "fits" if self.certain else plan.memory.fits):
            return "memory"
        return next((each.text for each in self.requirements if each.quantity not in ("batch", "ctx") and not on_plan(each, plan).met), "")


def quietly(request: PlanRequest) -> Plan | KvcliError:
    """The plan, or why its values contradict each other (a split that does not divide, a type that the engine lacks)."""
    try:
        return build(request)
    except (BadInput, NotModelled) as error:
        return error


def largest(passes: Callable[[int], str], low: int, high: int) -> tuple[int, str]:
    """The largest n from `low` to `high` that passes, for a condition that holds up to some n: and what n + 1 fails on.

    (low - 1, what low fails on) where none does; (high, "") where all do.
    """
    if reason := passes(low):
        return low - 1, reason
    step = low
    while step < high and not passes(min(2 * step, high)):
        step = min(2 * step, high)
    if step == high:
        return high, ""
    good, bad = step, min(2 * step, high)
    while bad - good > 1:
        middle = (good + bad) // 2
        if passes(middle):
            bad = middle
        else:
            good = middle
    return good, passes(bad)


def misses(plan: Plan, why: str) -> str:
    """What a plan that fails is short of."""
    if why == "memory" and plan.memory is not None:
        return f"{plan.memory.total_bytes:,} B do not fit {plan.memory.usable_bytes:,} B"
    return f"{why} is not met"
