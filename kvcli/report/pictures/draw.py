"""Panels to figures: one for each panel, or all of them on one sheet."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvcli.errors import BadInput
from kvcli.plan.curves.series import Point, common, names
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.report.pictures import cache, latency, memory, roofline
from kvcli.report.pictures.scene import Picture, Scene, scene
from kvcli.report.pictures.style import QUIET, SETTINGS


class Panel(NamedTuple):
    title: str
    draw: Callable[[Axes, tuple[Point, ...], list[str]], str]


_PANELS = {
    "cache": Panel(cache.TITLE, cache.draw),
    "memory": Panel(memory.TITLE, memory.draw),
    "latency": Panel(latency.TITLE, latency.draw),
    "roofline": Panel(roofline.TITLE, roofline.draw),
}
#: Inches of one panel, and dots an inch of pictures made of dots.
WIDTH, HEIGHT = 8.0, 5.6
DOTS_AN_INCH = 144
#: Nothing of the day or the machine, so that the same call gives the same bytes.
_METADATA: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}


def pictures(requests: Sequence[PlanRequest], plans: Sequence[Plan], panels: tuple[str, ...] = ()) -> list[Picture]:
    """Each panel on its own, as SVG; without names all that have something to show.

    Raises BadInput for a panel that has nothing to show, and for more curves than a reader tells apart.
    """
    shown = scene(requests, plans)
    found = []
    for name in _chosen(shown, panels):
        with mpl.rc_context(SETTINGS):  # type: ignore[arg-type]  # names of settings are checked when they are set
            figure = Figure(figsize=(WIDTH, _height(shown)), layout="constrained")
            said = _draw(figure.add_subplot(), shown, name)
            found.append(Picture(name, _PANELS[name].title, said, _bytes(figure, "svg")))
    return found


def sheet(requests: Sequence[PlanRequest], plans: Sequence[Plan], panels: tuple[str, ...], kind: str) -> bytes:
    """All panels on one sheet, as `png`, `svg` or `pdf`. Raises BadInput as `pictures`."""
    with mpl.rc_context(SETTINGS):  # type: ignore[arg-type]  # names of settings are checked when they are set
        return _bytes(sheet_figure(requests, plans, panels), kind)


def sheet_figure(requests: Sequence[PlanRequest], plans: Sequence[Plan], panels: tuple[str, ...]) -> Figure:
    """The sheet before it is a file."""
    shown = scene(requests, plans)
    chosen = _chosen(shown, panels)
    across = 1 if len(chosen) == 1 else 2
    down = -(-len(chosen) // across)
    figure = Figure(figsize=(WIDTH * across, _height(shown) * down + 0.4), layout="constrained")
    for number, name in enumerate(chosen, 1):
        _draw(figure.add_subplot(down, across, number), shown, name)
    figure.suptitle("\n".join(textwrap.wrap(common(shown.bars), 90 * across)), fontsize=11, color=QUIET)
    return figure


def _height(shown: Scene) -> float:
    """Inches of one panel: more for many bars, and for the lines of a legend that many curves take."""
    return HEIGHT + 0.35 * max(0, max(map(len, (shown.by_context, shown.bars, shown.by_batch))) - 4)


def _chosen(shown: Scene, panels: tuple[str, ...]) -> tuple[str, ...]:
    for name in panels:
        if name not in shown.panels:
            why = "needs a device whose rate is known" if name == "latency" else "needs a device whose rate and peak are known"
            raise BadInput(f"the {name} picture {why}", hint="name a part, as in --device h100-sxm5-80", code="nothing_to_draw")
    return panels or shown.panels


def _draw(axes: Axes, shown: Scene, name: str) -> str:
    points = shown.points_of(name)
    said = _PANELS[name].draw(axes, points, names(points))
    if name == "memory" and shown.longest_only:
        axes.set_title(f"{memory.TITLE}, at the longest context of each curve")
    return said


def _bytes(figure: Figure, kind: str) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=DOTS_AN_INCH, metadata=_METADATA[kind])
    return out.getvalue()
