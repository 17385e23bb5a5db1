"""SARIF 2.1.0, within what GitHub's code scanning takes: 25,000 results, 1,000 locations a result, 20 tags a rule, 10 MB gzipped.

Source: the OASIS standard, and GitHub's page on its support for SARIF.
"""

from __future__ import annotations

import json
from typing import Any

from kvcli import __version__
from kvcli.check.nodes import Place
from kvcli.check.verdict import RULES, Report
from kvcli.report.check.figures import since
from kvcli.report.check.sarif_rules import DEFAULT_LEVELS, HELP, TAGS
from kvcli.report.check.shown import Finding, findings, of_cell, plain, repository_path

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MOST_RESULTS = 25_000
MOST_GZIP_BYTES = 10_000_000
#: no platform shows skipped rules, so they must not fill the file
MOST_NOTES = 1_000
_IDS = tuple(sorted(RULES))


def sarif(report: Report) -> str:
    """All findings, known ones too (marked as unchanged), the worst first; what the caps cut is said in a notification."""
    results = [_result(report, each) for each in findings(report)]
    whole = len(results)
    results = results[:MOST_RESULTS]
    text = _dump(report, results, whole)
    while len(text) > MOST_GZIP_BYTES and _gzip_bytes(text) > MOST_GZIP_BYTES and results:
        results = results[: len(results) // 2]
        text = _dump(report, results, whole)
    return text


def _gzip_bytes(text: str) -> int:
    import gzip

    return len(gzip.compress(text.encode("ascii"), mtime=0))


def _dump(report: Report, results: list[dict[str, Any]], whole: int) -> str:
    notes = [_skipped(each) for cell in report.cells for each in of_cell(cell) if each.outcome.level == "skipped"]
    if len(notes) > MOST_NOTES:
        said = f"{len(notes) - MOST_NOTES} more rules were skipped; check --format json has them all"
        notes = [*notes[:MOST_NOTES], {"level": "note", "message": {"text": said}}]
    if len(results) < whole:
        said = (
            f"{whole - len(results)} of {whole} results are left out to stay within the platform's limits; check --format json has them all"
        )
        notes.insert(0, {"level": "warning", "message": {"text": said}})
    run = {
        "tool": {
            "driver": {"name": "kvcli", "version": __version__, "semanticVersion": __version__, "rules": [_rule(each) for each in _IDS]}
        },
        "automationDetails": {"id": "kvcli-check/"},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the repository."}}},
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, allow_nan=False) + "\n"


def _rule(rule: str) -> dict[str, Any]:
    name, sentence = RULES[rule]
    level = DEFAULT_LEVELS.get(rule, "warning")
    return {
        "id": rule,
        "name": "".join(word.capitalize() for word in name.split("-")),
        "shortDescription": {"text": sentence},
        "fullDescription": {"text": f"{sentence} {HELP[rule]}"},
        "help": {"text": HELP[rule], "markdown": HELP[rule]},
        "defaultConfiguration": {"level": level},
        "properties": {"tags": list(TAGS), "problem.severity": level, "precision": "very-high"},
    }


def _result(report: Report, each: Finding) -> dict[str, Any]:
    outcome, cell = each.outcome, each.cell
    lines = [f"{each.where}: {each.lines()[0]}", *each.lines()[1:], *(line for line in [since(report, cell)] if line)]
    result: dict[str, Any] = {"ruleId": outcome.rule}
    if outcome.rule in RULES:
        result["ruleIndex"] = _IDS.index(outcome.rule)
    result |= {
        "level": outcome.level,
        "message": {"text": message("\n".join(lines))},
        "locations": [{"physicalLocation": _physical(outcome.place)}],
        # GitHub's uploader computes `primaryLocationLineHash` itself and complains about any other value under that name
        "partialFingerprints": {"kvcliFinding/v1": each.fingerprint},
        "suppressions": [],
        "properties": {"target": plain(cell.target), "device": plain(cell.device)},
    }
    if cell.place != outcome.place:
        related = {"id": 1, "physicalLocation": _physical(cell.place), "message": {"text": message(f"{each.where} is defined here")}}
        result["relatedLocations"] = [related]
    if outcome.waiver:
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": message(each.waived)}]
    if report.against is not None:
        result["baselineState"] = "unchanged" if each.known else "new"
    return result


def _skipped(each: Finding) -> dict[str, Any]:
    note: dict[str, Any] = {
        "level": "note",
        "message": {"text": message(f"{each.rule} is skipped for {each.where}: {plain(each.outcome.message)}")},
        "locations": [{"physicalLocation": _physical(each.outcome.place)}],
    }
    if each.outcome.rule in RULES:
        note["associatedRule"] = {"id": each.outcome.rule, "index": _IDS.index(each.outcome.rule)}
    return note


def message(text: str) -> str:
    """`[words](target)` is a link in a message, so no text of a user may read as one."""
    return text.replace("](", "] (")


def _physical(place: Place) -> dict[str, Any]:
    path = repository_path(place.file)
    where: dict[str, Any] = {"uri": uri(path)} if path.startswith("/") else {"uri": uri(path), "uriBaseId": "%SRCROOT%"}
    return {"artifactLocation": where, "region": {"startLine": max(1, place.line), "startColumn": max(1, place.column)}}


def uri(path: str) -> str:
    """A relative reference, or `file://` for an absolute path; bytes that are no UTF-8 are encoded as they are."""
    from urllib.parse import quote

    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = plain(path).encode()
    quoted = quote(raw, safe="/-._~")
    return f"file://{quoted}" if path.startswith("/") else quoted
