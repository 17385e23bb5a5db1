"""The longest context with which a case passes, found with few plans: memory grows almost evenly with the length."""

from __future__ import annotations

from collections.abc import Callable

from kvcli.check.case import Case
from kvcli.check.requests import WHOLE_PROMPTS, chunks_by_length, may_take_whole
from kvcli.plan.answers.search import largest
from kvcli.plan.plan import Plan

Passes = Callable[[Plan], bool]


def surely_fits(plan: Plan) -> bool:
    return plan.memory is not None and plan.memory.verdict == "fits"


def may_fit(plan: Plan) -> bool:
    return plan.memory is not None and plan.memory.fits


def longest_context(case: Case, passes: Passes) -> int:
    """The largest context of one sequence that passes, 0 where none does. Lengths are asked anew, since a prefill chunk may follow them."""
    if case.asked is None:
        return 0
    if chunks_by_length(case.deployment):
        return _in_chunks(case, passes)
    if passes not in (surely_fits, may_fit):
        return _longest(case, passes)
    # whatever length is asked for, the longest that fits is the same
    return case.models.once((*case.question(without=("context_tokens",)), passes), lambda: _longest(case, passes))


def _longest(case: Case, passes: Passes) -> int:
    """By false position, and by halves where that is slow: the spare bytes of two lengths tell about where they end."""
    high = case.asked.request.workload.context_tokens if case.asked else 0

    def tried(tokens: int) -> tuple[bool, int]:
        plan = case.changed(context_tokens=tokens).plan
        return (plan is not None and passes(plan), _spare(plan, passes)) if plan is not None else (False, -1)

    good, bad = 1, high
    (fine, room), (all_fine, short) = tried(good), tried(bad)
    if not fine or all_fine:
        return high if all_fine else 0
    by_half = False
    while bad - good > 1:
        span = bad - good
        guess = (good + bad) // 2 if by_half or room <= 0 or short >= 0 else good + span * room // (room - short)
        guess = min(max(guess, good + 1), bad - 1)
        passed, spare = tried(guess)
        if passed:
            good, room = guess, spare
        else:
            bad, short = guess, spare
        by_half = not by_half and bad - good > span // 2
    return good


def _spare(plan: Plan, passes: Passes) -> int:
    """Bytes that stay free; a guide alone."""
    if plan.memory is None:
        return -1
    return plan.memory.usable_bytes - (plan.memory.high_bytes if passes is surely_fits else plan.memory.total_bytes)


def _in_chunks(case: Case, passes: Passes) -> int:
    """For versions that take prompts whole up to a length: longer ones go in chunks, and may fit where shorter ones do not."""
    high = case.asked.request.workload.context_tokens if case.asked else 0
    starts = [WHOLE_PROMPTS + 1, 1] if high > WHOLE_PROMPTS else [1]

    def fails(tokens: int) -> str:
        changed = case.changed(context_tokens=tokens)
        if passes is surely_fits and may_take_whole(changed.deployment, tokens):
            changed = changed.changed(max_batched_tokens=tokens)
        plan = changed.plan
        return "" if plan is not None and passes(plan) else "memory"

    for start in starts:
        found = largest(fails, start, high if start > 1 or len(starts) == 1 else WHOLE_PROMPTS)[0]
        if found >= start:
            return found
    return 0
