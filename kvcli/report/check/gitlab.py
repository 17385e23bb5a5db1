"""GitLab's code quality report. GitLab compares it with the target branch's, so it holds all findings, known ones too."""

from __future__ import annotations

import json

from kvcli.check.verdict import Report
from kvcli.report.check.figures import since
from kvcli.report.check.shown import findings, plain, repository_path

_SEVERITIES = {"error": "critical", "warning": "minor", "note": "info"}


def gitlab(report: Report) -> str:
    """A list; fingerprints are unique and stay as they are when lines move."""
    issues = []
    for each in findings(report):
        place = each.outcome.place
        said = [f"{each.where}: {each.lines()[0]}", *each.lines()[1:], *(line for line in [since(report, each.cell)] if line)]
        issues.append(
            {
                "description": "; ".join(said),
                "check_name": each.rule,
                "fingerprint": each.fingerprint,
                "severity": _SEVERITIES[each.outcome.level],
                "location": {"path": plain(repository_path(place.file)), "lines": {"begin": place.line}},
            }
        )
    return json.dumps(issues, indent=2) + "\n"
