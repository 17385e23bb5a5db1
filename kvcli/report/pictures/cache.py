"""The cache against the context: curves, what they are held against, and where they cross."""

from __future__ import annotations

from matplotlib.axes import Axes

from kvcli.plan.curves.cache import CacheCurve, Curve, cache_curve
from kvcli.plan.curves.series import Point, common
from kvcli.report.pictures.style import COLOURS, GIB, QUIET, binary_ticks, few_ticks, legend_below
from kvcli.units import format_bytes

TITLE = "KV cache against context"
MARKERS = {"weights": "D", "device": "o"}
WORDS = {"weights": "passes the weights at {:,} tokens", "device": "fits up to {:,} tokens"}


def draw(axes: Axes, points: tuple[Point, ...], names: list[str]) -> str:
    """Draws, and says in a sentence what is shown."""
    most = _most_tokens(points)
    curves = [cache_curve(point, most) for point in points]
    top = _only(axes, curves[0]) if len(points) == 1 else _several(axes, names, curves)
    few_ticks(axes.yaxis)
    binary_ticks(axes, most)
    axes.set_xlim(0, most)
    axes.set_ylim(0, 1.06 * top / GIB)
    axes.set_xlabel("context, tokens of each sequence")
    axes.set_ylabel("GiB of the fullest device" if any(point.plan.shared is not None for point in points) else "GiB")
    axes.set_title(TITLE)
    legend_below(axes, 1 if len(points) > 1 or any(curve.multi_head for curve in curves) else 2)
    said = (
        f"{name}: {format_bytes(curve.stored[-1][1])} at {most:,} tokens" + "".join(f", {text}" for text in _crossings(curve))
        for name, curve in zip(names, curves, strict=True)
    )
    return f"{common(points, ('ctx',))}. " + "; ".join(said)


def _most_tokens(points: tuple[Point, ...]) -> int:
    """On to the positions that a model was trained for, unless the context asked for is far shorter: then it would lie in a corner."""
    asked = max(point.plan.workload.context_tokens for point in points)
    trained = max(point.plan.spec.max_context_tokens for point in points)
    return max(asked, trained) if trained <= 8 * asked else asked


def _only(axes: Axes, curve: CacheCurve) -> int:
    """One curve with all that it can be held against. Returns the bytes up to which there is something to see."""
    top = curve.stored[-1][1]
    _line(axes, curve.stored, color=COLOURS[0], label=_heads(curve), zorder=3)
    if curve.needed and abs(curve.needed[-1][1] - top) > 0.02 * top:
        _line(axes, curve.needed, color=COLOURS[0], linestyle=":", label="needed by attention")
    if curve.multi_head:
        label = f"{curve.query_heads} KV heads (MHA): if every query head had its own"
        _line(axes, curve.multi_head, color=COLOURS[3], linestyle="--", linewidth=1.5, label=label)
        top = curve.multi_head[-1][1]
    # what is far above all curves would press them flat, and is left out
    if curve.weights_bytes <= 3 * top:
        label = f"weights, {format_bytes(curve.weights_bytes)}"
        axes.axhline(curve.weights_bytes / GIB, color=QUIET, linewidth=1.3, linestyle="-.", label=label)
        top = max(top, curve.weights_bytes)
    if curve.room and max(size for _, size in curve.room) <= 3 * top:
        label = f"left on the device beside weights and overheads, {format_bytes(curve.left_bytes or 0)}"
        _line(axes, curve.room, color=COLOURS[2], linewidth=1.5, label=label)
        top = max(top, *(size for _, size in curve.room))
    for crossing, text in zip(curve.crossings, _crossings(curve), strict=True):
        look = {"color": COLOURS[0], "markersize": 8, "linestyle": "none", "zorder": 5}
        axes.plot([crossing.tokens], [crossing.cache_bytes / GIB], marker=MARKERS[crossing.what], label=text, **look)  # type: ignore[arg-type]
    return top


def _several(axes: Axes, names: list[str], curves: list[CacheCurve]) -> int:
    """Curves side by side, each with its crossings; those that are the same one are drawn once for all their names."""
    drawn: dict[Curve, str] = {}
    for name, curve in zip(names, curves, strict=True):
        colour = drawn.setdefault(curve.stored, COLOURS[len(drawn) % len(COLOURS)])
        label = ", ".join((name, *_crossings(curve)))
        marks = {crossing.what for crossing in curve.crossings}
        marker = MARKERS["device"] if "device" in marks else MARKERS["weights"] if marks else ""
        _line(axes, curve.stored, color=colour, zorder=3)
        axes.plot([], [], color=colour, marker=marker, label=label)
        for crossing in curve.crossings:
            look = {"color": colour, "markersize": 7, "markeredgecolor": "white", "zorder": 5}
            axes.plot([crossing.tokens], [crossing.cache_bytes / GIB], marker=MARKERS[crossing.what], **look)  # type: ignore[arg-type]
    return max(curve.stored[-1][1] for curve in curves)


def _crossings(curve: CacheCurve) -> list[str]:
    return [WORDS[crossing.what].format(crossing.tokens) for crossing in curve.crossings]


def _line(axes: Axes, curve: Curve, **look: object) -> None:
    if len(curve) == 1:  # one context alone has no line
        look["marker"] = "s"
    axes.plot([tokens for tokens, _ in curve], [size / GIB for _, size in curve], **look)  # type: ignore[arg-type]


def _heads(curve: CacheCurve) -> str:
    if not curve.kv_heads:
        return "cache, as stored"
    kind = "MHA" if curve.kv_heads == curve.query_heads else "MQA" if curve.kv_heads == 1 else "GQA"
    return f"{curve.kv_heads} KV head{'s' if curve.kv_heads > 1 else ''} ({kind}), as stored"
