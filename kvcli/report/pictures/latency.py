"""The floor of a decode step against the batch."""

from __future__ import annotations

from matplotlib.axes import Axes

from kvcli.plan.curves.series import Point, common
from kvcli.plan.curves.steps import StepCurve, most_sequences, step_curve
from kvcli.report.pictures.style import COLOURS, INK, doubling_ticks, legend_below, plain_log_ticks, short
from kvcli.units import format_seconds

TITLE = "Decode step: floor against batch"
_TERMS = {"memory": "bytes / bandwidth", "compute": "FLOPs / peak", "link": "link", "host_memory": "host's memory"}


#: How far below the lowest floor a term is still drawn.
DEPTH = 50


def draw(axes: Axes, points: tuple[Point, ...], names: list[str]) -> str:
    """Draws, and says in a sentence what is shown."""
    most = most_sequences(list(points))
    pairs = [(name, curve) for name, point in zip(names, points, strict=True) if (curve := step_curve(point, most)) is not None]
    # what all fits on chip has no floor above 0
    lowest = 1e3 * min((seconds for _, curve in pairs for _, seconds in curve.floor if seconds > 0), default=1e-6)
    said = []
    for number, (name, curve) in enumerate(pairs):
        colour = COLOURS[number % len(COLOURS)]
        if len(pairs) == 1:
            _only(axes, curve, most)
        else:
            label = f"{name}{_marks_in_words(curve)}"
            axes.plot(*_in_ms(curve.floor), color=colour, label=label, zorder=3)
        axes.plot(*_in_ms(curve.asked), marker="o", linestyle="none", color=colour, markersize=7, zorder=5, clip_on=False)
        floors = ", ".join(f"{format_seconds(seconds)} at batch {batch:,}" for batch, seconds in curve.asked)
        said.append(f"{name}: at least {floors}" + _marks_in_words(curve))
    limit = next((point.plan.timing.slo for point in points if point.plan.timing.slo), None)
    if limit is not None:
        label = f"{limit.name}, {format_seconds(limit.tpot_s)} a token"
        axes.axhline(1e3 * limit.tpot_s * _tokens_a_step(points), color=COLOURS[3], linewidth=1.5, linestyle="-.", label=label)
    doubling_ticks(axes)
    axes.set_yscale("log")
    axes.set_xlim(1, most)
    shown = [1e3 * value for _, curve in pairs if len(pairs) == 1 for _, term in curve.terms for _, value in term if value > 0]
    axes.set_ylim(bottom=max(0.7 * min([lowest, *shown]), lowest / DEPTH))
    plain_log_ticks(axes.yaxis, short)
    axes.set_xlabel("sequences decoded together")
    axes.set_ylabel("ms a step, at least")
    axes.set_title(TITLE)
    legend_below(axes, 3 if len(pairs) == 1 else 1)
    return f"{common(points, ('batch',))}. " + "; ".join(said)


def _tokens_a_step(points: tuple[Point, ...]) -> int:
    """Under speculative decoding a step may emit several, so that it may take as many times a token's limit."""
    return max(point.plan.latency.tokens_per_step for point in points if point.plan.latency)


def _in_ms(values: tuple[tuple[int, float], ...]) -> tuple[list[int], list[float]]:
    return [batch for batch, _ in values], [1e3 * seconds for _, seconds in values]


def _only(axes: Axes, curve: StepCurve, most: int) -> None:
    """The floor as a broad band, so that the terms of which it is the largest show on it."""
    axes.plot(*_in_ms(curve.floor), color=COLOURS[0], linewidth=6, alpha=0.35, solid_capstyle="butt", label="floor: the largest", zorder=3)
    for number, (name, values) in enumerate(curve.terms):
        style = ("--", ":", "-.", (0, (1, 3)))[number % 4]
        axes.plot(*_in_ms(values), color=INK, linewidth=1.3, linestyle=style, label=_TERMS.get(name, name), zorder=4)
    for batch, text, colour in ((curve.compute_from, "compute binds from", COLOURS[2]), (curve.held, "memory holds", COLOURS[1])):
        if batch is not None and batch <= most:
            axes.axvline(batch, color=colour, linewidth=1.5, linestyle=":", label=f"{text} {batch:,}")


def _marks_in_words(curve: StepCurve) -> str:
    text = f", compute binds from {curve.compute_from:,}" if curve.compute_from else ""
    return text + (f", memory holds {curve.held:,}" if curve.held else "")
