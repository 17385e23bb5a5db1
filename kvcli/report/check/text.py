"""For the terminal: each target on each device, its numbers, what is wrong with it, and what would pass."""

from __future__ import annotations

import re

from kvcli.check.verdict import Cell, Report
from kvcli.report.check.figures import FLOOR_NOTE, numbers, since
from kvcli.report.check.shown import FINDINGS, Finding, beyond, gone, of_cell, plain, same, summary, unchanged, unknown_only, unsaid

_COLORS = {"fail": "31", "error": "31", "warn": "33", "warning": "33", "pass": "32", "note": "36", "skipped": "2", "assumed": "2"}
_PAINT = re.compile("\x1b\\[[0-9]*m")


def text(report: Report, color: bool, width: int | None = None) -> str:
    """Cells in the order of the files. With a baseline, those that nothing has happened to are counted, not shown.

    Lines are folded at `width` columns where it is given.
    """
    blocks, floors = [], False
    for cell in report.cells:
        found = of_cell(cell)
        said = unknown_only(each for each in found if each.outcome.level in FINDINGS)
        if unchanged(report, cell):
            continue
        skipped = [each for each in found if each.outcome.level == "skipped"]
        blocks.append(_block(report, cell, said, skipped, color))
        floors |= cell.measures.ttft_floor_s is not None or cell.measures.tpot_floor_s is not None
    tail = [f"gone since the baseline: {name}" for name in gone(report)]
    tail += [line for line in (same(report), unsaid(report), FLOOR_NOTE if floors else "") if line]
    tail.append(_paint(summary(report), "pass" if report.passed else "fail", color))
    folded = [[part for line in lines for part in _folded(line, width)] for lines in [*blocks, tail]]
    return "\n\n".join(["\n".join(lines) for lines in folded]) + "\n"


def _folded(line: str, width: int | None) -> list[str]:
    """At blanks, further lines set in by two more. A word that could begin a command of a CI system never begins a line."""
    if width is None or _seen(line) <= width:
        return [line]
    words = line.lstrip(" ").split(" ")
    first = " " * (len(line) - len(line.lstrip(" ")))
    lines = [first + words[0]]
    for word in words[1:]:
        if _seen(lines[-1]) + 1 + _seen(word) <= width or word[:1] in ("", ":", "#"):
            lines[-1] += f" {word}"
        else:
            lines.append(f"{first}  {word}")
    return lines


def _seen(text: str) -> int:
    """Characters that a terminal shows."""
    return len(_PAINT.sub("", text))


def _block(report: Report, cell: Cell, said: list[Finding], skipped: list[Finding], color: bool) -> list[str]:
    # every line begins with words of ours, so that none begins as a command of a CI system does
    head = f"{_paint(cell.verdict.upper(), cell.verdict, color)} {plain(cell.target)} on {plain(cell.device)}"
    figures = numbers(cell.measures, cell.memory_of)
    lines = [f"{head}: {figures}" if figures else head]
    lines += [f"  {line}" for line in [since(report, cell)] if line]
    lines += [f"  memory: {line}" for line in [beyond(cell)] if line]
    for each in said:
        lines.append(f"  {_paint(each.outcome.level, each.outcome.level, color)} {each.rule} at {each.place}:{each.outcome.place.column}")
        first, *rest = each.lines()
        lines += [f"    problem: {first}", *(f"    {line}" for line in rest)]
    lines += [f"  {_paint('skipped', 'skipped', color)} {each.rule}: {plain(each.outcome.message)}" for each in skipped]
    lines += [f"  {_paint('assumed', 'assumed', color)}: {plain(each)}" for each in cell.assumed]
    return lines


def _paint(words: str, kind: str, color: bool) -> str:
    return f"\x1b[{_COLORS[kind]}m{words}\x1b[0m" if color else words
