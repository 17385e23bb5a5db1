"""A sweep over one or two axes for people: what the fullest device holds at each point, and whether that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvcli.errors import KvcliError
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.report.table import Column, Table, say
from kvcli.units import format_bytes


class Failed(Protocol):
    @property
    def request(self) -> PlanRequest: ...

    @property
    def error(self) -> KvcliError: ...


_OF_PLAN: dict[str, Callable[[Plan], str]] = {
    "ctx": lambda plan: f"{plan.workload.context_tokens:,}",
    "batch": lambda plan: f"{plan.workload.batch_size:,}",
    "device": lambda plan: plan.device.id if plan.device else "",
    "kv-dtype": lambda plan: plan.cache.kv.label,
    "tp": lambda plan: str(plan.shared.split.tensor if plan.shared else 1),
}
_OF_REQUEST: dict[str, Callable[[PlanRequest], str]] = {
    "ctx": lambda request: f"{request.workload.context_tokens:,}",
    "batch": lambda request: f"{request.workload.batch_size:,}",
    "device": lambda request: request.device.id if request.device else "",
    "kv-dtype": lambda request: request.kv.label if request.kv else "auto",
    "tp": lambda request: str(request.split.tensor),
}


def print_matrix(plans: Sequence[Plan], failed: Sequence[Failed], axes: Sequence[str]) -> None:
    """Each matrix with the reasons of its dashes below."""
    for found, reasons in matrices(plans, failed, axes):
        found.print()
        for reason in reasons:
            say(reason)


def matrices(plans: Sequence[Plan], failed: Sequence[Failed], axes: Sequence[str]) -> list[tuple[Table, list[str]]]:
    """One matrix for each model and engine: rows are the first axis, columns the second; a point that cannot be planned is a dash,
    with its reason beside the table."""
    found = []
    for name, engine in dict.fromkeys((plan.spec.name, plan.cache.engine) for plan in plans):
        mine = [plan for plan in plans if (plan.spec.name, plan.cache.engine) == (name, engine)]
        missing = [each for each in failed if (each.request.spec.name, each.request.engine.name) == (name, engine)]
        reasons = [f"-: {message}" for message in dict.fromkeys(each.error.message for each in missing)]
        found.append((_matrix(name, engine, mine, missing, axes), reasons))
    return found


def _matrix(name: str, engine: str, plans: Sequence[Plan], failed: Sequence[Failed], axes: Sequence[str]) -> Table:
    cells: dict[tuple[str, ...], str] = {}
    for plan in plans:
        size = format_bytes(plan.device_bytes if plan.memory is None else plan.memory.total_bytes)
        fits = "" if plan.memory is None else " fits" if plan.memory.fits else " no"
        cells[tuple(_OF_PLAN[axis](plan) for axis in axes)] = size + fits
    for each in failed:
        cells[tuple(_OF_REQUEST[axis](each.request) for axis in axes)] = "-"
    rows = list(dict.fromkeys(key[0] for key in cells))
    columns = list(dict.fromkeys(key[1] for key in cells)) if len(axes) > 1 else [""]
    body = [[row, *(cells.get((row, column) if len(axes) > 1 else (row,), "") for column in columns)] for row in rows]
    usable = {plan.memory.usable_bytes for plan in plans if plan.memory is not None}
    of = f" of {format_bytes(usable.pop())} usable" if len(usable) == 1 else ""
    title = f"{name}, {engine}: " + (f"memory of the fullest device, at least{of}" if of or usable else "weights and cache")
    first = axes[0] + (f" \\ {axes[1]}" if len(axes) > 1 else "")
    return Table([Column(first), *(Column(column or "bytes") for column in columns)], body, title)
