"""From plans to one page: every figure and word comes from the tables that the terminal shows too."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from kvcli import __version__
from kvcli.errors import Notice
from kvcli.plan.answers.answer import Answer
from kvcli.plan.plan import Plan
from kvcli.report.answer_table import many_table
from kvcli.report.budget_table import budget_title, buffers_said, host_title, pool_table
from kvcli.report.floors_table import FLOOR, floors_table
from kvcli.report.html.asked import asked_table
from kvcli.report.html.bar import Bar, memory_bar
from kvcli.report.html.grid import Grid, budget_grids, cause_grid, equation_table, layer_grid, ledger_grid, shared_grid
from kvcli.report.html.verdict import Verdict, short, verdict_of, verdict_of_many
from kvcli.report.matrix import Failed, matrices
from kvcli.report.notes import note_lines
from kvcli.report.pictures.scene import Picture
from kvcli.report.plan_table import cause_lines, full_title, plans_table
from kvcli.report.table import Column, Table
from kvcli.units import exact_bytes, format_bytes

#: From so many plans on a page has their tables only.
MOST_DETAILED = 20


class Report(NamedTuple):
    """All that a page shows. `options` are (option, value, meaning) as given; `answers` stand beside their plans, or there are none;
    `axes` are those of a sweep, `failed` its points without a plan; `launch` are command lines asked for."""

    plans: Sequence[Plan]
    pictures: Sequence[Picture] = ()
    options: Sequence[tuple[str, str, str]] = ()
    answers: Sequence[Answer] = ()
    failed: Sequence[Failed] = ()
    axes: Sequence[str] = ()
    notices: Sequence[Notice] = ()
    launch: Sequence[str] = ()


class _Section(NamedTuple):
    """What a page says of one plan."""

    title: str
    short: str
    verdict: Verdict
    asked: Table
    bar: Bar
    ledger: Grid
    budgets: list[Grid | Table]
    buffers: str
    layers: Grid
    causes: Grid | None
    shared: Grid | None
    floors: Table | str
    equations: Table
    notes: list[str]


def _section(plan: Plan, found: Answer | None) -> _Section:
    memory = plan.memory
    budgets: list[Grid | Table] = []
    buffers = ""
    if memory is not None:
        titles = [budget_title(plan), *([host_title(memory.host)] if memory.host else [])]
        budgets += [grid._replace(title=title) for title, grid in zip(titles, budget_grids(memory), strict=True)]
        pool = memory.pool
        if pool is not None and pool.buffers_bytes:
            buffers = buffers_said(plan, pool)
        elif pool is not None:
            budgets.append(pool_table(plan, pool))
    return _Section(
        title=full_title(plan),
        short=short(plan),
        verdict=verdict_of(plan, found),
        asked=asked_table(plan),
        bar=memory_bar(plan),
        ledger=ledger_grid(plan),
        budgets=budgets,
        buffers=buffers,
        layers=layer_grid(plan.cache),
        causes=cause_grid(plan),
        shared=shared_grid(plan),
        floors=floors_table(plan),
        equations=equation_table(plan),
        notes=list(dict.fromkeys(notice.message for notice in plan.notices)),
    )


def page(report: Report) -> str:
    """The whole file. The same report gives the same text, on any day and in any folder."""
    plans, one = report.plans, len(report.plans) == 1 and not report.failed
    answers: Sequence[Answer | None] = report.answers or [None] * len(plans)
    detailed = len(plans) <= MOST_DETAILED
    sections = [_section(*pair) for pair in zip(plans, answers, strict=True)] if detailed else []
    tables = [] if one else [*_tables(report)]
    options = [[name, value, meaning] for name, value, meaning in report.options]
    return _template(report).render(
        title=full_title(plans[0]) if one else plans_table(plans).title or f"{len(plans):,} plans",
        verdict=sections[0].verdict if one else verdict_of_many(plans, report.answers, len(report.failed)),
        one=one,
        sections=sections,
        tables=tables,
        cause_lines=[] if one or not detailed else cause_lines(plans),
        failed=_failed(report.failed),
        options=Table([Column("option", right=False), Column("value", right=False), Column("meaning", right=False)], options),
        pictures=[(each, Markup(_data_uri(each.svg))) for each in report.pictures],
        notes=_notes(report, one),
        launch=report.launch,
        most=MOST_DETAILED,
        version=__version__,
        floor=FLOOR,
    )


def _tables(report: Report) -> Iterable[Table]:
    yield plans_table(report.plans)
    if report.answers:
        yield many_table(report.answers)
    if report.axes:
        for table, _ in matrices(report.plans, report.failed, report.axes):
            yield table


def _notes(report: Report, one: bool) -> list[str]:
    """All of one plan; of several each kind once, since each plan's own stand with it."""
    found = [*(notice for plan in report.plans for notice in plan.notices), *report.notices]
    return list(dict.fromkeys(notice.message for notice in found)) if one else note_lines(found)


def _failed(failed: Sequence[Failed]) -> list[str]:
    """Why points of a sweep are missing, each reason once."""
    return list(dict.fromkeys(each.error.message for each in failed))


def _data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")


def _template(report: Report) -> jinja2.Template:
    """Every text is escaped, and loses the folders of this machine on its way."""
    shorter = _without_folders(report)

    def finalize(value: Any) -> Any:
        return shorter(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=finalize
    )
    environment.filters |= {"size": format_bytes, "exact": exact_bytes, "depth": _depth}
    return environment.from_string(files("kvcli.report.html").joinpath("report.html.j2").read_text(encoding="utf-8"))


def _depth(text: str) -> int:
    """How deep a row is indented."""
    return (len(text) - len(text.lstrip())) // 2


def _without_folders(report: Report) -> Callable[[str], str]:
    """Files keep their names. What no text file can hold (a file's name that is no UTF-8) shows as its code."""
    named = [each.spec.source for each in report.plans] + [value for _, value, _ in report.options]
    named += [each.draft.speculation.drafter.source for each in report.plans if each.draft and each.draft.speculation.drafter]
    folders = {os.path.dirname(text) + os.sep for text in named if os.path.isabs(text)} - {os.sep}
    longest_first = sorted(folders, key=lambda folder: (-len(folder), folder))

    def shorter(text: str) -> str:
        for folder in longest_first:
            text = text.replace(folder, "")
        return text.encode("utf-8", "backslashreplace").decode("utf-8")

    return shorter
