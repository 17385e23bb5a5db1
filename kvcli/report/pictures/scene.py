"""What is to be drawn: the points of a call and the panels that answer something about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.plan.curves.series import MOST_SERIES, Point, over_batch, over_context
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest

PANELS = ("cache", "memory", "latency", "roofline")
#: More bars than these are too thin to label; then there is one for each curve, at its longest context.
MOST_BARS = 12


class Picture(NamedTuple):
    """One panel drawn on its own. `alt` says in a sentence what it shows, for those who cannot see it."""

    name: str
    title: str
    alt: str
    svg: bytes


class Scene(NamedTuple):
    """Points by panel: curves over the context, bars, curves over the batch, work on the roofline."""

    by_context: tuple[Point, ...]
    bars: tuple[Point, ...]
    by_batch: tuple[Point, ...]
    #: not every plan has a bar: one for each curve over the context, at its longest
    longest_only: bool = False

    @property
    def panels(self) -> tuple[str, ...]:
        """Those that have something to show: floors need a device of known rate, a roofline a known peak too."""
        timed = [point.plan for point in self.by_batch if point.plan.latency is not None and point.plan.latency.steps is not None]
        roofs = [plan for plan in timed if plan.latency is not None and plan.latency.ridge]
        shown = {"cache": True, "memory": True, "latency": bool(timed), "roofline": bool(roofs)}
        return tuple(name for name in PANELS if shown[name])

    def points_of(self, panel: str) -> tuple[Point, ...]:
        return {"cache": self.by_context, "memory": self.bars}.get(panel, self.by_batch)


def scene(requests: Sequence[PlanRequest], plans: Sequence[Plan]) -> Scene:
    """Raises BadInput for more curves than a reader tells apart."""
    points = [Point(*pair) for pair in zip(requests, plans, strict=True)]
    by_context, by_batch = over_context(points), over_batch(points)
    # of too many curves the longest context, or the largest batch, stands for the others
    if len(by_batch) > MOST_SERIES:
        by_batch = over_batch(by_context)
    if len(by_context) > MOST_SERIES:
        by_context = over_context(by_batch)
    for curves in (by_context, by_batch):
        if len(curves) > MOST_SERIES:
            raise BadInput(
                f"a picture holds {MOST_SERIES} curves, and this call has {len(curves)}",
                hint="name fewer models, devices, engines, types or splits",
                code="too_many_curves",
            )
    few = len(points) <= MOST_BARS
    return Scene(tuple(by_context), tuple(points if few else by_context), tuple(by_batch), not few)


def panels_of(asked: str | None) -> tuple[str, ...]:
    """Panels by name; all of them where none is asked for. Raises BadInput for others."""
    found = tuple(dict.fromkeys(each.strip().lower() for each in (asked or "").split(",") if each.strip()))
    for name in found:
        if name not in PANELS:
            raise BadInput(
                f"--panels {name[:40]!r} is no picture kvcli draws", hint="one or more of " + ", ".join(PANELS), code="unknown_panel"
            )
    return found
