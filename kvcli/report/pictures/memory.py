"""A bar for each plan: what the fullest device holds, up to what it may hold, against what is usable."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes

from kvcli.plan.curves.series import Point
from kvcli.plan.curves.stack import ORDER, stack
from kvcli.report.pictures.style import GIB, INK, PIECES, few_ticks, legend_below
from kvcli.units import format_bytes

TITLE = "Memory of the fullest device"
_VERDICTS = {"fits": "fits", "fits_if": "fits if overheads stay low", "does_not_fit": "does not fit", "": ""}


def draw(axes: Axes, points: tuple[Point, ...], names: list[str]) -> str:
    """Draws, and says in a sentence what is shown."""
    stacks = [stack(point.plan) for point in points]
    places = [float(-number) for number in range(len(points))]
    ends = [0.0] * len(points)
    for piece in ORDER:
        sizes = [dict(each.pieces).get(piece, 0) / GIB for each in stacks]
        if any(sizes):
            axes.barh(places, sizes, left=ends, height=0.55, color=PIECES[piece], label=piece)
            ends = [end + size for end, size in zip(ends, sizes, strict=True)]
    may = [max(0.0, each.high_bytes / GIB - end) for each, end in zip(stacks, ends, strict=True)]
    if any(may):
        look = {"hatch": "////", "edgecolor": PIECES["overheads, at least"], "color": "white", "linewidth": 0.0}
        axes.barh(places, may, left=ends, height=0.55, label="overheads, at most", **look)  # type: ignore[arg-type]
    reach = max([*(end + more for end, more in zip(ends, may, strict=True)), *((each.usable_bytes or 0) / GIB for each in stacks)])
    label: str | None = "usable"
    for place, each in zip(places, stacks, strict=True):
        if each.usable_bytes is not None:
            usable = each.usable_bytes / GIB
            axes.plot([usable, usable], [place - 0.36, place + 0.36], color=INK, linewidth=2.2, label=label, zorder=4)
            label = None
    for place, each in zip(places, stacks, strict=True):
        text = format_bytes(sum(size for _, size in each.pieces)) + (f", {_VERDICTS[each.verdict]}" if each.verdict else "")
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # over the mark of the bar above, where bars are thin
        axes.text(0.004 * reach, place + 0.36, text, ha="left", va="bottom", fontsize=9, bbox=box, zorder=5)
    lines = max(-(-len(name) // 24) for name in names) * len(names)
    axes.set_yticks(places, [textwrap.fill(name, 24) for name in names], fontsize=10 if lines <= 20 else 8)
    # few bars do not grow to fill the picture
    spare = max(0.0, (4 - len(points)) / 2)
    axes.set_ylim(places[-1] - 0.6 - spare, 0.8 + spare)
    axes.set_xlim(0, 1.03 * reach)
    axes.grid(visible=False, axis="y")
    few_ticks(axes.xaxis)
    axes.set_xlabel("GiB")
    axes.set_title(TITLE)
    legend_below(axes, 3)
    said = (
        f"{name}: {format_bytes(sum(size for _, size in each.pieces))}"
        + (f" of {format_bytes(each.usable_bytes)} usable, {_VERDICTS[each.verdict]}" if each.usable_bytes is not None else "")
        for name, each in zip(names, stacks, strict=True)
    )
    return "; ".join(said)
