"""The smallest changes with which a case that fails would pass, each planned again before it is named."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvcli.check.case import Case, planned
from kvcli.check.requests import WHOLE_PROMPTS, chunks_by_length, may_take_whole
from kvcli.check.words import OPTIONS, spelled
from kvcli.errors import BadInput, NotModelled
from kvcli.hardware.accelerators import find
from kvcli.hardware.mig import is_slice, larger
from kvcli.plan.answers.requirements import Requirement
from kvcli.plan.answers.search import Goal, largest
from kvcli.plan.answers.solve import kv_types, solve
from kvcli.plan.plan import Plan

Passes = Callable[[Plan], bool]
#: The largest share of a device that serves as a proposal; contexts and libraries need the rest.
HIGHEST_FRACTION = 0.95


def surely_fits(plan: Plan) -> bool:
    return plan.memory is not None and plan.memory.verdict == "fits"


def may_fit(plan: Plan) -> bool:
    return plan.memory is not None and plan.memory.fits


def to_fit(case: Case) -> str:
    """The file's own type, a shorter context, a narrower cache, more devices, or else a larger share of memory: of each the smallest
    change that fits whatever the overheads are, or where none does, one that fits if they stay low."""
    found = [change for kind in (_dtype, _context, _kv_dtype, _devices) if (change := _surest(kind, case))]
    return ", or ".join(found) or _surest(_fraction, case)


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
    if "tensor_parallel" in OPTIONS.get(case.deployment.engine, {}) or case.own:
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
    whole = kind is not _context and may_take_whole(case.deployment, tokens)
    sure = "" if case.without else kind(case.changed(max_batched_tokens=tokens) if whole else case, surely_fits)
    if sure:
        return sure
    perhaps = kind(case, may_fit)
    return f"{perhaps} (if overheads stay low)" if perhaps else ""


def longest_context(case: Case, passes: Passes) -> int:
    """The largest context of one sequence that passes, 0 where none does. Lengths are asked anew, since a prefill chunk may follow them."""
    if case.asked is None:
        return 0
    high = case.asked.request.workload.context_tokens
    starts = [1]
    if chunks_by_length(case.deployment) and high > WHOLE_PROMPTS:
        starts = [WHOLE_PROMPTS + 1, 1]  # the longer ones go in chunks and may fit where shorter ones do not

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


def _devices(case: Case, passes: Passes, requirements: tuple[Requirement, ...] = ()) -> str:
    if case.asked is None or case.part is None:
        return ""
    if is_slice(case.part):
        return "" if requirements else larger_slice(case, passes)
    goal, split = Goal(requirements, certain=passes is surely_fits), None
    for unknown in ("tp", "devices"):  # ranks side by side are what most people add first
        try:
            split = split or solve(case.asked.request, unknown, goal).split
        except (BadInput, NotModelled):
            continue
    if split is None or split.devices <= case.asked.request.split.devices:
        return ""
    if case.deployment.engine in ("llama.cpp", "ollama"):  # they deal layers to whatever devices they see
        return f"{split.devices} x {case.part.id}"
    words = spelled(case, "tensor_parallel", split.tensor)
    words += f" {spelled(case, 'pipeline_parallel', split.pipeline)}" if split.pipeline > 1 else ""
    return f"{words} on {split.devices} x {case.part.id}"


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
    if case.asked is None or case.part is None or is_slice(case.part) or "tensor_parallel" not in OPTIONS.get(case.deployment.engine, {}):
        return ""
    own = case.asked.request.split
    for times in (2, 4, 8):
        plan = case.changed(tensor_parallel=own.tensor * times).plan
        if plan is not None and passes(plan):
            return f"{spelled(case, 'tensor_parallel', own.tensor * times)} on {own.devices * times} x {case.part.id}"
    return ""


def _fraction(case: Case, passes: Passes) -> str:
    found = case.setting("memory_fraction")
    if found is None or isinstance(found.value, str) or found.value >= HIGHEST_FRACTION:
        return ""
    plan = case.changed(memory_fraction=HIGHEST_FRACTION).plan
    return spelled(case, "memory_fraction", HIGHEST_FRACTION) if plan is not None and passes(plan) else ""


def to_be_faster(case: Case, requirement: Requirement) -> str:
    """More devices of the kind, or the part of the table with least memory that is not refuted."""
    found = _devices(case, may_fit, (requirement,))
    if case.asked is None:
        return found
    try:
        solved = solve(case.asked.request, "device", Goal((requirement,)))
    except (BadInput, NotModelled):
        return found
    names = solved.value if isinstance(solved.value, tuple) else ()
    kind = case.part.kind if case.part else ""
    alike = [name for name in names if find(name).kind == kind] or names
    return ", or ".join(each for each in (found, f"on {alike[0]}" if alike else "") if each)
