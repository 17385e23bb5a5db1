"""Annotations of GitHub: workflow commands, in which percent signs and line ends, and in properties colons and commas, are escaped."""

from __future__ import annotations

from collections import Counter

from kvcli.check.verdict import Report
from kvcli.report.check.figures import since
from kvcli.report.check.shown import FINDINGS, Finding, findings, plain, remarks, repository_path, summary, unknown_only

#: GitHub shows this many of each kind a step and drops the rest without a word.
MOST = 10
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def github(report: Report) -> str:
    """The worst first, then remarks for the log; the last line counts, as an annotation where the platform's cap cut something."""
    found = unknown_only(findings(report))
    count = Counter(each.outcome.level for each in found)
    cut = {level: max(0, count[level] - MOST) for level in FINDINGS}
    if any(cut.values()) and count["note"] >= MOST:
        # the summary takes the place of a note
        cut["note"] += 1
    lines, left = [], {level: count[level] - cut[level] for level in FINDINGS}
    for each in found:
        if left[each.outcome.level]:
            left[each.outcome.level] -= 1
            lines.append(_annotation(report, each))
    last = summary(report)
    more = ", ".join(f"{cut[level]} {level}{'s' if cut[level] > 1 else ''}" for level in FINDINGS if cut[level])
    last += f"; {more} more are in the other outputs" if more else ""
    lines += remarks(report)
    lines.append(f"::notice title=kvcli check::{escape_data(last)}" if more else last)
    return "\n".join(lines) + "\n"


def _annotation(report: Report, each: Finding) -> str:
    place = each.outcome.place
    properties = {
        "file": plain(repository_path(place.file)),
        "line": str(place.line),
        "col": str(place.column),
        "title": f"{each.rule}: {each.where}",
    }
    body = each.lines() + [line for line in [since(report, each.cell)] if line]
    said = ",".join(f"{key}={escape_property(value)}" for key, value in properties.items())
    return f"::{_COMMANDS[each.outcome.level]} {said}::" + escape_data("\n".join(body))


def escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")
