"""Tables: the same rows for a terminal, Markdown and CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = True


def print_terminal(columns: Sequence[Column], rows: Iterable[Sequence[str]], title: str = "", file: IO[str] | None = None) -> None:
    """A light table that reads at 80 columns; colour and width follow the terminal, and plain text goes into pipes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, show_header=any(column.title for column in columns))
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=file or sys.stdout, highlight=False)
    if title:
        console.print(Text(title, style="bold"))
    console.print(table)


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
