"""Estimates of a decode step: not bounds. Each says what it rests on, and may only warn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcli.plan.time.options import Calibration
from kvcli.plan.weights import expected_read_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from kvcli.plan.plan import Plan

#: Kernels that one layer of a decode step takes where nothing is fused across blocks, and seconds from one to the next.
KERNELS_PER_LAYER = 10
LAUNCH_S = (2e-6, 4e-6)
#: Sums over ranks that a layer takes in most engines, and seconds that one small sum or hop between devices takes.
SUMS_PER_LAYER = 2
COLLECTIVE_S = (5e-6, 20e-6)


class Estimate(NamedTuple):
    """`seconds` is the middle where it is a range."""

    item: str
    seconds: float
    basis: str
    low_s: float
    high_s: float


def _range(item: str, count: int, each: tuple[float, float], basis: str) -> Estimate:
    low, high = count * each[0], count * each[1]
    return Estimate(item, (low + high) / 2, basis, low, high)


def _point(item: str, seconds: float, basis: str) -> Estimate:
    return Estimate(item, seconds, basis, seconds, seconds)


def estimates(plan: Plan) -> tuple[Estimate, ...]:
    """Of one decode step of the plan's workload; none without a device."""
    times, device, timing = plan.latency, plan.device, plan.timing
    if times is None or times.steps is None or device is None:
        return ()
    floor, chain, layers = times.decode.seconds, times.steps.chain, len(plan.spec.order)
    found = []
    expected = expected_read_bytes(plan.spec, plan.weights, plan.workload.batch_size) if plan.shared is None else None
    if expected is not None:
        moved = times.steps.cache_read_bytes(plan.workload.context_tokens, plan.workload.batch_size) + expected
        basis = f"{expected:,} B of weights with even, independent routing, at the nominal rate"
        found.append(_point("expected_experts", moved / device.bandwidth_bytes_per_s, basis))
    basis = f"rule of thumb: {KERNELS_PER_LAYER} kernels a layer, 2 to 4 us from one to the next; fused or captured steps need fewer"
    found.append(_range("launches", layers * KERNELS_PER_LAYER, LAUNCH_S, basis))
    sums = SUMS_PER_LAYER * layers if chain.ranks > 1 else 0
    if sums + chain.stages > 1:
        basis = f"rule of thumb: {SUMS_PER_LAYER} sums a layer over the ranks and a hop a stage, 5 to 20 us each"
        found.append(_range("collectives", sums + chain.stages - 1, COLLECTIVE_S, basis))
    if timing.efficiency is not None:
        found.append(_point("efficiency", floor / timing.efficiency, f"user: the floor at {timing.efficiency:.0%} of what it assumes"))
    for each in timing.calibrations:
        if each.device == device.id:
            basis = f"measured: {each.measured_over_floor:.3g} x the floor, median of {each.points} records in {each.source}"
            found.append(_point("measured_efficiency", floor * each.measured_over_floor, basis))
    return tuple(found)


def calibrations_of(path: Path) -> tuple[Calibration, ...]:
    """What the records of a file say of each device. Raises BadInput for a file that is none of records, or has no such ratio."""
    from statistics import median

    from kvcli.errors import BadInput
    from kvcli.records import read

    found: dict[str, list[float]] = {}
    for record in read(path):
        device = (record.get("plan") or {}).get("device")
        ratio = record.get("measured_over_floor")
        if isinstance(device, dict) and isinstance(ratio, int | float) and ratio > 0 and not record.get("error"):
            found.setdefault(str(device.get("name")), []).append(float(ratio))
    if not found:
        text = f"{path} has no record of a known device with a measured time over its floor"
        raise BadInput(text, hint="kvcli run --bench on a device of the table writes them", code="nothing_to_calibrate")
    return tuple(Calibration(name, median(ratios), len(ratios), path.name) for name, ratios in found.items())
