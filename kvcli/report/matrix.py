"""A sweep over one or two axes for people: what the fullest device holds at each point, and whether that fits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kvcli.errors import KvcliError
from kvcli.plan.build import kv_types
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.report.plan_table import fullest
from kvcli.report.table import Column, Table, say
from kvcli.units import format_bytes, plural


class Failed(Protocol):
    @property
    def request(self) -> PlanRequest: ...

    @property
    def error(self) -> KvcliError: ...


#: A verdict beside an amount.
_VERDICTS = {"fits": " fits", "fits_if": " maybe", "does_not_fit": " no"}

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
    "kv-dtype": lambda request: _cache_type(request),
    "tp": lambda request: str(request.split.tensor),
}
#: How the value of what is not an axis reads in a title.
_SAID: dict[str, Callable[[str], str]] = {
    "ctx": lambda value: plural(int(value.replace(",", "")), "token"),
    "batch": lambda value: plural(int(value.replace(",", "")), "sequence"),
    "device": lambda value: value and f"on {value}",
    "kv-dtype": lambda value: f"{value} cache",
    "tp": lambda value: "" if value == "1" else f"tp {value}",
}


class _Group(NamedTuple):
    """What all points of one matrix share: a model, an engine, and a value of each axis that is not swept."""

    source: str
    name: str
    engine: str
    values: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        said = (_SAID[axis](value) for axis, value in self.values)
        return ", ".join(text for text in (self.name, self.engine, *said) if text)


def _cache_type(request: PlanRequest) -> str:
    """The type that its plan would have had."""
    try:
        return kv_types(request)[0].label
    except KvcliError:
        return "auto"


def _of_plan(plan: Plan, axes: Sequence[str]) -> _Group:
    cache = plan.cache
    values = tuple((axis, value(plan)) for axis, value in _OF_PLAN.items() if axis not in axes)
    return _Group(plan.spec.source, plan.spec.name, f"{cache.engine} {cache.engine_version}".strip(), values)


def _of_request(request: PlanRequest, axes: Sequence[str]) -> _Group:
    engine = request.engine
    values = tuple((axis, value(request)) for axis, value in _OF_REQUEST.items() if axis not in axes)
    return _Group(request.spec.source, request.spec.name, f"{engine.name} {engine.version}".strip(), values)


def print_matrix(plans: Sequence[Plan], failed: Sequence[Failed], axes: Sequence[str]) -> None:
    """Each matrix with the reasons of its dashes below."""
    for number, (found, reasons) in enumerate(matrices(plans, failed, axes)):
        if number:
            print()
        found.print()
        for reason in reasons:
            say(reason)


def matrices(plans: Sequence[Plan], failed: Sequence[Failed], axes: Sequence[str]) -> list[tuple[Table, list[str]]]:
    """One matrix for each model, engine and value of what is not an axis: rows are the first axis, columns the second; a point that
    cannot be planned is a dash, with its reason beside the table."""
    groups: dict[_Group, tuple[list[Plan], list[Failed]]] = {}
    for plan in plans:
        groups.setdefault(_of_plan(plan, axes), ([], []))[0].append(plan)
    for each in failed:
        groups.setdefault(_of_request(each.request, axes), ([], []))[1].append(each)
    found = []
    for group, (mine, missing) in groups.items():
        reasons = [f"-: {message}" for message in dict.fromkeys(each.error.message for each in missing)]
        found.append((_matrix(group.title, mine, missing, axes), reasons))
    return found


def _matrix(name: str, plans: Sequence[Plan], failed: Sequence[Failed], axes: Sequence[str]) -> Table:
    cells: dict[tuple[str, ...], str] = {}
    for plan in plans:
        size = fullest(plan)
        fits = "" if plan.memory is None else _VERDICTS[plan.memory.verdict]
        cells[tuple(_OF_PLAN[axis](plan) for axis in axes)] = size + fits
    for each in failed:
        cells[tuple(_OF_REQUEST[axis](each.request) for axis in axes)] = "-"
    rows = list(dict.fromkeys(key[0] for key in cells))
    columns = list(dict.fromkeys(key[1] for key in cells)) if len(axes) > 1 else [""]
    body = [[row, *(cells.get((row, column) if len(axes) > 1 else (row,), "") for column in columns)] for row in rows]
    usable = {plan.memory.usable_bytes for plan in plans if plan.memory is not None}
    of = f", of {format_bytes(usable.pop())} usable" if len(usable) == 1 else ""
    title = f"{name}: " + (f"memory of the fullest device, at least{of}" if of or usable else "weights and cache")
    first = axes[0] + (f" \\ {axes[1]}" if len(axes) > 1 else "")
    return Table([Column(first), *(Column(column or "memory") for column in columns)], body, title)


def print_lost(failed: Sequence[Failed], axes: Sequence[str]) -> None:
    """To stderr, as notes."""
    for line in lost_lines(failed, axes):
        print(f"note: {line}", file=sys.stderr)


#: So many points without a plan are named, others counted.
_MOST_NAMED = 8


def lost_lines(failed: Sequence[Failed], axes: Sequence[str]) -> list[str]:
    """Of views that have no place for points without a plan: which those are, and why."""
    found: dict[str, list[str]] = {}
    for each in failed:
        point = " ".join(f"{axis} {_OF_REQUEST[axis](each.request)}" for axis in axes)
        found.setdefault(each.error.message, []).append(point)
    lines = []
    for message, points in found.items():
        named = list(dict.fromkeys(points))
        more = f" and {len(named) - _MOST_NAMED:,} more" if len(named) > _MOST_NAMED else ""
        lines.append(f"not planned: {', '.join(named[:_MOST_NAMED])}{more}: {message}")
    return lines
