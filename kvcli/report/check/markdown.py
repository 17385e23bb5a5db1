"""The job summary: a table that stands on its own, then each finding with its equation. Text of a user is shown, never rendered."""

from __future__ import annotations

import re

from kvcli.check.compare import MEASURES
from kvcli.check.verdict import Cell, Report
from kvcli.report.check.figures import FLOOR_NOTE, moved, since, value
from kvcli.report.check.shown import VERDICTS, Finding, findings, is_new, of_cell, plain, remarks, summary, unknown_only

#: GitHub takes a summary of up to 1 MiB a step; the rest is left to other tools in the step.
MOST_BYTES = 1_000_000
# underscores within a word, and colons and dots outside of a web address, are no markup
_SPECIAL = re.compile(r"([\\`*~\[\]|$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=//)|(?<=www)\.)")
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_TITLES = {"error": "Failures", "warning": "Warnings", "note": "Notes"}
_RIGHT = {measure.short for measure in MEASURES}


def markdown(report: Report) -> str:
    """Under MOST_BYTES; what was cut is said in the last line."""
    head = [f"## {escape(summary(report))}", ""]
    room = MOST_BYTES - sum(_size(line) for line in head) - 500
    table, rows_cut, room = _fill(_table(report), room, always=2)
    found, found_cut, room = _fill(_findings(report), room)
    tail, lines_cut, room = _fill(_tail(report), room)
    if rows_cut or found_cut or lines_cut:
        cut = f"{rows_cut} rows, {found_cut} findings and {lines_cut} remarks"
        tail += ["", f"Cut to stay under {MOST_BYTES:,} bytes: {cut}; `--format json` has them all."]
    return "\n".join([*head, *table, *found, *tail]) + "\n"


def _size(text: str) -> int:
    return len(text.encode()) + 1


def _fill(blocks: list[str], room: int, always: int = 0) -> tuple[list[str], int, int]:
    """The blocks that fit, how many did not, and the room that is left. After one that does not fit, none is taken."""
    for index, block in enumerate(blocks):
        room -= _size(block)
        if room < 0 and index >= always:
            return blocks[:index], len(blocks) - index, 0
    return blocks, 0, room


def _table(report: Report) -> list[str]:
    """Head, rule, and one row a cell, the worst first."""
    if not report.cells:
        return ["No target was checked."]
    cells = sorted(report.cells, key=lambda cell: VERDICTS.index(cell.verdict))
    rows = [_row(report, cell) for cell in cells]
    titles = [title for title in rows[0] if any(row[title] for row in rows) or title in ("target", "device")]
    lines = ["| " + " | ".join(titles) + " |", "|" + "|".join(" ---: " if title in _RIGHT else " --- " for title in titles) + "|"]
    return lines + ["| " + " | ".join(row[title] for title in titles) + " |" for row in rows]


def _row(report: Report, cell: Cell) -> dict[str, str]:
    marks = {"fail": "**FAIL**", "warn": "warn", "pass": "pass"}
    row = {"verdict": marks[cell.verdict], "target": escape(cell.target), "device": escape(cell.device)}
    row["verdict"] += " (waived)" if any(each.waiver for each in cell.outcomes) else ""
    row["verdict"] += " (new)" if is_new(report, cell) else ""
    changed = moved(cell)
    for measure in MEASURES:
        text = value(cell.measures, measure.field)
        change = changed.get(measure.field)
        if change:
            was = f"was {measure.show(change.before)}" + (f", {change.percent}" if change.percent else "")
            text += f"<br>{was.translate(_HTML)}"
        whose = cell.memory_of if measure.field == "memory_bytes" else ""
        row[measure.short] = f"{text}<br>of {escape(whose)}" if whose else text
    said = [each for each in unknown_only(of_cell(cell)) if each.outcome.level in ("error", "warning")]
    row["why"] = "<br>".join([*(f"{escape(each.outcome.rule)}: {escape(each.outcome.message)}" for each in said), *_unsaid(cell)])
    row["what passes"] = "<br>".join(f"{escape(each.outcome.rule)}: {escape(each.outcome.fix)}" for each in said if each.outcome.fix)
    return row


def _unsaid(cell: Cell) -> list[str]:
    """Why a verdict is as it is though nothing is new: what is waived, and what the baseline holds."""
    found = of_cell(cell)
    waived = [f"{escape(each.outcome.rule)} {escape(each.waived)}" for each in found if each.waived]
    known = [f"{escape(each.outcome.rule)}: as in the baseline" for each in found if each.known and each.outcome.level == "warning"]
    return [*waived, *dict.fromkeys(known)]


def _findings(report: Report) -> list[str]:
    blocks, level = [], ""
    for each in unknown_only(findings(report)):
        lines = []
        if each.outcome.level != level:
            level = each.outcome.level
            lines += ["", f"### {_TITLES[level]}", ""]
        blocks.append("\n".join([*lines, *_finding(report, each)]))
    return blocks


def _finding(report: Report, each: Finding) -> list[str]:
    outcome, cell = each.outcome, each.cell
    lines = [
        f"- **{escape(each.rule)}**: {escape(cell.target)} on {escape(cell.device)}, at {code(f'{each.place}:{outcome.place.column}')}"
    ]
    lines.append(f"  - {escape(outcome.message)}")
    lines += [f"  - formula: {code(outcome.formula)}"] if outcome.formula else []
    lines += [f"  - what passes: {escape(outcome.fix)}"] if outcome.fix else []
    lines += [f"  - {escape(text)}" for text in (each.waived, since(report, cell)) if text]
    return lines


def _tail(report: Report) -> list[str]:
    lines = [f"- {escape(line)}" for line in remarks(report)]
    if any(cell.measures.ttft_floor_s is not None or cell.measures.tpot_floor_s is not None for cell in report.cells):
        lines.append(f"- {FLOOR_NOTE}")
    return ["", *lines] if lines else []


def escape(text: str) -> str:
    """Text as text: no emphasis, link, table, HTML, mathematics, emoji or web address comes of it."""
    return _SPECIAL.sub(r"\\\1", plain(text).translate(_HTML))


def code(text: str) -> str:
    """A code span that no backtick in the text can close."""
    inner = plain(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", inner)), default=0) + 1)
    pad = " " if inner[:1] in ("`", " ") or inner[-1:] in ("`", " ") else ""
    return f"{fence}{pad}{inner}{pad}{fence}"
