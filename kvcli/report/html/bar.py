"""The memory of the fullest device as one bar: what it holds, what overheads may take, what is left."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.plan.curves.stack import OVERHEADS, RESERVE, stack
from kvcli.plan.plan import Plan
from kvcli.units import format_bytes

#: Units of the drawing along the bar.
WIDTH = 1000
#: Colours of a page, for as many parts; more share the last.
COLOURS = 6
_STYLES = {OVERHEADS: "overhead", RESERVE: "reserve"}


class Part(NamedTuple):
    """`start` and `width` in units of the drawing; `colour` names a style of the page."""

    name: str
    size_bytes: int
    colour: str
    start: float
    width: float


class Bar(NamedTuple):
    """`usable` is where the device ends, None where none is known. `said` describes it to those who do not see it."""

    parts: tuple[Part, ...]
    usable: float | None
    said: str


def memory_bar(plan: Plan) -> Bar:
    """Of the fullest device."""
    held = stack(plan)
    found = [(name, size, _STYLES.get(name) or f"part{min(number, COLOURS - 1)}") for number, (name, size) in enumerate(held.pieces)]
    memory = plan.memory
    if memory is None:
        return _bar(found, None)
    found.append(("overheads, at most so much more", memory.high_bytes - memory.total_bytes, "maybe"))
    found.append(("free whatever overheads take", memory.usable_bytes - memory.high_bytes, "free"))
    return _bar(found, memory.usable_bytes)


def _bar(sizes: list[tuple[str, int, str]], usable_bytes: int | None) -> Bar:
    shown = [each for each in sizes if each[1] > 0]
    whole = max(sum(size for _, size, _ in shown), usable_bytes or 1)
    parts, start = [], 0
    for name, size, colour in shown:
        parts.append(Part(name, size, colour, round(start * WIDTH / whole, 2), round(size * WIDTH / whole, 2)))
        start += size
    said = ", ".join(f"{name} {format_bytes(size)}" for name, size, _ in shown)
    if usable_bytes is None:
        return Bar(tuple(parts), None, f"memory: {said}")
    return Bar(tuple(parts), round(usable_bytes * WIDTH / whole, 2), f"memory: {said}; usable {format_bytes(usable_bytes)}")
