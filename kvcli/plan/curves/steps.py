"""The floor of a decode step against the batch, and the roofline with the points of decode and prefill."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.plan.answers.search import Goal
from kvcli.plan.answers.solve import solve
from kvcli.plan.curves.series import Point
from kvcli.plan.plan import Plan
from kvcli.plan.time.crossings import compute_bound_batch
from kvcli.plan.time.steps import Steps

#: A batch at which arithmetic binds further out than this is not drawn.
MOST_SEQUENCES = 4096
LEAST_SEQUENCES = 64
#: Points between one power of two and the next.
POINTS_AN_OCTAVE = 4


class StepCurve(NamedTuple):
    """(sequences, seconds) of a step's floor and of each of its terms, the floor being the largest of them.

    `asked` are those of the plans. `compute_from` is the fewest sequences at which arithmetic binds, `held` the most that memory holds;
    None where there is none.
    """

    floor: tuple[tuple[int, float], ...]
    terms: tuple[tuple[str, tuple[tuple[int, float], ...]], ...]
    asked: tuple[tuple[int, float], ...]
    compute_from: int | None
    held: int | None


def steps_of_plan(plan: Plan) -> Steps | None:
    return plan.latency.steps if plan.latency else None


def most_sequences(points: list[Point]) -> int:
    """Up to where curves are drawn, the same for all of them."""
    found = LEAST_SEQUENCES
    for point in points:
        plan, steps = point.plan, steps_of_plan(point.plan)
        bound = compute_bound_batch(steps) if steps else None
        found = max(found, 2 * plan.workload.batch_size, min(MOST_SEQUENCES, 2 * bound) if bound else 0)
    return found


def step_curve(point: Point, most: int) -> StepCurve | None:
    """None for a plan without floors."""
    request, plan = point.request, point.plan
    steps = steps_of_plan(plan)
    if steps is None:
        return None
    tokens = plan.workload.context_tokens
    asked = point.asked or (plan.workload.batch_size,)
    batches = _batches(most, asked)
    found = [steps.terms(tokens, batch) for batch in batches]
    kinds = [name for name, _ in found[0]]
    terms = tuple(
        (name, tuple((batch, max(0.0, dict(each)[name])) for batch, each in zip(batches, found, strict=True)))
        for name in kinds
        if any(dict(each)[name] > 0 for each in found)
    )
    held = None
    if plan.memory is not None:
        solved = solve(request, "batch", Goal())
        held = solved.value if isinstance(solved.value, int) and solved.binding == "memory" else None
    return StepCurve(
        floor=tuple((count, steps.seconds(tokens, count)) for count in batches),
        terms=terms,
        asked=tuple((batch, steps.seconds(tokens, batch)) for batch in asked),
        compute_from=compute_bound_batch(steps),
        held=held,
    )


def _batches(most: int, asked: tuple[int, ...]) -> list[int]:
    found = {1, most, *asked}
    number = 0
    while (batch := round(2 ** (number / POINTS_AN_OCTAVE))) < most:
        found.add(batch)
        number += 1
    return sorted(found)


class Roof(NamedTuple):
    """Rates of one device: FLOP/s of the units that the weights could use, bytes/s of its memory."""

    device: str
    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP/B from which arithmetic binds."""
        return self.flops_per_s / self.bytes_per_s

    def at(self, intensity: float) -> float:
        """The most FLOP/s at an intensity in FLOP/B."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


class Work(NamedTuple):
    """A phase on the roofline: FLOP/B of one device."""

    phase: str
    batch_size: int
    intensity: float


class Roofline(NamedTuple):
    """`roof` is what no execution exceeds, as floors have it; `nominal` what the part's data sheet says."""

    roof: Roof
    nominal: Roof
    work: tuple[Work, ...]


#: Batches whose decode steps stand beside the one asked for.
LANDMARKS = (1, 8, 64)


def roofline(point: Point, landmarks: bool) -> Roofline | None:
    """None where the device, its peak or its rate is unknown. `landmarks` adds decode steps of other batches."""
    plan = point.plan
    steps, device = steps_of_plan(plan), plan.device
    if steps is None or device is None:
        return None
    roof = Roof(device.id, steps.peak_flops, device.bandwidth_bound_bytes_per_s)
    nominal = Roof(device.id, device.peak(*steps.units), device.bandwidth_bytes_per_s)
    if not nominal.flops_per_s or not nominal.bytes_per_s:
        return None
    tokens, asked = plan.workload.context_tokens, plan.workload.batch_size
    batches = sorted({asked, *point.asked, *(LANDMARKS if landmarks else ())})
    work = [Work("decode", batch, steps.intensity(tokens, batch)) for batch in batches]
    prefill = plan.latency.prefill.lines if plan.latency else ()
    moved = sum(int(line.amount) for line in prefill if line.item in ("prefill_weights_read", "prefill_kv_read"))
    flops = sum(int(line.amount) for line in prefill if line.item == "prefill_flops")
    devices = steps.chain.ranks * min(steps.chain.replicas, asked)
    if moved and flops:
        # a device reads its share of the weights of its stage, and computes its share of that stage
        work.append(Work("prefill", asked, flops / devices / moved))
    return Roofline(roof, nominal, tuple(work))
