"""`kvcli plan` where something is required, solved for, or emitted: answers, and exit 1 where one of them is no."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from kvcli.cli.plan_request import Failed, progress_of
from kvcli.errors import EXIT_NO, BadInput, Notice, NotModelled
from kvcli.hardware.accelerators import Accelerator
from kvcli.plan.answers.answer import Answer, answer
from kvcli.plan.answers.emit import ENGINES, launch_line
from kvcli.plan.answers.requirements import parse_requirement
from kvcli.plan.document import SCHEMA_VERSION, failed_point, plan_document
from kvcli.plan.request import PlanRequest

if TYPE_CHECKING:
    from kvcli.cli.plan_files import Files


def print_answers(
    requests: list[PlanRequest],
    required: list[str],
    unknown: str | None,
    emit: str | None,
    view: str,
    solving_given: bool,
    local: list[Notice],
    parts: tuple[Accelerator, ...] = (),
    files: Files | None = None,
    axes: Sequence[str] = (),
) -> None:
    """One answer a request, in a `view`: json, csv, md, or for people ""; written to files first where some were asked for.

    Raises BadInput for a view that answers do not have, and typer.Exit(1) for a no.
    """
    if view == "explain" or (emit is not None and view in ("csv", "md")):
        asked = "--emit" if emit is not None else "--require or --solve"
        raise BadInput(f"{asked} cannot be shown with --{view}", hint=f"leave --{view} out, or use --json", code="usage")
    if solving_given:
        raise BadInput(f"--solve {unknown} asks for what another option gives", hint=f"leave --{unknown} and the like out", code="usage")
    if emit is not None and emit not in ENGINES:
        raise BadInput(
            f"--emit {emit[:40]!r} is no engine whose options kvcli knows", hint="one of " + ", ".join(ENGINES), code="unknown_engine"
        )
    requirements = tuple(map(parse_requirement, required))
    answers: list[Answer] = []
    failed: list[Failed] = []
    with progress_of(requests) as step:
        for request in requests:
            try:
                answers.append(answer(request, requirements, unknown, parts))
            except (BadInput, NotModelled) as error:  # points of a sweep fail alone, unless all do
                if not axes:
                    raise
                failed.append(Failed(request, error))
            step()
    if not answers:
        raise failed[0].error
    launch = [] if emit is None else [launch_line(emit, each.request, each.plan) for each in answers]
    if files is not None:
        files.write([each.request for each in answers], [each.plan for each in answers], local, answers, launch, failed, axes)
    if view == "json":
        documents = [plan_document(each.plan, each.requirements, each.solved) for each in answers]
        if emit is not None:
            for document, line in zip(documents, launch, strict=True):
                document["emit"] = line
        document = documents[0] if len(documents) == 1 and not failed else {"schema_version": SCHEMA_VERSION, "plans": documents}
        if failed:
            document["failed"] = [failed_point(each) for each in failed]
        print(json.dumps(document, separators=(",", ":"), allow_nan=False))
    elif emit is not None:
        for each, line in zip(answers, launch, strict=True):
            print(line)
            _say(each)
    else:
        from kvcli.report import answer_rows, answer_table
        from kvcli.report.notes import note_lines

        if view == "csv":
            answer_rows.print_csv(answers)
        elif view == "md":
            answer_rows.print_markdown(answers)
        elif len(answers) == 1:
            answer_table.print_answer(answers[0])
        else:
            answer_table.print_many(answers)
        for line in note_lines([notice for each in answers for notice in each.plan.notices] + local):
            print(f"note: {line}", file=sys.stderr)
    if failed and view != "json":
        from kvcli.report.matrix import print_lost

        print_lost(failed, axes)
    if not all(each.yes for each in answers):
        raise typer.Exit(EXIT_NO)


def _say(found: Answer) -> None:
    """What was required, beside a launch line, which alone goes to stdout."""
    for met in found.requirements:
        print(f"{'met' if met.met else 'NOT met'}: {met.requirement.text} ({met.said})", file=sys.stderr)
