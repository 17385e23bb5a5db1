"""`kvcli check`: the capacity gate of continuous integration."""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcli.errors import EXIT_NO, BadInput

if TYPE_CHECKING:
    from kvcli.check.verdict import Report

FORMATS = ("text", "json", "github", "gitlab", "azure")

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="kvcli.yaml, manifests, compose files, scripts, or folders.")],
    device: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="For manifests given directly: the part they run on; repeatable.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="What is unknown fails: device, model, arguments.")] = False,
    form: Annotated[str, typer.Option("--format", metavar="F", help=f"On stdout: {', '.join(FORMATS)}.")] = "text",
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="JUnit XML beside it.")] = None,
    sarif: Annotated[str | None, typer.Option(metavar="FILE", help="SARIF 2.1.0 beside it.")] = None,
    md: Annotated[str | None, typer.Option(metavar="FILE", help="Markdown beside it, appended: $GITHUB_STEP_SUMMARY.")] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="The JSON document beside it; - is stdout.")] = None,
    baseline: Annotated[str | None, typer.Option(metavar="FILE", help="Report only what changed since it was written.")] = None,
    update_baseline: Annotated[bool, typer.Option("--update-baseline", help="Write the baseline, unless a rule failed.")] = False,
) -> None:
    """Hold deployments against the devices they run on, without a GPU and without a network.

    Exit 1 if any rule fails, 2 if a file cannot be read.

    Example: kvcli check kvcli.yaml --format github --md "$GITHUB_STEP_SUMMARY"
    """
    if json_file == "-":
        form, json_file = "json", None
    if form not in FORMATS:
        raise BadInput(f"--format {form[:40]!r} is no format of kvcli check", hint="one of " + ", ".join(FORMATS), code="usage")
    from kvcli.check import baseline as kept
    from kvcli.check.run import check as run

    report, path = run([Path(each) for each in files], today(), device or (), strict, baseline, update_baseline)
    for target, make in ((junit, _junit), (sarif, _sarif), (json_file, _json)):
        if target is not None:
            _write(target, make(report))
    if md is not None:
        _write(md, _markdown(report), append=True)
    sys.stdout.write(_FORMATS[form](report))
    if update_baseline:
        if path is None:
            raise BadInput(
                "--update-baseline has no file to write", hint="--baseline FILE, or baseline: in the capacity file", code="usage"
            )
        refused = kept.refusal(report)
        if refused is None:
            kept.write(report, path)
        else:
            print(f"kvcli: {refused}", file=sys.stderr)
    if not report.passed:
        raise typer.Exit(EXIT_NO)


def today() -> datetime.date:
    """The day waivers are held against; SOURCE_DATE_EPOCH, in seconds, makes it reproducible. Raises BadInput for no number."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return datetime.datetime.now(datetime.UTC).date()
    try:
        return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date()
    except (ValueError, OverflowError, OSError):
        raise BadInput(f"SOURCE_DATE_EPOCH {epoch[:40]!r} is no number of seconds", hint="unset it", code="bad_date") from None


def _write(path: str, text: str, append: bool = False) -> None:
    try:
        with Path(path).open("a" if append else "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}", hint="name a file that can be written", code="unwritable_file") from None


def _text(report: Report) -> str:
    from kvcli.report.check.text import text

    return text(report, color=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


def _json(report: Report) -> str:
    from kvcli.report.check.document import json_document

    return json.dumps(json_document(report), separators=(",", ":"), allow_nan=False) + "\n"


def _github(report: Report) -> str:
    from kvcli.report.check.github import github

    return github(report)


def _gitlab(report: Report) -> str:
    from kvcli.report.check.gitlab import gitlab

    return gitlab(report)


def _azure(report: Report) -> str:
    from kvcli.report.check.azure import azure

    return azure(report)


def _junit(report: Report) -> str:
    from kvcli.report.check.junit import junit

    return junit(report)


def _sarif(report: Report) -> str:
    from kvcli.report.check.sarif import sarif

    return sarif(report)


def _markdown(report: Report) -> str:
    from kvcli.report.check.markdown import markdown

    return markdown(report)


_FORMATS: dict[str, Callable[[Report], str]] = {"text": _text, "json": _json, "github": _github, "gitlab": _gitlab, "azure": _azure}
