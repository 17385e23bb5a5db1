"""What `kvcli plan` writes beside its answer: pictures and a report. Loaded where one was asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer

from kvcli.errors import BadInput, CannotRunHere, Notice
from kvcli.files import replace_bytes, unwritable
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest

if TYPE_CHECKING:
    from kvcli.plan.answers.answer import Answer
    from kvcli.report.html.page import Report
    from kvcli.report.matrix import Failed

#: Kinds of pictures, by the end of the file's name.
KINDS = ("png", "svg", "pdf")
#: Parameters that choose a view and change nothing in a plan: a report is the same whatever else is printed.
_VIEWS = ("plot", "html", "panels", "offline", "explain", "as_json", "as_csv", "as_md")


class Files(NamedTuple):
    """Names of files, None for those not asked for, and which panels a picture has (none named: all that have something to show).

    `options` are (option, value, meaning) of the command line, for a report.
    """

    plot: str | None = None
    html: str | None = None
    panels: tuple[str, ...] = ()
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
        """Each file whole or not at all, and says so on stderr; none is written before all are made. Raises BadInput and CannotRunHere."""
        made: list[tuple[str, bytes]] = []
        if self.plot is not None:
            from kvcli.report.pictures.draw import sheet

            made.append((self.plot, sheet(requests, plans, self.panels, _suffix(self.plot))))
        if self.html is not None:
            from kvcli.report.html.page import Report

            report = Report(plans, (), self.options, answers, failed, axes, notices, launch)
            made.append((self.html, self._page(report, requests).encode()))
        for path, data in made:
            _write(path, data)

    def _page(self, report: Report, requests: Sequence[PlanRequest]) -> str:
        """With pictures, unless there are more curves than one can hold: then it says so."""
        from kvcli.report.html.page import page
        from kvcli.report.pictures.draw import pictures

        try:
            return page(report._replace(pictures=pictures(requests, report.plans, self.panels)))
        except BadInput as error:
            if error.code != "too_many_curves":
                raise
            return page(report._replace(notices=[*report.notices, Notice(error.code, f"no pictures: {error.message}")]))


def files_of(context: typer.Context, plot: str | None, html: str | None, panels: str | None) -> Files:
    """Raises BadInput for names that say no kind, CannotRunHere where what draws is not installed: before anything is planned."""
    if panels is not None and plot is None and html is None:
        raise BadInput("--panels says what a picture shows, and none is asked for", hint="--plot plan.png", code="usage")
    if plot is not None and _suffix(plot) not in KINDS:
        hint = "end it in ." + ", .".join(KINDS)
        raise BadInput(f"--plot {plot[:80]!r} does not say what kind of picture it is", hint=hint, code="bad_suffix")
    if html is not None and _suffix(html) not in ("html", "htm"):
        raise BadInput(f"--html {html[:80]!r} is no name of an HTML file", hint="end it in .html", code="bad_suffix")
    try:
        from kvcli.report.pictures import draw  # noqa: F401
        from kvcli.report.pictures.scene import panels_of

        if html is not None:
            from kvcli.report.html import page  # noqa: F401
    except ImportError as error:
        what = "pictures" if html is None else "pages and their pictures"
        raise CannotRunHere(f"{what} need {error.name}", hint="pip install 'kvcli[plot]'", code="extra_missing") from None
    return Files(plot, html, panels_of(panels), _given(context))


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""


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


def _write(path: str, data: bytes) -> None:
    try:
        replace_bytes(path, data)
    except OSError as error:
        raise unwritable(path, error) from None
    print(f"wrote {path}", file=sys.stderr)
