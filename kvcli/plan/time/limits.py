"""Floors held against limits and a price. A floor above a limit refutes it; a floor below proves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcli.errors import BadInput, Notice
from kvcli.plan.time.growth import Growth, growth
from kvcli.plan.time.options import Slo
from kvcli.plan.time.steps import Steps
from kvcli.units import format_seconds

if TYPE_CHECKING:
    from kvcli.plan.plan import Plan


def _steps(plan: Plan) -> Steps:
    """Raises BadInput where the plan has no device."""
    if plan.latency is None or plan.latency.steps is None:
        raise BadInput("floors need a device", hint="name a part, as in --device h100-sxm5-80", code="needs_device")
    return plan.latency.steps


def growth_of(plan: Plan) -> Growth:
    """Floors of the time for an output token over the plan's generation. Raises BadInput without a device."""
    steps = _steps(plan)
    if plan.workload.new_tokens == 1 and plan.latency is not None:
        alone = plan.latency.decode.seconds / steps.tokens
        return Growth(alone, alone, alone)
    return growth(steps)


def tpot_floor_s(plan: Plan) -> float:
    """Seconds below which the mean time for an output token after the first cannot fall. Raises BadInput without a device."""
    return growth_of(plan).mean_s


def ttft_floor_s(plan: Plan) -> float:
    """Seconds before which one sequence cannot have its first token, however early it comes and however idle the devices are.

    One prompt on all devices of a replica: sequences that are decoded together need not have arrived together. Where a prefix is
    shared, the one meant finds it computed. Raises BadInput without a device.
    """
    steps, work = _steps(plan), plan.workload
    times = plan.latency
    if times is None:
        raise ValueError("no latency")
    newcomer = work.batch_size > 1 and work.shared_prefix_tokens > 0
    if work.batch_size == 1 and steps.chain.replicas == 1:
        return times.prefill.seconds
    # or all are computed together, and each has its first token when that is done
    return min(steps.prefill(times.prefill.lines[0], 1, newcomer).seconds, times.prefill.seconds)


class SloVerdict(NamedTuple):
    slo: Slo
    ttft_refuted: bool
    tpot_refuted: bool


def held_against(plan: Plan, slo: Slo) -> SloVerdict:
    """Raises BadInput without a device."""
    return SloVerdict(slo, ttft_floor_s(plan) > slo.ttft_s, tpot_floor_s(plan) > slo.tpot_s)


def limit_notices(plan: Plan) -> tuple[Notice, ...]:
    """Estimates warn where the floor refutes nothing."""
    from kvcli.plan.time.estimates import estimates

    slo = plan.timing.slo
    if slo is None or plan.latency is None or held_against(plan, slo).tpot_refuted:
        return ()
    over = [each for each in estimates(plan) if each.low_s / plan.latency.tokens_per_step > slo.tpot_s]
    said = "; ".join(f"{each.item.replace('_', ' ')} {format_seconds(each.low_s)} ({each.basis})" for each in over)
    return (
        (Notice("estimate_above_limit", f"{slo.name} is not refuted, but estimates of a step are above its limit: {said}"),) if over else ()
    )


class Cost(NamedTuple):
    """Lower bounds of the price of a million tokens, in the currency of the price. `output` decodes alone, `prompt` prefills alone."""

    price_per_hour: float
    output_per_million: float
    prompt_per_million: float


def cost_of(plan: Plan, price_per_hour: float) -> Cost:
    """Price / tokens an hour, where all devices do nothing else and are as fast as the floors. Raises BadInput without a device."""
    _steps(plan)
    work, times = plan.workload, plan.latency
    if times is None:
        raise ValueError("no latency")
    per_second = price_per_hour / 3600
    prompt_tokens = work.batch_size * work.prefill_tokens
    output = per_second * tpot_floor_s(plan) / work.batch_size * 1e6
    if times.tokens_per_s:  # replicas with a sequence fewer do not wait for the others
        output *= min(1.0, work.batch_size * times.tokens_per_step / times.decode.seconds / times.tokens_per_s)
    return Cost(price_per_hour, output, per_second * times.prefill.seconds / prompt_tokens * 1e6)
