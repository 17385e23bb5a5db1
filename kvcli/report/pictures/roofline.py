"""Roofs of the devices at the rates that no execution exceeds and at nominal ones, and where decode and prefill stand under them."""

from __future__ import annotations

from matplotlib.axes import Axes

from kvcli.plan.curves.series import Point, common
from kvcli.plan.curves.steps import Roof, Roofline, roofline
from kvcli.report.pictures.style import COLOURS, QUIET, legend_below, plain_log_ticks, si
from kvcli.units import four_digits

TITLE = "Roofline: decode and prefill"
#: From so many characters on a name has a line of the legend to itself.
LONG_NAME = 22
MARKERS = {"decode": "o", "prefill": "s"}


def draw(axes: Axes, points: tuple[Point, ...], names: list[str]) -> str:
    """Draws, and says in a sentence what is shown."""
    alone = len(points) == 1
    found = [(name, each) for name, point in zip(names, points, strict=True) if (each := roofline(point, landmarks=alone)) is not None]
    intensities = [work.intensity for _, each in found for work in each.work]
    low = min(1.0, *(value / 2 for value in intensities))
    high = max(*(4 * value for value in intensities), *(8 * each.roof.ridge for _, each in found))
    roofs = list(dict.fromkeys(each.roof for _, each in found))
    # a roof of its own has its curve's colour; one that all share has none
    own = len(roofs) == len(found)
    for number, roof in enumerate(roofs):
        _roof(axes, roof, low, high, COLOURS[number % len(COLOURS)] if own and not alone else QUIET)
    for nominal in dict.fromkeys(each.nominal for _, each in found if not _alike(each.nominal, each.roof)):
        axes.plot(*_path(nominal, low, high), color=QUIET, linewidth=1.1, linestyle="--", label=f"{_words(nominal)} (nominal)")
    for number, (name, each) in enumerate(found):
        colour = COLOURS[number % len(COLOURS)]
        for phase, marker in MARKERS.items():
            xs = [work.intensity for work in each.work if work.phase == phase]
            axes.plot(xs, [each.roof.at(x) for x in xs], marker=marker, linestyle="none", color=colour, markersize=8, zorder=5)
        if not own:
            axes.plot([], [], color=colour, linewidth=6, label=name)
    for phase, marker in MARKERS.items():
        batches = ", ".join(f"{work.batch_size:,}" for work in found[0][1].work if work.phase == phase)
        if batches:
            label = f"{phase}, batch {batches}" if alone else phase
            axes.plot([], [], marker=marker, linestyle="none", color=COLOURS[0] if alone else QUIET, markersize=8, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    plain_log_ticks(axes.xaxis, si)
    plain_log_ticks(axes.yaxis, si)
    axes.set_xlabel("FLOP for each byte read")
    axes.set_ylabel("FLOP/s of one device, at most")
    axes.set_title(TITLE)
    legend_below(
        axes,
        1 if len(roofs) > 1 or not all(_alike(each.nominal, each.roof) for _, each in found) or len(max(names, key=len)) > LONG_NAME else 3,
    )
    said = [_words(roof) for roof in roofs]
    said += [f"{name}: {_works(each)}" for name, each in found]
    return f"{common(points, ('ctx', 'batch'))}. " + "; ".join(said)


def _words(roof: Roof) -> str:
    return f"{roof.device}: {si(roof.bytes_per_s)}B/s, {si(roof.flops_per_s)}FLOP/s, ridge {four_digits(roof.ridge)} FLOP/B"


def _roof(axes: Axes, roof: Roof, low: float, high: float, colour: str) -> None:
    axes.plot(*_path(roof, low, high), color=colour, linewidth=1.8, label=_words(roof))
    axes.plot([roof.ridge, roof.ridge], [roof.at(low), roof.flops_per_s], color=colour, linewidth=0.9, linestyle=":")


def _path(roof: Roof, low: float, high: float) -> tuple[list[float], list[float]]:
    xs = [low, roof.ridge, high]
    return xs, [roof.at(x) for x in xs]


def _alike(one: Roof, other: Roof) -> bool:
    """Closer than the width of a line."""
    pairs = ((one.flops_per_s, other.flops_per_s), (one.bytes_per_s, other.bytes_per_s))
    return all(abs(first / second - 1) < 0.02 for first, second in pairs)


def _works(each: Roofline) -> str:
    return ", ".join(f"{work.phase} of {work.batch_size:,} at {four_digits(work.intensity)} FLOP/B" for work in each.work)
