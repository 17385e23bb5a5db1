"""What `kvcli plan` writes beside its answer: a report. Loaded where one was asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import typer

from kvcli.check.files import replace_text
from kvcli.errors import BadInput, Notice, missing_extra
from kvcli.plan.answers.answer import Answer
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.report.matrix import Failed

#: Parameters that choose a view and change nothing in a plan: a report is the same whatever else is printed.
_VIEWS = ("html", "offline", "explain", "as_json", "as_csv", "as_md")


class Files(NamedTuple):
    """Names of files, None for those not asked for. `options` are (option, value, meaning) of the command line."""

    html: str | None = None
    options: tuple[tuple[str, str, str], ...] = ()

    def write(
        self,
        requests: Sequence[PlanRequest],
        plans: Sequence[Plan],
        notices: Sequence[Notice] = (),
        answers: Sequence[Answer] = (),
        launch: Sequence[str] = (),
        failed: Sequence[Failed] = (),
        axes: Sequence[str] = (),
    ) -> None:
        """Each file whole or not at all, and says so on stderr. Raises BadInput and CannotRunHere."""
        if self.html is not None:
            from kvcli.report.html.page import Report, page

            text = page(Report(plans, (), self.options, answers, failed, axes, notices, launch))
            _write(self.html, text)


def files_of(html: str | None, context: typer.Context) -> Files:
    """Raises BadInput for a name that says no kind, CannotRunHere where what writes is not installed: before anything is planned."""
    if html is not None and not html.lower().endswith((".html", ".htm")):
        raise BadInput(f"--html {html[:80]!r} is no name of an HTML file", hint="end it in .html", code="bad_suffix")
    try:
        from kvcli.report.html import page  # noqa: F401
    except ImportError as error:
        raise missing_extra("plot", error.name or "jinja2") from None
    return Files(html, _given(context))


def _given(context: typer.Context) -> tuple[tuple[str, str, str], ...]:
    """What the command line gave, with its help, in the order of the help."""
    found = []
    for parameter in context.command.params:
        value, name = context.params.get(parameter.name or ""), parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT" or name in _VIEWS:
            continue
        words = ", ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is True else str(value)
        # arguments are called as the help calls them
        title = parameter.opts[-1] if parameter.opts[-1].startswith("-") else str(parameter.metavar or name)
        found.append((title, words, getattr(parameter, "help", None) or ""))
    return tuple(found)


def _write(path: str, text: str) -> None:
    try:
        replace_text(path, text)
    except OSError as error:
        hint = "name a file in a folder that exists"
        raise BadInput(f"{path} cannot be written: {error.strerror or error}", hint=hint, code="unwritable_file") from None
    print(f"wrote {path}", file=sys.stderr)
