"""The smallest changes with which a case that fails would pass, each planned again before it is named."""

from __future__ import annotations

from collections.abc import Callable

from kvcli.check import splits
from kvcli.check.case import Case, planned
from kvcli.check.lengths import Passes, longest_context, may_fit, surely_fits
from kvcli.check.requests import may_take_whole
from kvcli.check.words import spelled
from kvcli.errors import BadInput, NotModelled
from kvcli.plan.answers.solve import kv_types
from kvcli.plan.plan import Plan

__all__ = ["HIGHEST_FRACTION", "Passes", "longest_context", "may_fit", "surely_fits", "to_fit", "to_pass"]

#: The largest share of a device that serves as a proposal; contexts and libraries need the rest.
HIGHEST_FRACTION = 0.95


def to_fit(case: Case) -> str:
    """A shorter context, a narrower cache, more devices, or else a larger share of memory: of each the smallest change that fits whatever
    the overheads are, or where none does, one that fits if they stay low."""
    if case.asked is None:
        return ""
    return case.models.once((*case.question(), case.asked.request.workload, to_fit), lambda: _to_fit(case))


def _to_fit(case: Case) -> str:
    longest = longest_context(case, may_fit)
    # where not even one token fits, no type of the cache helps
    found = [_length(case, longest), _surest(_kv_dtype, case)] if longest else []
    found.append(_devices(case))
    return ", or ".join(each for each in found if each) or _surest(_fraction, case)


def _length(case: Case, longest: int) -> str:
    """The longest that fits for sure, and up to which it may fit."""
    own = case.asked.request.workload.context_tokens if case.asked else 0
    sure = longest_context(case, surely_fits)
    longest = min(longest, own)
    if not sure:
        return f"{spelled(case, 'context_tokens', longest)} (if overheads stay low)" if longest < own else ""
    if sure >= own:
        return ""
    more = f" (up to {longest} if overheads stay low)" if longest > sure else ""
    return f"{spelled(case, 'context_tokens', sure)}{more}"


def to_pass(case: Case, passes: Passes) -> str:
    """The smallest changes of the same kinds with which a plan passes any other test of its memory."""
    return ", or ".join(change for kind in (_context, _kv_dtype, _ranks) if (change := kind(case, passes)))


def _surest(kind: Callable[[Case, Passes], str], case: Case) -> str:
    tokens = case.asked.request.workload.context_tokens if case.asked else 0
    whole = may_take_whole(case.deployment, tokens)
    sure = kind(case.changed(max_batched_tokens=tokens) if whole else case, surely_fits)
    if sure:
        return sure
    perhaps = kind(case, may_fit)
    return f"{perhaps} (if overheads stay low)" if perhaps else ""


def _context(case: Case, passes: Passes) -> str:
    tokens = longest_context(case, passes)
    own = case.asked.request.workload.context_tokens if case.asked else 0
    return spelled(case, "context_tokens", tokens) if 0 < tokens < own else ""


def _kv_dtype(case: Case, passes: Passes) -> str:
    if case.asked is None or case.deployment.engine == "tgi":
        return ""
    try:
        for types in kv_types(case.asked.request):
            plan = planned(case.asked.request._replace(kv=types)) if types else None
            if plan is not None and passes(plan) and not lacks_fp4(case, plan):
                return spelled(case, "kv_dtype", plan.cache.kv.label)
    except (BadInput, NotModelled):
        pass
    return ""


def lacks_fp4(case: Case, plan: Plan) -> bool:
    """No engine keeps a cache of four-bit floats on a part that cannot multiply them."""
    return plan.cache.kv.key.name in ("nvfp4", "mxfp4") and case.part is not None and not case.part.peak("fp4")


def _devices(case: Case) -> str:
    tokens = case.asked.request.workload.context_tokens if case.asked else 0
    found = splits.fewest(case)
    if may_take_whole(case.deployment, tokens):
        found = found._replace(sure=splits.fewest(case.changed(max_batched_tokens=tokens)).sure)
    if found.sure:
        return splits.named(case, found.sure)
    return f"{splits.named(case, found.perhaps)} (if overheads stay low)" if found.perhaps else ""


def _ranks(case: Case, passes: Passes) -> str:
    """Twice the tensor ranks, or four times, and so on."""
    if case.asked is None or case.part is None or not splits.takes_ranks(case):
        return ""
    own = case.asked.request.split
    for times in (2, 4, 8):
        split = own._replace(tensor=own.tensor * times)
        plan = case.changed(tensor_parallel=split.tensor).plan if split.devices <= splits.most_devices(case) else None
        if plan is not None and passes(plan):
            return splits.named(case, split)
    return ""


def _fraction(case: Case, passes: Passes) -> str:
    found = case.setting("memory_fraction")
    if found is None or isinstance(found.value, str) or found.value >= HIGHEST_FRACTION:
        return ""
    plan = case.changed(memory_fraction=HIGHEST_FRACTION).plan
    return spelled(case, "memory_fraction", HIGHEST_FRACTION) if plan is not None and passes(plan) else ""
