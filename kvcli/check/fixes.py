"""The smallest changes with which a case that fails would pass, each planned again before it is named."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvcli.check import splits
from kvcli.check.case import Case, planned
from kvcli.check.lengths import Passes, longest_context, may_fit, surely_fits
from kvcli.check.requests import default_context, flag, may_take_whole
from kvcli.check.words import spelled, written
from kvcli.errors import BadInput, NotModelled
from kvcli.hardware.mig import is_slice, larger
from kvcli.plan.answers.search import largest
from kvcli.plan.answers.solve import kv_types
from kvcli.plan.plan import Plan

__all__ = ["HIGHEST_FRACTION", "Passes", "longest_context", "may_fit", "surely_fits", "to_cost_less", "to_fit", "to_hold", "to_pass"]

#: The largest share of a device that serves as a proposal; contexts and libraries need the rest.
HIGHEST_FRACTION = 0.95


def to_fit(case: Case) -> str:
    """The file's own type, a shorter context, a narrower cache, more devices, or else a larger share of memory: of each the smallest
    change that fits whatever the overheads are, or where none does, one that fits if they stay low."""
    if case.asked is None:
        return ""
    return case.models.once((*case.question(), case.asked.request.workload, to_fit), lambda: _to_fit(case))


def _to_fit(case: Case) -> str:
    longest = longest_context(case, may_fit)
    # where not even one token fits, no type of the cache helps
    found = [_surest(_dtype, case), *([_length(case, longest), _surest(_kv_dtype, case)] if longest else []), _devices(case)]
    return ", or ".join(each for each in found if each) or _surest(_fraction, case)


def _length(case: Case, longest: int) -> str:
    """The longest that fits for sure, and up to which it may fit."""
    own = case.asked.request.workload.context_tokens if case.asked else 0
    sure = 0 if case.without else longest_context(case, surely_fits)
    if case.found.spec is not None and not flag(case.deployment, "longer_allowed"):  # what passes here passes KV003 too
        trained = default_context(case.deployment, case.found.spec)
        sure, longest = min(sure, trained), min(longest, trained)
    longest = min(longest, own)
    if not sure:
        return f"{spelled(case, 'context_tokens', longest)} (with a warning, if overheads stay low)" if longest < own else ""
    if sure >= own:
        return ""
    more = f" (up to {written(case, longest)} with a warning, if overheads stay low)" if longest > sure else ""
    return f"{spelled(case, 'context_tokens', sure)}{more}"


def to_pass(case: Case, passes: Passes) -> str:
    """The smallest changes of the same kinds with which a plan passes any other test of its memory."""
    return ", or ".join(change for kind in (_context, _kv_dtype, _ranks) if (change := kind(case, passes)))


def to_hold(case: Case, holds: Callable[[Case], bool]) -> str:
    """The smallest changes of the same kinds after which a case holds what it must: all users at once, not one request alone."""
    asked = case.asked
    if asked is None:
        return ""
    own = asked.request.workload.context_tokens
    tokens = largest(lambda length: "" if holds(case.changed(context_tokens=length)) else "memory", 1, own)[0]
    found = [spelled(case, "context_tokens", tokens)] if 0 < tokens < own else []

    def holds_in(plan: Plan) -> bool:
        return holds(case._replace(asked=asked._replace(request=asked.request._replace(kv=plan.cache.kv)), plan=plan))

    found.append(_kv_dtype(case, holds_in))
    found.append(_ranks(case, lambda plan: holds(case.changed(tensor_parallel=plan.shared.split.tensor if plan.shared else 1))))
    return ", or ".join(each for each in found if each)


def to_cost_less(case: Case, passes: Callable[[Case], bool], share: float) -> str:
    """Fewer devices that still hold the model, or the price that passes: at most `share` of the pool's."""
    if case.asked is None or case.pool is None or case.pool.price_per_hour is None:
        return ""
    found, own = [], case.asked.request.split
    if splits.takes_ranks(case):
        fewer = (ranks for ranks in range(own.tensor - 1, 0, -1) if own.tensor % ranks == 0)
        for ranks in fewer:
            changed = case.changed(tensor_parallel=ranks)
            if changed.plan is not None and may_fit(changed.plan) and passes(changed):
                found.append(f"{spelled(case, 'tensor_parallel', ranks)} on {own.devices // own.tensor * ranks} x {case.pool.device.text}")
                break
    price = _rounded_down(case.pool.price_per_hour * share)
    if price and passes(case._replace(pool=case.pool._replace(price_per_hour=price))):
        found.append(f"price_hour: {price:g} in {case.pool.name}")
    return ", or ".join(found)


def _rounded_down(price: float) -> float:
    """To four digits."""
    if price <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(price)) - 3)
    return float(f"{math.floor(price / unit) * unit:.4g}")


def _surest(kind: Callable[[Case, Passes], str], case: Case) -> str:
    tokens = case.asked.request.workload.context_tokens if case.asked else 0
    whole = may_take_whole(case.deployment, tokens)
    sure = "" if case.without else kind(case.changed(max_batched_tokens=tokens) if whole else case, surely_fits)
    if sure:
        return sure
    perhaps = kind(case, may_fit)
    return f"{perhaps} (with a warning, if overheads stay low)" if perhaps else ""


def _context(case: Case, passes: Passes) -> str:
    tokens = longest_context(case, passes)
    own = case.asked.request.workload.context_tokens if case.asked else 0
    return spelled(case, "context_tokens", tokens) if 0 < tokens < own else ""


def _dtype(case: Case, passes: Passes) -> str:
    """The model's own type in place of a wider one that was asked for."""
    found = case.setting("dtype")
    if found is None or found.value != "fp32":
        return ""
    plan = case.changed(dtype="auto").plan
    return spelled(case, "dtype", "auto") if plan is not None and passes(plan) else ""


def _narrower(plan: Plan, own: Plan | None) -> bool:
    """Whether its cache has fewer bits than the one that does not do."""
    if own is None:
        return True
    bits = [sum(dtype.bits_per_element for dtype in each.cache.kv) for each in (plan, own)]
    return bits[0] < bits[1]


def _kv_dtype(case: Case, passes: Passes) -> str:
    if case.asked is None or case.deployment.engine == "tgi":
        return ""
    try:
        for types in kv_types(case.asked.request):
            plan = planned(case.asked.request._replace(kv=types)) if types else None
            if plan is not None and _narrower(plan, case.plan) and passes(plan) and not lacks_fp4(case, plan):
                return spelled(case, "kv_dtype", plan.cache.kv.label)
    except (BadInput, NotModelled):
        pass
    return ""


def lacks_fp4(case: Case, plan: Plan) -> bool:
    """No engine keeps a cache of four-bit floats on a part that cannot multiply them."""
    return plan.cache.kv.key.name in ("nvfp4", "mxfp4") and case.part is not None and not case.part.peak("fp4")


def _devices(case: Case) -> str:
    if case.part is not None and is_slice(case.part):
        return _surest(larger_slice, case)
    tokens = case.asked.request.workload.context_tokens if case.asked else 0
    found = splits.fewest(case)
    if may_take_whole(case.deployment, tokens):
        found = found._replace(sure=splits.fewest(case.changed(max_batched_tokens=tokens)).sure)
    if case.without:  # the least of it is planned: nothing is sure
        found = splits.Fewest(None, found.perhaps or found.sure)
    if found.sure:
        return splits.named(case, found.sure)
    return f"{splits.named(case, found.perhaps)} (with a warning, if overheads stay low)" if found.perhaps else ""


def larger_slice(case: Case, passes: Passes) -> str:
    """The smallest slice of the card that passes: an engine uses one, however many there are."""
    if case.asked is None or case.part is None:
        return ""
    for profile, part in larger(case.part):
        plan = planned(case.asked.request._replace(device=part))
        if plan is not None and passes(plan):
            if case.pool is not None and case.pool.mig is not None:
                return f"mig: {profile}"
            gpus = case.deployment.gpus
            asked = gpus is not None and (gpus.resource or "").startswith("nvidia.com/mig-")
            return f"nvidia.com/mig-{profile}: 1" if asked else f"a slice of {profile}"
    return ""


def _ranks(case: Case, passes: Passes) -> str:
    """Twice the tensor ranks, or four times, and so on."""
    if case.asked is None or case.part is None or is_slice(case.part) or not splits.takes_ranks(case):
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
