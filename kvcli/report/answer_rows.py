"""Answers for spreadsheets and documents: a row a plan, with what was solved for and each requirement met or not."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvcli.plan.answers.answer import Answer
from kvcli.plan.answers.requirements import Met
from kvcli.plan.answers.search import Solved
from kvcli.report import table
from kvcli.report.plan_table import CSV_COLUMNS, plans_table
from kvcli.report.table import Column
from kvcli.units import format_bytes, format_seconds


def print_csv(answers: Sequence[Answer]) -> None:
    """The columns of a plan, then raw values: bytes, shares, seconds, counts; nothing where a plan was not held against one."""
    asked = _asked(answers)
    titles = [title for title, _ in CSV_COLUMNS]
    titles += ["solve", "answer", "binding", "reason"] if _solving(answers) else []
    titles += [f"{text} {what}" for text in asked for what in ("met", "value")]
    rows = []
    for each in answers:
        row: list[object] = [cell(each.plan) for _, cell in CSV_COLUMNS]
        if _solving(answers):
            row += _solved_cells(each.solved)
        found = {met.requirement.text: met for met in each.requirements}
        for text in asked:
            met = found.get(text)
            row += [None, None] if met is None else [_word(met.met), _word(met.value) if isinstance(met.value, bool) else met.value]
        rows.append([*row, _word(each.yes)])
    table.write_csv([*titles, "passes"], rows, sys.stdout)


def print_markdown(answers: Sequence[Answer]) -> None:
    """What all rows share above the table, as for plans that nothing is required of."""
    shared = plans_table([each.plan for each in answers])
    columns, rows = [*shared.columns], [[*row] for row in shared.rows]
    asked = _asked(answers)
    if _solving(answers):
        columns += [Column("answer"), Column("binds", right=False)]
    for text in asked:
        columns += [Column(f"required: {text}", right=False), Column("its value")]
    for each, row in zip(answers, rows, strict=True):
        if _solving(answers):
            _, value, binding, _ = _solved_cells(each.solved)
            row += [f"{value:,}" if isinstance(value, int) else str(value or "none").replace("|", ", "), str(binding or "")]
        found = {met.requirement.text: met for met in each.requirements}
        for text in asked:
            met = found.get(text)
            row += ["", ""] if met is None else ["met" if met.met else "NOT met", _shown(met)]
        row.append("yes" if each.yes else "no")
    print(f"{shared.title}\n\n{table.markdown([*columns, Column('passes', right=False)], rows)}")


def _asked(answers: Sequence[Answer]) -> list[str]:
    return list(dict.fromkeys(met.requirement.text for each in answers for met in each.requirements))


def _solving(answers: Sequence[Answer]) -> bool:
    return any(each.solved is not None for each in answers)


def _solved_cells(solved: Solved | None) -> list[object]:
    """What was solved for, its value (several are joined by `|`), what binds, and why."""
    if solved is None:
        return [None] * 4
    value = "|".join(solved.value) if isinstance(solved.value, tuple) else solved.value
    return [solved.unknown, value, solved.binding, solved.reason]


def _word(value: bool) -> str:
    return str(value).lower()


def _shown(met: Met) -> str:
    """The plan's own value with its unit."""
    value, asked = met.value, met.requirement
    if value is None or isinstance(value, bool):
        return met.said if asked.quantity == "fits" else ""
    if asked.share:
        return f"{value:.1%}"
    if asked.quantity == "headroom":
        return format_bytes(int(value))
    return format_seconds(value) if asked.quantity in ("tpot", "ttft") else f"{value:,}"
