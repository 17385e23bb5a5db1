"""What a picture tells apart: the distinct requests of a call, and how each is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest

#: More curves than these no reader tells apart.
MOST_SERIES = 8


class Point(NamedTuple):
    """A request and its plan. Where it stands for a curve, `asked` are the contexts or batches of that curve which were asked for."""

    request: PlanRequest
    plan: Plan
    asked: tuple[int, ...] = ()


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
    return _longest(points, "context_tokens")


def over_batch(points: Sequence[Point]) -> list[Point]:
    """One point of each curve over the batch: the one with the most sequences."""
    return _longest(points, "batch_size")


def _longest(points: Sequence[Point], over: str) -> list[Point]:
    found: dict[tuple[object, ...], Point] = {}
    asked: dict[tuple[object, ...], set[int]] = {}
    for point in points:
        work = point.request.workload
        request = point.request._replace(workload=work._replace(**{over: 0}))
        # specs are as good as equal only where they are the same one: they hold too much to compare
        key = (id(request.spec), *request[1:3], *map(_plain, request[3:]))
        asked.setdefault(key, set()).add(getattr(work, over))
        if key not in found or work > found[key].request.workload:
            found[key] = point
    return [point._replace(asked=tuple(sorted(asked[key]))) for key, point in found.items()]


def _plain(value: object) -> object:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


#: Longer names lose their middle: what differs is mostly at the ends.
LONGEST_NAME = 64


def names(points: Sequence[Point]) -> list[str]:
    """What tells each point from the others; the model where there is only one. Names too long for a picture are numbered too."""
    found = _names(points)
    short = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[-LONGEST_NAME // 2 :]}" for name in found]
    if len(set(short)) == len(set(found)):
        return short
    return [name if name == whole else f"{number}: {name}" for number, (name, whole) in enumerate(zip(short, found, strict=True), 1)]


def _names(points: Sequence[Point]) -> list[str]:
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
