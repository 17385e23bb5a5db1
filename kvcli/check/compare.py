"""Two states of one target, number by number: what grew, what shrank, by which share, and whether that is worse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from kvcli.check.verdict import Measures
from kvcli.units import exact_bytes, format_bytes, format_seconds, four_digits

#: Two floats closer than this share are the same number, added up in another order.
SAME_SHARE = 1e-9


class Measure(NamedTuple):
    """`short` heads a column, `label` stands in a sentence; `exact` keeps every digit, for formulas."""

    key: str
    field: str
    short: str
    label: str
    show: Callable[[float], str]
    exact: Callable[[float], str]
    more_is_worse: bool = True


def _bytes(value: float) -> str:
    return format_bytes(int(value))


def _exact_bytes(value: float) -> str:
    return exact_bytes(int(value))


def _count(value: float) -> str:
    return f"{int(value):,}"


def _exact_seconds(value: float) -> str:
    return f"{value:.9g} s"


def _exact_cost(value: float) -> str:
    return f"{value:.9g}"


MEASURES: tuple[Measure, ...] = (
    Measure("memory", "memory_bytes", "memory", "the memory of the fullest device", _bytes, _exact_bytes),
    Measure("ttft", "ttft_floor_s", "prefill floor", "the floor of the prefill", format_seconds, _exact_seconds),
    Measure("tpot", "tpot_floor_s", "decode floor", "the floor of a decode step", format_seconds, _exact_seconds),
    Measure("sequences", "sequences", "sequences", "the number of sequences", _count, _count, more_is_worse=False),
    Measure("cost", "cost_per_mtok", "least cost per 1M tokens", "the least cost per million tokens", four_digits, _exact_cost),
)


class Change(NamedTuple):
    measure: Measure
    before: float
    after: float

    @property
    def share(self) -> float | None:
        """(after - before) / before; None where there was nothing before."""
        return (self.after - self.before) / self.before if self.before else None

    @property
    def worse(self) -> bool:
        return (self.after > self.before) == self.measure.more_is_worse

    @property
    def percent(self) -> str:
        """`+53.5%`; '' where there was nothing before."""
        share = self.share
        if share is None:
            return ""
        return f"{'+' if share > 0 else '-'}<0.1%" if abs(share) < 0.0005 else f"{share:+,.1%}"

    @property
    def text(self) -> str:
        """`60.00 GiB -> 92.10 GiB (+53.5%)`."""
        show = self.measure.show
        percent = f" ({self.percent})" if self.percent else ""
        return f"{show(self.before)} -> {show(self.after)}{percent}"

    @property
    def formula(self) -> str:
        """The share with both numbers in full, so that it can be redone by hand."""
        exact = self.measure.exact
        if self.share is None:
            return f"{exact(self.before)} -> {exact(self.after)}"
        return f"({exact(self.after)} - {exact(self.before)}) / {exact(self.before)} = {self.percent}"


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def changes(before: Measures, after: Measures) -> tuple[Change, ...]:
    """What differs, in the order of MEASURES. A number that one side does not have cannot be compared."""
    found = []
    for measure in MEASURES:
        old, new = getattr(before, measure.field), getattr(after, measure.field)
        if not (finite(old) and finite(new)) or old == new:
            continue
        if isinstance(old, float) and abs(new - old) <= SAME_SHARE * abs(old):
            continue
        found.append(Change(measure, old, new))
    return tuple(found)
