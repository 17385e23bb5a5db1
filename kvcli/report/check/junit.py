"""JUnit XML: a suite a target, a case a rule and device. It has no warnings, so those are passing cases that say something."""

from __future__ import annotations

from kvcli.check.verdict import LEVELS, Cell, Report
from kvcli.report.check.figures import numbers, since
from kvcli.report.check.shown import Finding, of_cell, plain, rule_title


def junit(report: Report) -> str:
    """Suites in the order of the files. Without times, since the same report gives the same bytes."""
    targets: dict[str, list[Cell]] = {}
    for cell in report.cells:
        targets.setdefault(cell.target, []).append(cell)
    suites, totals = [], {"tests": 0, "failures": 0}
    for target, cells in targets.items():
        lines, counts = _suite(report, target, cells)
        suites += lines
        totals = {key: totals[key] + counts[key] for key in totals}
    head = f'<testsuites name="kvcli check" tests="{totals["tests"]}" failures="{totals["failures"]}" errors="0">'
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *suites, "</testsuites>"]) + "\n"


def _suite(report: Report, target: str, cells: list[Cell]) -> tuple[list[str], dict[str, int]]:
    properties, cases, counts = [], [], {"tests": 0, "failures": 0, "skipped": 0}
    for cell in cells:
        said = [("verdict", cell.verdict), ("numbers", numbers(cell.measures)), ("baseline", since(report, cell))]
        said += [("assumed", each) for each in cell.assumed]
        properties += [f"      <property {_attributes(name=f'{key} on {cell.device}', value=text)}/>" for key, text in said if text]
        rules: dict[str, list[Finding]] = {}
        for each in of_cell(cell):
            rules.setdefault(each.outcome.rule, []).append(each)
        for rule in sorted(rules):
            lines, level = _case(report, target, cell, rules[rule])
            cases += lines
            counts["tests"] += 1
            counts["failures"] += level == "error"
            counts["skipped"] += level == "skipped"
    numbers_said = {key: str(value) for key, value in {**counts, "errors": 0}.items()}
    lines = [f"  <testsuite {_attributes(name=target, **numbers_said)}>"]
    lines += ["    <properties>", *properties, "    </properties>"] if properties else []
    return [*lines, *cases, "  </testsuite>"], counts


def _case(report: Report, target: str, cell: Cell, said: list[Finding]) -> tuple[list[str], str]:
    """One case of all that a rule said of a cell, as its worst level; and that level."""
    level = min((each.outcome.level for each in said), key=LEVELS.index)
    head = _attributes(name=f"{rule_title(said[0].outcome.rule)} on {cell.device}", classname=target)
    if level == "passed":
        return [f"    <testcase {head}/>"], level
    first = said[0].outcome
    if level == "skipped":
        inner = f"<skipped {_attributes(message=first.message)}/>"
    else:
        body = []
        for each in said:
            if each.outcome.level != "passed":
                body += [f"{each.outcome.level} at {each.place}:{each.outcome.place.column}", *each.lines()]
        body += [line for line in [since(report, cell)] if line]
        text = _escape("\n".join(body))
        attributes = _attributes(type=first.rule, message=first.message)
        inner = f"<failure {attributes}>{text}</failure>" if level == "error" else f"<system-out>{text}</system-out>"
    return [f"    <testcase {head}>", f"      {inner}", "    </testcase>"], level


def _attributes(**values: str) -> str:
    return " ".join(f'{key}="{_escape(plain(value))}"' for key, value in values.items())


def _escape(text: str) -> str:
    """Also `>`, so that no text closes a section, and quotes, so that none closes an attribute."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
