"""Tables of a page: cells are text, or bytes that stand in both a binary unit and exact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvcli.plan.budget.memory import MemoryPlan
from kvcli.plan.cache import CachePlan
from kvcli.plan.plan import Plan
from kvcli.report import explain
from kvcli.report.budget_table import COLUMNS, BudgetRow, budget_rows, engine_name, host_rows
from kvcli.report.ledger_rows import ledger_rows, shared_rows
from kvcli.report.table import Column, Table

Cell = str | int | None


class Grid(NamedTuple):
    """A table whose whole numbers are bytes. Leading blanks of a first cell say how deep it is indented."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""


_AMOUNTS = (Column("what", right=False), Column("bytes"))


def ledger_grid(plan: Plan) -> Grid:
    return Grid(_AMOUNTS, ledger_rows(plan))


def shared_grid(plan: Plan) -> Grid | None:
    """None where one memory holds all."""
    return Grid(_AMOUNTS, shared_rows(plan.shared)) if plan.shared else None


def budget_grids(memory: MemoryPlan) -> list[Grid]:
    """Of the device, and of the host where it is a budget too."""
    return [_budget(budget_rows(memory)), *([_budget(host_rows(memory.host))] if memory.host else [])]


def _budget(rows: Iterable[BudgetRow]) -> Grid:
    return Grid(COLUMNS, [tuple(row) for row in rows])


def layer_grid(cache: CachePlan) -> Grid:
    """One row a group of identical layers; the last row is their sum."""
    titles = ("layers", "count", "window", "newest token", "needed", "constant state", "stored")
    rows: list[list[Cell]] = [
        [
            row.kind.replace("_", " "),
            f"{row.count:,}",
            "" if row.window_tokens is None else f"{row.window_tokens:,} tokens",
            row.bytes_per_token,
            row.needed_bytes,
            row.state_bytes,
            row.stored_bytes,
        ]
        for row in cache.rows
    ]
    newest = sum(row.bytes_per_token for row in cache.rows)
    rows.append(["all", "", "", newest, cache.needed_bytes, cache.state_bytes, cache.stored_bytes])
    kept = [number for number in range(len(titles)) if number < 2 or any(row[number] for row in rows)]
    columns = [Column(titles[number], right=number > 0) for number in kept]
    return Grid(columns, [[row[number] for number in kept] for row in rows])


def cause_grid(plan: Plan) -> Grid | None:
    """Why more or less is stored than needed, cause by cause, to the byte; None where the two agree."""
    cache = plan.cache
    if not cache.causes:
        return None
    rows: list[tuple[str, int]] = [("needed", cache.needed_bytes)]
    rows += [("constant state", cache.state_bytes)] if cache.state_bytes else []
    rows += [(f"  {cause}", size) for cause, size in cache.causes]
    return Grid(_AMOUNTS, [*rows, (f"stored by {engine_name(plan)}", cache.stored_bytes)])


def equation_table(plan: Plan) -> Table:
    titles = ("item", "amount", "equation", "from")
    rows = [[item.replace("_", " "), *rest] for item, *rest in explain.lines(plan)]
    return Table([Column(title, right=False) for title in titles], rows)
