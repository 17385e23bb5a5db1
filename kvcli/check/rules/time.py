"""KV005, KV006, KV015: limits that no correct execution reaches. A floor above a limit fails; below it nothing is proven."""

from __future__ import annotations

from kvcli.check import fixes
from kvcli.check.case import Case, passed, planned, skipped
from kvcli.check.faster import BEST_EFFICIENCY, Limit, to_be_faster
from kvcli.check.rules.memory import sequences_held, usable
from kvcli.check.verdict import Outcome
from kvcli.plan.floors import Floor
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.time.limits import tpot_floor_s, ttft_floor_s
from kvcli.plan.workload import Workload
from kvcli.units import format_seconds, plural


def why_no_floor(case: Case) -> str:
    if case.unknown or (case.plan is not None and case.plan.latency is not None):
        return case.unknown
    return f"no rate of {case.part.id if case.part else 'the device'} is known that it cannot exceed"


def prompt_request(case: Case) -> PlanRequest | None:
    """One prompt at the median, of which all but the last token may be cached, unless the load says otherwise."""
    if case.asked is None:
        return None
    load, most = case.load, case.asked.request.workload.context_tokens
    prompt = min(load.prompt_tokens or load.context_p50 or 1, most)
    uncached = 1 if load.cached_prefix is None else max(1, prompt - load.cached_prefix)
    return case.asked.request._replace(workload=Workload(prompt, 1, prompt, uncached_tokens=uncached))


def step_request(case: Case, batch: int = 1) -> PlanRequest | None:
    """One sequence at the median context."""
    if case.asked is None:
        return None
    load, most = case.load, case.asked.request.workload.context_tokens
    return case.asked.request._replace(workload=Workload(min(load.context_p50 or load.prompt_tokens or 1, most), batch))


def ttft_plan(case: Case) -> Plan | None:
    request = prompt_request(case)
    return planned(request) if request is not None and not why_no_floor(case) else None


def prompt_assumed(case: Case) -> tuple[str, ...]:
    """What the floor of the prefill is of, where that is not a whole prompt that the load names."""
    request, load = prompt_request(case), case.load
    if request is None or not (load.prompt_tokens or load.context_p50):
        return ("the prefill floor is of a prompt of one token: the load names no prompt",) if request else ()
    work = request.workload
    if work.uncached_tokens >= work.prompt_tokens:
        return ()
    computed = "one token" if work.uncached_tokens == 1 else f"{work.uncached_tokens:,} tokens"
    rest = "" if load.cached_prefix is not None else " (cached_prefix: 0 counts all)"
    return (f"the prefill floor computes {computed} of {work.prompt_tokens:,}, the others are taken as cached{rest}",)


def step_plan(case: Case, batch: int = 1) -> Plan | None:
    request = step_request(case, batch)
    return planned(request) if request is not None and not why_no_floor(case) else None


def ttft(case: Case) -> Outcome:
    """KV005."""
    plan = ttft_plan(case)
    if plan is None or plan.latency is None:
        return skipped("KV005", case, why_no_floor(case) or "the prompt cannot be planned")
    work = plan.workload
    what = f"computes {work.uncached_tokens or work.prefill_tokens:,} of {plural(work.prefill_tokens, 'prompt token')} within"
    return _held("KV005", "ttft", case, prompt_request(case), ttft_floor_s(plan), what, _bound(plan.latency.prefill))


def tpot(case: Case) -> Outcome:
    """KV006."""
    plan = step_plan(case)
    if plan is None or plan.latency is None:
        return skipped("KV006", case, why_no_floor(case) or "the step cannot be planned")
    emitted = plan.latency.tokens_per_step
    term = _bound(plan.latency.decode) + (f" / {emitted} tokens a step" if emitted > 1 else "")
    what = f"emits a token of one sequence with {plural(plan.workload.context_tokens, 'token')} every"
    return _held("KV006", "tpot", case, step_request(case), tpot_floor_s(plan), what, term)


def _held(rule: str, name: str, case: Case, request: PlanRequest | None, floor: float, what: str, term: str) -> Outcome:
    """A floor against its limit: above it no execution `what`; close below it, none that is known does."""
    limit = case.limit(name)
    if limit is None:
        return skipped(rule, case, f"no limit on {name} is set")
    formula = f"{term} = {format_seconds(floor)} against {limit.said}"
    if floor > limit.value:
        message = f"no execution {what} {format_seconds(limit.value)}: the floor is {format_seconds(floor)}"
        fix = to_be_faster(case, request, Limit(name, limit.value)) if request is not None else ""
        return Outcome(rule, "error", message, limit.place, formula, fix)
    if floor > BEST_EFFICIENCY * limit.value:
        message = f"the limit takes more than {BEST_EFFICIENCY:.0%} of what the hardware can do: the floor is {format_seconds(floor)}"
        return Outcome(rule, "warning", message, limit.place, formula)
    return passed(rule, case, f"not refuted: the floor is {format_seconds(floor)}", formula)


def _bound(floor: Floor) -> str:
    """The term that binds, with its numbers."""
    suffix = {"memory": "_bandwidth", "compute": "_compute"}.get(floor.bound, f"_{floor.bound}")
    line = next((line for line in floor.lines if line.item.endswith(suffix)), None)
    units = ("FLOP", "FLOP/s") if floor.bound == "compute" else ("B", "B/s")
    return " / ".join(f"{value:,.0f} {unit}" for (_, value), unit in zip(line.formula.terms, units, strict=True)) if line else floor.bound


def cost(case: Case) -> Outcome:
    """The least a million output tokens can cost: all devices decode at their floor, as many sequences as may ever run together."""
    limit = case.limit("cost_per_mtok")
    if limit is None:
        return skipped("KV015", case, "no limit on cost is set")
    least = least_cost(case)
    if least is None:
        return skipped("KV015", case, why_no_floor(case) or usable(case) or "the pool has no price_hour")
    value, formula = least
    if value > limit.value:
        message = f"a million output tokens cost at least {value:.4g}, more than {limit.value:g}"
        fix = fixes.to_cost_less(case, lambda changed: _costs_at_most(changed, limit.value), limit.value / value)
        return Outcome("KV015", "error", message, limit.place, formula, fix)
    return passed("KV015", case, f"not refuted: at least {value:.4g}", formula)


def _costs_at_most(case: Case, most: float) -> bool:
    least = least_cost(case)
    return least is not None and least[0] <= most


def least_cost(case: Case) -> tuple[float, str] | None:
    pool = case.pool
    if pool is None or pool.price_per_hour is None or case.asked is None or why_no_floor(case):
        return None
    used = case.asked.request.split.devices
    price = pool.price_per_hour * (used / pool.devices if pool.devices else used)
    held = sequences_held(case)
    instances = max(1, case.deployment.replicas)
    most = max(1, held[1] // instances) if held else 1
    if case.load.users:
        most = min(most, -(-case.load.users // instances)) or 1
    plan = step_plan(case, most)
    if plan is None or plan.latency is None or not tpot_floor_s(plan):
        return None
    seconds = tpot_floor_s(plan)
    value = price / 3600 * seconds / most * 1e6
    formula = f"{price:.6g} an hour / 3,600 s x {format_seconds(seconds)} a token / {plural(most, 'sequence')} x 1,000,000 = {value:.4g}"
    return value, formula
