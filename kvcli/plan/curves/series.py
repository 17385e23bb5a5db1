"""What a picture tells apart: the distinct requests of a call, and how each is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest

#: More curves than these no reader tells apart.
MOST_SERIES = 8


class Point(NamedTuple):
    """A request and its plan."""

    request: PlanRequest
    plan: Plan


#: What may differ between plans of a call, in the order in which a name says it.
_FACTS: tuple[tuple[str, Callable[[Plan], str]], ...] = (
    ("model", lambda plan: plan.spec.name),
    ("device", lambda plan: plan.device.id if plan.device else ""),
    ("tp", lambda plan: f"{plan.shared.split.devices} devices" if plan.shared and plan.shared.split.devices > 1 else "1 device"),
    ("engine", lambda plan: f"{plan.cache.engine} {plan.cache.engine_version}".strip()),
    ("kv", lambda plan: f"{plan.cache.kv.label} cache"),
    ("weights", lambda plan: f"{plan.weights.dtype} weights"),
    ("ctx", lambda plan: f"{plan.workload.context_tokens:,} tokens"),
    ("batch", lambda plan: f"{plan.workload.batch_size:,} sequence{'s' if plan.workload.batch_size > 1 else ''}"),
)


def over_context(points: Sequence[Point]) -> list[Point]:
    """One point of each curve over the context: the one with the longest."""
    return _longest(points, lambda request: request._replace(workload=request.workload._replace(context_tokens=0)))


def over_batch(points: Sequence[Point]) -> list[Point]:
    """One point of each curve over the batch: the one with the most sequences."""
    return _longest(points, lambda request: request._replace(workload=request.workload._replace(batch_size=0)))


def _longest(points: Sequence[Point], kind: Callable[[PlanRequest], PlanRequest]) -> list[Point]:
    found: dict[tuple[object, ...], Point] = {}
    for point in points:
        request = kind(point.request)
        # specs are as good as equal only where they are the same one: they hold too much to compare
        key = (id(request.spec), *request[1:3], *map(_plain, request[3:]))
        if key not in found or point.request.workload > found[key].request.workload:
            found[key] = point
    return list(found.values())


def _plain(value: object) -> object:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def names(points: Sequence[Point]) -> list[str]:
    """What tells each point from the others; the model where there is only one."""
    said = [[(key, fact(point.plan)) for key, fact in _FACTS] for point in points]
    varying = [number for number in range(len(_FACTS)) if len({each[number] for each in said}) > 1] or [0]
    return [", ".join(each[number][1] for number in varying if each[number][1]) for each in said]


def common(points: Sequence[Point], without: tuple[str, ...] = ()) -> str:
    """What all points share, in words, the facts named in `without` left out; as a subtitle has it."""
    said = [
        {fact(point.plan) for point in points}
        for key, fact in _FACTS
        if key not in without and not (key == "tp" and all(point.plan.shared is None for point in points))
    ]
    return ", ".join(text for each in said if len(each) == 1 and (text := next(iter(each))))
