"""`kvcli check`: the capacity gate of continuous integration."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcli.cli import complete
from kvcli.errors import EXIT_NO, BadInput

if TYPE_CHECKING:
    from kvcli.check.verdict import Report

#: Columns of a log, and the fewest that lines are folded at.
LOG_COLUMNS, LEAST_COLUMNS = 80, 40
FORMATS = ("text", "json", "github", "gitlab", "azure")

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def check(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="kvcli.yaml, manifests, compose files, scripts, or folders of them.")
    ],
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The part that manifests given directly run on; repeatable.", autocompletion=complete.devices),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="An unknown device, model or argument fails.")] = False,
    form: Annotated[
        str, typer.Option("--format", metavar="F", help=f"What goes to stdout: {', '.join(FORMATS)}.", autocompletion=complete.formats)
    ] = "text",
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Also write JUnit XML.")] = None,
    sarif: Annotated[str | None, typer.Option(metavar="FILE", help="Also write SARIF 2.1.0.")] = None,
    md: Annotated[str | None, typer.Option(metavar="FILE", help="Append a Markdown table, as to $GITHUB_STEP_SUMMARY.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write the JSON document; - is --format json.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(metavar="FILE", help="Report only what changed since FILE was written.")] = None,
    update_baseline: Annotated[bool, typer.Option("--update-baseline", help="Write the baseline anew, unless a rule fails.")] = False,
) -> None:
    """Hold deployment manifests against the devices they run on.

    Needs no GPU and no network. kvcli.yaml names the targets, their devices, load and limits; manifests can also be given directly,
    with --device where they do not say what they run on. Exit 1 if a rule fails, 2 if a file cannot be read.

    Example: kvcli check kvcli.yaml --format github --md "$GITHUB_STEP_SUMMARY"
    """
    if json_file == "-":
        form, json_file = "json", None
    if form not in FORMATS:
        raise BadInput(f"--format {form[:40]!r} is no format of kvcli check", hint="one of " + ", ".join(FORMATS), code="usage")
    outputs = {"--junit": junit, "--sarif": sarif, "--json": json_file, "--md": md, "--baseline": baseline}
    _distinct(files, outputs)
    from kvcli.check import baseline as kept
    from kvcli.check.run import check as run

    report, path = run([Path(each) for each in files], today(), device or (), strict, baseline, update_baseline)
    if update_baseline and path is None:
        hint = "--baseline FILE, or baseline: in the capacity file"
        raise BadInput("--update-baseline has no file to write", hint=hint, code="usage")
    if path is not None and baseline is None and not update_baseline and not os.path.exists(path):
        print(f"kvcli: there is no baseline {path} yet, so all is reported: --update-baseline writes it", file=sys.stderr)
    # all is made before anything is written, and written before the answer is given
    made = {option: _MAKERS[option](report) for option, target in outputs.items() if target is not None and option in _MAKERS}
    answer = _FORMATS[form](report)
    for option, text in made.items():
        _write(str(outputs[option]), text, append=option == "--md")
    refused = kept.refusal(report) if update_baseline else None
    if update_baseline and path is not None and refused is None:
        kept.write(report, path)
    sys.stdout.write(answer)
    _passed_over(report)
    if refused is not None:
        print(f"kvcli: {refused}", file=sys.stderr)
    if not report.passed:
        raise typer.Exit(EXIT_NO)


def _passed_over(report: Report) -> None:
    if report.passed_over:
        from kvcli.report.check.shown import plain

        for line in report.passed_over:
            print(f"kvcli: passed over, since nothing in it starts an engine: {plain(line)}", file=sys.stderr)


def _distinct(files: list[str], outputs: dict[str, str | None]) -> None:
    """Refuses names that are empty, as a variable that is not set leaves them, and outputs that would overwrite one another or an input."""
    taken: dict[str, str] = {}
    for name, path in [*(("FILE", each) for each in files), *outputs.items()]:
        if path is None:
            continue
        if path == "-" and name not in ("FILE", "--json"):
            raise BadInput(f"{name} - names no file", hint=f"{name} /dev/stdout, or a file", code="usage")
        if not path.strip():
            raise BadInput(f"{name} is an empty text, no name of a file", hint="is a variable not set?", code="usage")
        real = os.path.realpath(path)
        if name != "FILE" and real in taken:
            raise BadInput(f"{name} {path} is what {taken[real]} names too", hint="give each output a file of its own", code="usage")
        # devices and pipes can be given twice
        if os.path.isfile(path) or not os.path.exists(path):
            taken[real] = name


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
    """Raises BadInput or CannotRunHere; then a file that was there is as it was."""
    from kvcli.files import append_text, replace_text, unwritable

    try:
        (append_text if append else replace_text)(path, text)
    except OSError as error:
        raise unwritable(path, error) from None


def _text(report: Report) -> str:
    from kvcli.report.check.text import text

    terminal = sys.stdout.isatty()
    # the same report is the same text in every pipe
    width = shutil.get_terminal_size((LOG_COLUMNS, 24)).columns if terminal else LOG_COLUMNS
    return text(report, terminal and "NO_COLOR" not in os.environ, max(width, LEAST_COLUMNS))


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
_MAKERS: dict[str, Callable[[Report], str]] = {"--junit": _junit, "--sarif": _sarif, "--json": _json, "--md": _markdown}
