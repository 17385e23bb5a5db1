"""The memory of a device as one line: what is certain, what it may become, what stays free, or how far it goes beyond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvcli.plan.budget.memory import MemoryPlan
from kvcli.plan.curves.stack import OVERHEADS, RESERVE, stack
from kvcli.plan.plan import Plan
from kvcli.report.console import console
from kvcli.units import format_bytes

#: The widest bar, in columns.
WIDEST = 78
#: From this share of the whole on a part is drawn, however few columns there are.
LEAST_SHARE = 100
#: Pieces of a budget that share a part of the bar; others are what they are called.
_JOINED = {
    "adapters": "weights",
    "KV cache": "cache",
    "states": "cache",
    "encoder cache": "cache",
    "rest of the pool": "cache",
    "the host's part": "weights",
    OVERHEADS: "overheads",
}


class Part(NamedTuple):
    """`name` with its size in the legend; a character for pipes, one for terminals, and a colour."""

    name: str
    amount_bytes: int
    plain: str
    block: str
    style: str


def parts(plan: Plan, memory: MemoryPlan) -> list[Part]:
    """In the order of the bar. They sum to what is usable, or to the high ends where those are more."""
    sizes: dict[str, int] = {}
    for name, size in stack(plan).pieces:
        joined = _JOINED.get(name, name)
        sizes[joined] = sizes.get(joined, 0) + size
    return [
        Part("weights {}", sizes.get("weights", 0), "#", "█", "blue"),
        Part("drafter {}", sizes.get("drafter", 0), "%", "▚", "green"),
        Part("cache {}", sizes.get("cache", 0), "=", "▓", "cyan"),
        Part("overheads {}", sizes.get("overheads", 0), "+", "▒", "yellow"),
        Part("left by the engine {}", sizes.get(RESERVE, 0), "/", "╱", "white"),
        Part("up to {} more", memory.high_bytes - memory.total_bytes, ".", "░", "magenta"),
        Part("free {}", max(0, memory.usable_bytes - memory.high_bytes), "-", "·", "dim"),
    ]


def columns_of(amounts: Sequence[int], width: int) -> list[int]:
    """Whole columns that sum to `width`, by largest remainders; what is at least 1 % of the whole gets one."""
    whole = sum(amounts)
    if not whole:
        return [0] * len(amounts)
    shares = [divmod(amount * width, whole) for amount in amounts]
    found = [columns for columns, _ in shares]
    by_remainder = sorted(range(len(amounts)), key=lambda at: -shares[at][1])
    for at in by_remainder[: width - sum(found)]:
        found[at] += 1
    for at, amount in enumerate(amounts):
        if not found[at] and amount * LEAST_SHARE >= whole:
            found[max(range(len(found)), key=found.__getitem__)] -= 1
            found[at] = 1
    return found


def mark(memory: MemoryPlan, width: int) -> str:
    """Where the device ends, under a bar that goes beyond it; '' where none does."""
    if memory.high_bytes <= memory.usable_bytes:
        return ""
    at = min(width - 1, memory.usable_bytes * width // memory.high_bytes)
    more = memory.total_bytes - memory.usable_bytes
    said = f"usable {format_bytes(memory.usable_bytes)}" + (f", {format_bytes(more)} too much" if more > 0 else "")
    return " " * at + f"^ {said}" if at + 2 + len(said) <= width else f"{said} ^".rjust(at + 1)


def print_bar(plan: Plan, memory: MemoryPlan) -> None:
    """Characters of ASCII in a pipe or where the terminal has no UTF-8, blocks and colours elsewhere."""
    from rich.text import Text

    screen = console()
    blocks = screen.is_terminal and screen.encoding.lower().startswith("utf")
    width = min(WIDEST, screen.width)
    drawn = parts(plan, memory)
    signs = [(each.block, each.style) if blocks else (each.plain, "") for each in drawn]
    bar = Text()
    for (sign, style), columns in zip(signs, columns_of([each.amount_bytes for each in drawn], width), strict=True):
        bar.append(sign * columns, style)
    lines = [bar]
    if under := mark(memory, width):
        lines.append(Text(under))
    for each, (sign, style) in zip(drawn, signs, strict=True):
        if each.amount_bytes:
            said = each.name.format(format_bytes(each.amount_bytes))
            if lines[-1] is bar or lines[-1].plain == under or len(lines[-1]) + 5 + len(said) > width:
                lines.append(Text())
            else:
                lines[-1].append("   ")
            lines[-1].append(sign, style).append(f" {said}")
    for line in lines:
        screen.print(line, no_wrap=True, overflow="ignore", crop=False)
