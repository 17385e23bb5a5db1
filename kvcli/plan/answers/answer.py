"""A request answered: its plan, what is required of it, and what was solved for."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.hardware.accelerators import Accelerator
from kvcli.plan.answers.changes import Change, judge, smallest_changes
from kvcli.plan.answers.requirements import Met, Requirement, check_device
from kvcli.plan.answers.search import Goal, Solved
from kvcli.plan.answers.solve import UNKNOWNS, solve
from kvcli.plan.build import build
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest


class Answer(NamedTuple):
    """`plan` is the one that was asked for, or the one that solves. `yes` is False where a requirement is unmet, or nothing solves."""

    request: PlanRequest
    plan: Plan
    requirements: tuple[Met, ...] = ()
    solved: Solved | None = None
    changes: tuple[Change, ...] = ()

    @property
    def yes(self) -> bool:
        return all(each.met for each in self.requirements) and (self.solved is None or self.solved.value is not None)


def answer(request: PlanRequest, requirements: tuple[Requirement, ...], unknown: str | None, parts: tuple[Accelerator, ...] = ()) -> Answer:
    """Builds the plan, or solves for `unknown` under the requirements; an unmet requirement brings the changes that would meet all.

    Raises BadInput for an unknown that is none, and where there is no device to hold the plan against.
    """
    if unknown is not None and unknown not in UNKNOWNS:
        raise BadInput(
            f"--solve {unknown[:40]!r} is nothing kvcli solves for", hint="one of " + ", ".join(UNKNOWNS), code="unknown_unknown"
        )
    plan = build(request)
    if unknown != "device":
        check_device(requirements, plan)
    solved = None
    if unknown is not None:
        solved = _surely(solve(request, unknown, Goal(requirements), parts), request, requirements)
        plan = solved.plan or plan
        request = solved.request or request
    met = judge(requirements, request, plan) if plan.device is not None else ()
    unmet = solved is None and not all(each.met for each in met)
    return Answer(request, plan, met, solved, smallest_changes(request, requirements) if unmet else ())


def _surely(solved: Solved, request: PlanRequest, requirements: tuple[Requirement, ...]) -> Solved:
    """Where the plan fits only if overheads stay low: also what fits with overheads at their high ends."""
    memory = solved.plan.memory if solved.plan is not None else None
    if memory is None or not memory.condition or solved.value is None or isinstance(solved.value, tuple):
        return solved
    value = solve(request, solved.unknown, Goal(requirements, certain=True)).value
    certain = "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return solved._replace(reason=f"{solved.reason}; with overheads at their high ends too: {certain}")
