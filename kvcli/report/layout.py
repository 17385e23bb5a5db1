"""How a table finds room: titles on several lines, less between columns, units in titles, and at last blocks below one another.

Widths are characters. Numbers and names are never cut; sentences are folded, and names of a table's rows where there is no other way.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol


class Titled(Protocol):
    @property
    def title(self) -> str: ...

    @property
    def right(self) -> bool: ...

    @property
    def key(self) -> bool: ...


class Block(NamedTuple):
    """Columns that stand side by side. `folds` tells columns of sentences, which may be narrower than their widest cell."""

    titles: list[str]
    widths: list[int]
    right: list[bool]
    folds: list[bool]
    rows: list[list[str]]
    gap: int

    @property
    def least_width(self) -> int:
        return _side_by_side(self.widths, self.gap)


class _Fitted(NamedTuple):
    """A column as one style shows it; `width` is the least it needs."""

    title: str
    width: int
    right: bool
    folds: bool
    key: bool
    cells: list[str]


#: Blanks between columns, whether titles are folded, and whether a unit that all cells share moves to the title: the widest first.
STYLES = ((3, False, False), (3, True, False), (2, True, False), (2, True, True))
#: The longest text that is kept on one line, and the least room of one that is not.
LONGEST_NAME = 24
#: Names that fold are given so much room.
SHORTEST_NAME = 12
#: Rows are told apart by numbers where there is no room to repeat their names.
NUMBER = "#"
#: What may follow a number as its unit.
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "us", "ms", "s")


def blocks(columns: Sequence[Titled], rows: Sequence[Sequence[str]], room: int) -> list[Block]:
    """One block where a style has room for all columns, else as few as there can be, each with the key columns."""
    cells = [[row[at] for row in rows] for at in range(len(columns))]
    styled = [(gap, [_fit(*pair, fold, unit) for pair in zip(columns, cells, strict=True)]) for gap, fold, unit in STYLES]
    for gap, fitted in styled:
        if _side_by_side([each.width for each in fitted], gap) <= room:
            return [_block(fitted, gap, rows)]
    named = [(gap, _deal(*_keys(fitted), gap, room)) for gap, fitted in styled]
    fit = [(gap, dealt) for gap, dealt in named if _fits(dealt, gap, room)]
    if not fit and not any(column.key for column in columns):
        fit = _under_names(styled, room)
    if not fit:
        numbers = [f"{number}" for number in range(1, len(rows) + 1)]
        number = _Fitted(NUMBER, max(len(NUMBER), *map(len, numbers)), True, False, True, numbers)
        numbered = [(gap, _deal([number], fitted, gap, room)) for gap, fitted in styled]
        # a name may be wider than any room
        fit = [(gap, dealt) for gap, dealt in numbered if _fits(dealt, gap, room)] or numbered[-1:]
    least = min(len(dealt) for _, dealt in fit)
    gap, dealt = next((gap, dealt) for gap, dealt in fit if len(dealt) == least)
    return [_block(block, gap, rows) for block in dealt]


def _under_names(styled: Sequence[tuple[int, list[_Fitted]]], room: int) -> list[tuple[int, list[list[_Fitted]]]]:
    """A ledger's rows mean nothing without their names: those fold between words, and what is still too wide takes the room it needs."""
    folded = [(gap, [_narrow(fitted[0])], fitted[1:]) for gap, fitted in styled]
    dealt = [(gap, _deal(name, others, gap, room)) for gap, name, others in folded]
    fit = [pair for pair in dealt if _fits(pair[1], pair[0], room)]
    if fit:
        return fit
    gap, name, others = folded[-1]
    return [(gap, _deal(name, others, gap, max(_side_by_side([name[0].width, each.width], gap) for each in others)))] if others else []


def _narrow(names: _Fitted) -> _Fitted:
    """A column of names filled into lines; how deep one is indented stays."""
    width = max(SHORTEST_NAME, *(len(cell) - len(cell.lstrip()) + len(word) for cell in names.cells for word in cell.split()), 0)
    width = max(width, *map(len, names.title.split("\n")))
    return names._replace(width=width, folds=False, cells=[_filled(cell, width) for cell in names.cells])


def _filled(text: str, width: int) -> str:
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _fits(dealt: list[list[_Fitted]], gap: int, room: int) -> bool:
    return all(_side_by_side([each.width for each in block], gap) <= room for block in dealt)


def _fit(column: Titled, cells: list[str], fold: bool, unit: bool) -> _Fitted:
    title = column.title
    shared = _shared_unit(cells) if unit and title else ""
    if shared:
        title, cells = f"{title} {shared}", [cell.removesuffix(f" {shared}") for cell in cells]
    longest = max(map(len, cells), default=0)
    words = max((len(word) for cell in cells for word in cell.split()), default=0)
    folds = not column.right and longest > max(words, LONGEST_NAME)
    longest = max(words, LONGEST_NAME) if folds else longest
    if fold:
        title = _folded(title, longest)
    return _Fitted(title, max(longest, *map(len, title.split("\n"))), column.right, folds, column.key, cells)


def _shared_unit(cells: Sequence[str]) -> str:
    """`GiB` where every cell that is not empty is a number of it."""
    units = {cell.partition(" ")[2] for cell in cells if cell}
    numbers = all(cell.partition(" ")[0].replace(",", "").replace(".", "").isdigit() for cell in cells if cell)
    return units.pop() if len(units) == 1 and numbers and units <= set(_UNITS) else ""


def _folded(title: str, width: int) -> str:
    """Words filled into lines of the width of the cells, or of the longest word."""
    words = title.split()
    width = max(width, *map(len, words)) if words else width
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def _keys(fitted: list[_Fitted]) -> tuple[list[_Fitted], list[_Fitted]]:
    keys = [each for each in fitted if each.key] or fitted[:1]
    return keys, [each for each in fitted if each not in keys]


def _deal(keys: list[_Fitted], others: list[_Fitted], gap: int, room: int) -> list[list[_Fitted]]:
    """As few blocks as there can be in this order, and none much narrower than another."""
    taken = sum(each.width + gap for each in keys)

    def into(width: int) -> list[list[_Fitted]]:
        dealt: list[list[_Fitted]] = []
        for each in others:
            if dealt and taken + _side_by_side([*(one.width for one in dealt[-1]), each.width], gap) <= width:
                dealt[-1].append(each)
            else:
                dealt.append([each])
        return dealt

    fewest = len(into(room))
    ends = accumulate(each.width + gap for each in others)
    width = min((taken + end for end in ends if taken + end <= room and len(into(taken + end)) == fewest), default=room)
    return [[*keys, *block] for block in into(width)]


def _side_by_side(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _block(fitted: Sequence[_Fitted], gap: int, rows: Sequence[object]) -> Block:
    cells = [[each.cells[number] for each in fitted] for number in range(len(rows))]
    titles = [each.title for each in fitted]
    # titles of one line stand beside the last of several, next to the cells
    lines = max(title.count("\n") for title in titles)
    titles = ["\n" * (lines - title.count("\n")) + title for title in titles]
    folds, right = [each.folds for each in fitted], [each.right for each in fitted]
    return Block(titles, [each.width for each in fitted], right, folds, cells, gap)
