"""Tables: the same rows for a terminal, Markdown and CSV."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple

from kvcli.report.console import console

#: Columns that are taken where a terminal says it has fewer, or none.
LEAST_ROOM = 40


@dataclass(frozen=True, slots=True)
class Column:
    """`key`: it says what a row is about, and is repeated where a table is split. Without any, the first column does."""

    title: str
    right: bool = True
    key: bool = False


class Table(NamedTuple):
    """What a terminal and a page show alike."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def print(self) -> None:
        print_terminal(self.columns, self.rows, self.title)


def print_terminal(columns: Sequence[Column], rows: Iterable[Sequence[str]], title: str = "", file: IO[str] | None = None) -> None:
    """A light table, made narrow or split where the terminal (80 columns in a pipe) has no room; plain text goes into pipes."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from kvcli.report.layout import blocks

    screen = console(file)
    screen.width = max(screen.width, LEAST_ROOM)
    if title:
        screen.print(Text(title, style="bold"))
    for number, block in enumerate(blocks(columns, [list(row) for row in rows], screen.width)):
        if number:
            screen.print()
        # a divider of one blank, and padding before it, after it, or both
        padding = (0, 1) if block.gap == 3 else (0, 0, 0, 1)
        table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=padding, show_header=any(block.titles))
        for heading, width, right, cut in zip(block.titles, block.widths, block.right, block.folds, strict=True):
            table.add_column(heading, justify="right" if right else "left", min_width=0 if cut else width, no_wrap=not cut, overflow="fold")
        for row in block.rows:
            table.add_row(*(Text(cell) for cell in row))
        # a name that needs more room than there is takes it
        screen.width = max(screen.width, block.least_width)
        screen.print(table)


def print_title(title: str) -> None:
    from rich.text import Text

    console().print(Text(title, style="bold"))


def say(text: str) -> None:
    """A sentence or a list, folded at the width of the terminal (80 in a pipe) with its further lines set in."""
    width = max(console().width, LEAST_ROOM)
    print("\n".join(textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)))


def markdown(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        "| " + " | ".join(column.title for column in columns) + " |",
        "| " + " | ".join("---:" if column.right else "---" for column in columns) + " |",
    ]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def write_csv(titles: Sequence[str], rows: Iterable[Sequence[object]], file: IO[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
