"""Issues of Azure Pipelines: logging commands, whose agent decodes four characters and the percent sign."""

from __future__ import annotations

from kvcli.check.verdict import Report
from kvcli.report.check.figures import since
from kvcli.report.check.shown import Finding, findings, plain, remarks, repository_path, summary, unknown_only


def azure(report: Report) -> str:
    """Errors and warnings are issues; notes, for which the agent has no type, are lines of the log."""
    lines = [_issue(report, each) for each in unknown_only(findings(report))]
    return "\n".join([*lines, *remarks(report), summary(report)]) + "\n"


def _issue(report: Report, each: Finding) -> str:
    place = each.outcome.place
    body = [f"{each.rule}: {each.where}", *each.lines(), *(line for line in [since(report, each.cell)] if line)]
    if each.outcome.level == "note":
        return f"note {each.place}: " + "; ".join(body)
    properties = {
        "type": each.outcome.level,
        "sourcepath": plain(repository_path(place.file)),
        "linenumber": str(place.line),
        "columnnumber": str(place.column),
        "code": plain(each.outcome.rule),
    }
    said = "".join(f"{key}={escape_property(value)};" for key, value in properties.items())
    return f"##vso[task.logissue {said}]" + escape_data("\n".join(body))


def escape_data(text: str) -> str:
    return text.replace("%", "%AZP25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    return escape_data(text).replace("]", "%5D").replace(";", "%3B")
