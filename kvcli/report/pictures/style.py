"""How all pictures look: colours that colour-blind readers tell apart, legible sizes, units on the axes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

#: Okabe and Ito's eight, the palest left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#4D4D4D")
PIECES = {
    "weights": "#0072B2",
    "drafter": "#7F3C8D",
    "cache": "#D55E00",
    "KV cache": "#D55E00",
    "states": "#E69F00",
    "adapters": "#56B4E9",
    "the host's part": "#009E73",
    "encoder cache": "#CC79A7",
    "rest of the pool": "#F0C9A0",
    "overheads, at least": "#7F7F7F",
    "left by the engine": "#C8C8C8",
}
INK = "#222222"
QUIET = "#6A6A6A"
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,
    "lines.linewidth": 2.0,
    "svg.hashsalt": "kvcli",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "savefig.facecolor": "white",
}
GIB = 2**30
#: Characters of a legend's line.
LONGEST_LINE = 80
#: Height of the ticks' labels and the axis's own under an axis.
LABELS_POINTS = 34


def short(value: float) -> str:
    """A number on an axis: at most four digits, no zeros at its end."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def counted(value: float) -> str:
    """A count on an axis: 512, 1k, 128k, 1M in powers of 1,024."""
    for size, letter in ((2**40, "T"), (2**30, "G"), (2**20, "M"), (2**10, "k")):
        if value >= size:
            return f"{short(value / size)}{letter}"
    return short(value)


def si(value: float) -> str:
    """A rate in powers of 1,000, with a blank before the prefix of its unit."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{short(value / size)} {letter}"
    return f"{short(value)} "


def binary_ticks(axes: Axes, most: int) -> None:
    """Ticks at multiples of a power of two, so that they read 32k and not 31.25k."""
    step = 1
    while most / step > 6:
        step *= 2
    axes.set_xticks(range(0, most + 1, step))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: counted(value)))


def doubling_ticks(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def plain_log_ticks(axis: Axis, said: Callable[[float], str]) -> None:
    """Decades, and between them 2 and 5 where an axis spans few."""
    low, high = sorted(axis.get_view_interval())
    narrow = low > 0 and high / low < 300
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=20 if narrow else 7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: said(value).strip()))
    axis.set_minor_formatter(NullFormatter())


def few_ticks(axis: Axis, most: int = 6) -> None:
    axis.set_major_locator(MaxNLocator(most))


def legend_below(axes: Axes, columns: int = 2) -> None:
    """Under the axis, where it covers nothing; long lines are folded."""
    handles, labels = axes.get_legend_handles_labels()
    labels = ["\n".join(textwrap.wrap(label, LONGEST_LINE)) for label in labels]
    # a distance on paper, whatever height is left for the axis
    below = axes.transAxes + ScaledTranslation(0, -LABELS_POINTS / 72, axes.figure.dpi_scale_trans)
    place = {"bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    axes.legend(handles, labels, loc="upper center", ncols=columns, columnspacing=1.6, handlelength=2.4, **place)
