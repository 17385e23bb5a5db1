"""Tables: the same rows for a terminal, Markdown and CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = True


class Table(NamedTuple):
    """What a terminal and a page show alike."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def print(self) -> None:
        print_terminal(self.columns, self.rows, self.title)


def print_terminal(columns: Sequence[Column], rows: Iterable[Sequence[str]], title: str = "", file: IO[str] | None = None) -> None:
    """A light table that reads at 80 columns; colour and width follow the terminal, and plain text goes into pipes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, show_header=any(column.title for column in columns))
    cells = [list(row) for row in rows]
    widths = [_least_width(column, [row[index] for row in cells]) for index, column in enumerate(columns)]
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column.title, justify="right" if column.right else "left", min_width=width, no_wrap=width > 0, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=file or sys.stdout, highlight=False)
    # a table that needs more room than there is takes it
    console.width = max(console.width, sum(widths) + GAP * (len(columns) - 1))
    if title:
        console.print(Text(title, style="bold"))
    console.print(table)


#: Blanks between columns, and the longest text that is kept on one line.
GAP = 3
LONGEST_NAME = 24


def _least_width(column: Column, cells: Sequence[str]) -> int:
    """Numbers and names are never cut or split; sentences are folded."""
    longest = max([len(column.title), *map(len, cells)])
    return longest if column.right or longest <= LONGEST_NAME else 0


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
