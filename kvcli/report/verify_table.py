"""A verification for people: predicted beside observed, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcli.report import table
from kvcli.report.table import Column

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_verification(title: str, checks: Sequence[tuple[str, str, str, str, bool]], skipped: Sequence[tuple[str, str]]) -> None:
    """`checks` are (name, predicted, observed, tolerance, matches) as text, `skipped` (name, reason)."""
    columns = [Column("check", right=False), Column("predicted"), Column("observed"), Column("tolerance"), Column("", right=False)]
    rows = [[*texts, "ok" if matches else "DIFFERS"] for *texts, matches in checks]
    table.print_terminal(columns, rows, title=title)
    for name, reason in skipped:
        print(f"skipped {name}: {reason}")


def amount(value: float, unit: str) -> str:
    return f"{value:,} {unit}" if isinstance(value, int) else f"{value:.2g}"
