"""Rows below the floors: a generation, crossings, estimates, limits and cost, where they were asked for."""

from __future__ import annotations

from kvcli.plan.plan import Plan
from kvcli.plan.time.crossings import compute_bound_batch, kv_passes_weights_context
from kvcli.plan.time.document import binds
from kvcli.plan.time.estimates import Estimate, estimates
from kvcli.plan.time.limits import cost_of, growth_of, held_against, ttft_floor_s
from kvcli.plan.time.options import Timing
from kvcli.units import format_seconds, four_digits, plural


def time_rows(plan: Plan) -> list[list[str]]:
    """(what, value, remark). An estimate that nobody asked for shows where it is longer than the floor."""
    rows: list[list[str]] = []
    work, timing, times = plan.workload, plan.asked_timing, plan.latency
    if times is None or times.steps is None:
        return rows
    # a scheduler's limits alone ask nothing: they show where they bind
    unasked = Timing(max_sequences=plan.timing.max_sequences, max_batched_tokens=plan.timing.max_batched_tokens)
    asked = plan.timing != unasked or work[4:] != (0, 0, 1)
    if work.new_tokens > 1:
        grown = growth_of(plan)
        span = f"first {format_seconds(grown.first_s)}, last {format_seconds(grown.last_s)}"
        rows.append(["output token, mean", format_seconds(grown.mean_s), f"{work.new_tokens:,} new tokens: {span}"])
    if asked:
        rows.append(first_token_row(plan))
        batch, context = compute_bound_batch(times.steps), kv_passes_weights_context(times.steps)
        rows.append(["compute binds from", f"batch {batch:,}" if batch else "never", f"at {plural(work.context_tokens, 'token')}"])
        rows.append(["cache passes weights", plural(context, "token") if context else "never", f"at batch {work.batch_size:,}"])
    rows += [
        [f"{each['limit'].replace('_', ' ')} binds", f"{each['allowed']:,}", f"{each['asked']:,} are wanted"]
        for each in binds(plan)
        if each["binds"] and each["limit"].startswith("max_")
    ]
    floor = times.decode.seconds
    shown = [each for each in estimates(plan) if each.seconds > floor or each.item in ("efficiency", "measured_efficiency")]
    rows += [[f"estimate: {each.item.replace('_', ' ')}", _seconds(each), each.basis] for each in shown]
    if timing is not None and timing.slo is not None:
        held = held_against(plan, timing.slo)
        for name, limit, refuted in (("TTFT", held.slo.ttft_s, held.ttft_refuted), ("TPOT", held.slo.tpot_s, held.tpot_refuted)):
            rows.append([f"{name} limit", format_seconds(limit), f"{held.slo.name}: {'refuted' if refuted else 'not refuted'}"])
    if timing is not None and timing.price_per_hour is not None:
        cost = cost_of(plan, timing.price_per_hour)
        price = f"at {timing.price_per_hour:g} an hour for all devices"
        rows.append(["1M output tokens", four_digits(cost.output_per_million), f"at least, {price}"])
        rows.append(["1M prompt tokens", four_digits(cost.prompt_per_million), f"at least, {price}"])
    return rows


def first_token_row(plan: Plan) -> list[str]:
    """Of a plan with floors: before when one sequence cannot have its first token."""
    work = plan.workload
    first = "of one sequence" + (", its prefix computed" if work.shared_prefix_tokens and work.batch_size > 1 else "")
    return ["first token", format_seconds(ttft_floor_s(plan)), first]


def _seconds(each: Estimate) -> str:
    if each.low_s == each.high_s:
        return format_seconds(each.seconds)
    return f"{format_seconds(each.low_s)} to {format_seconds(each.high_s)}"
