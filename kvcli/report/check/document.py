"""`check --format json`: everything the report holds, nothing left out."""

from __future__ import annotations

from typing import Any

from kvcli.check.compare import finite
from kvcli.check.verdict import RULES, Cell, Measures, Report
from kvcli.report.check.shown import encodable, is_new, of_cell, repository_path


def json_document(report: Report) -> dict[str, Any]:
    """One document; `rules` has what was found or skipped, `checked` the ids of the rules that passed."""
    return {
        "schema_version": 1,
        "targets": [_target(report, cell) for cell in report.cells],
        "passed": report.passed,
        "against": None if report.against is None else encodable(report.against),
        "vanished": [{"name": encodable(target), "device": encodable(device)} for target, device in report.vanished],
    }


def _target(report: Report, cell: Cell) -> dict[str, Any]:
    said = of_cell(cell)
    return {
        "name": encodable(cell.target),
        "device": encodable(cell.device),
        "verdict": cell.verdict,
        "file": encodable(repository_path(cell.place.file)),
        "line": cell.place.line,
        "rules": [
            {
                "id": each.outcome.rule,
                "name": RULES[each.outcome.rule][0] if each.outcome.rule in RULES else "",
                "level": each.outcome.level,
                "message": encodable(each.outcome.message),
                "file": encodable(repository_path(each.outcome.place.file)),
                "line": each.outcome.place.line,
                "column": each.outcome.place.column,
                "formula": encodable(each.outcome.formula),
                "fix": encodable(each.outcome.fix),
                "waiver": each.outcome.waiver and {key: encodable(text) for key, text in each.outcome.waiver._asdict().items()},
                "known": each.known,
            }
            for each in said
            if each.outcome.level != "passed"
        ],
        "checked": sorted({each.outcome.rule for each in said if each.outcome.level == "passed"}),
        "measures": _measures(cell.measures),
        "before": _measures(cell.before) if cell.before else None,
        "new": is_new(report, cell),
        "assumed": [encodable(each) for each in cell.assumed],
    }


def _measures(measures: Measures) -> dict[str, Any]:
    return {key: value if finite(value) else None for key, value in measures._asdict().items()}
