"""The floors of a plan for people: on its device, or on parts that many have."""

from __future__ import annotations

from kvcli.hardware.accelerators import Accelerator
from kvcli.hardware.match import find
from kvcli.plan.budget.memory import memory_on
from kvcli.plan.floors import Floor
from kvcli.plan.lines import latency_on
from kvcli.plan.plan import Plan
from kvcli.plan.time.latency import Latency
from kvcli.report.budget_table import VERDICTS
from kvcli.report.table import Column, Table
from kvcli.report.time_rows import time_rows
from kvcli.units import format_bandwidth, format_bytes, format_flops, format_seconds, four_digits, plural

#: Parts that many people have or rent, for a plan without a device.
WELL_KNOWN = ("rtx4090", "rtx5090", "l4", "l40s", "a100-sxm4-80", "h100-sxm5-80", "h200-sxm", "b200", "mi300x")

#: What a floor is.
FLOOR = "times that no correct execution beats"


def floors_table(plan: Plan) -> Table | str:
    """Of the plan's device, of well-known ones where it has none, or the sentence that says why there are none."""
    if plan.latency and plan.device:
        return _floors(plan, plan.latency, plan.device)
    if plan.device:
        return f"no floors on {plan.device.name}: no rate is known that it cannot exceed"
    return _well_known(plan)


def _floors(plan: Plan, times: Latency, device: Accelerator) -> Table:
    peak = device.peak_bound(*plan.weights.multiply_units)
    batch = plan.workload.batch_size
    ridge = f"ridge {four_digits(times.ridge)} FLOP/B" if times.ridge else "ridge unknown"
    unknown = "" if peak else ", peak unknown"
    if times.ridge and times.ridge_of_bounds and abs(times.ridge_of_bounds / times.ridge - 1) > 0.005:
        ridge += f", {four_digits(times.ridge_of_bounds)} at the floors' rates"
    rows = [
        [
            "decode step",
            format_seconds(times.decode.seconds),
            f"at most {most_tokens_per_s(times, batch)} tokens/s; {_binds(times.decode)}{unknown}",
        ],
        [
            "prefill",
            format_seconds(times.prefill.seconds),
            f"{plural(plan.workload.prefill_tokens, 'token')} each; {_binds(times.prefill)}{unknown}",
        ],
        [
            "decode intensity",
            f"{four_digits(times.arithmetic_intensity)} FLOP/B",
            ridge,
        ],
        *time_rows(plan),
    ]
    rates = f"{format_bandwidth(device.bandwidth_bound_bytes_per_s)}" + (f", {format_flops(peak)}/s" if peak else ", peak unknown")
    count = plan.shared.split.devices if plan.shared else 1
    title = f"floors on {f'{count} x ' if count > 1 else ''}{device.name} ({rates}{' each' if count > 1 else ''})"
    return Table([Column("", right=False), Column(""), Column("", right=False)], rows, title)


def _binds(floor: Floor) -> str:
    return f"{floor.bound.replace('_', ' ')} binds"


def _well_known(plan: Plan) -> Table:
    """Floors on some parts, computed from the same two ledger lines, and the verdict of the budget that a plan on each has."""
    rows = []
    for part in map(find, WELL_KNOWN):
        times = latency_on(plan.spec, plan.workload, plan.weights, plan.cache, plan.shared, part, plan.draft, plan.timing.host_bytes_per_s)
        memory = None
        if plan.request is not None:
            request = plan.request._replace(device=part)
            memory = memory_on(request, plan.weights, plan.cache.kv, plan.cache, plan.shared, plan.draft)
        rows.append(
            [
                part.id,
                format_bytes(part.usable_bytes) if part.usable_bytes is not None else "any",
                "" if memory is None else VERDICTS[memory.verdict],
                format_seconds(times.decode.seconds),
                most_tokens_per_s(times, plan.workload.batch_size),
                format_seconds(times.prefill.seconds),
            ]
        )
    devices = "device" if plan.shared is None or plan.shared.split.alone else f"{plan.shared.split.devices} of"
    titles = (devices, "usable", "fits", "decode floor", "tokens/s max", "prefill floor")
    columns = [Column(title, right=title not in (devices, "fits")) for title in titles]
    return Table(columns, rows, f"floors: {FLOOR}; fits: overheads counted")


def most_tokens_per_s(times: Latency, batch: int) -> str:
    """The ceiling that a step's floor is, of the whole batch."""
    seconds = times.decode.seconds
    if times.tokens_per_s is not None:
        return four_digits(times.tokens_per_s)
    return four_digits(batch * times.tokens_per_step / seconds) if seconds else "unbounded"
