"""The smallest change with which a plan that fails would pass: a shorter context, fewer sequences, a narrower cache, more devices.

Each change is solved for and its plan was built and passed before it is named.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli.errors import BadInput, NotModelled
from kvcli.plan.answers.requirements import Met, Requirement, on_plan
from kvcli.plan.answers.search import Goal, Solved
from kvcli.plan.answers.solve import at_batch, at_context, solve
from kvcli.plan.build import build
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.units import plural

#: what a change is tried of, and the option that makes it
UNKNOWNS = {"ctx": "--ctx", "batch": "--batch", "kv-dtype": "--kv-dtype", "devices": "--devices"}


class Change(NamedTuple):
    """`option` with `value` makes the plan pass; `plan` is that plan."""

    option: str
    value: str
    plan: Plan


def judge(requirements: tuple[Requirement, ...], request: PlanRequest, plan: Plan) -> tuple[Met, ...]:
    """Each requirement against the plan; `batch` and `ctx` against the largest that would pass the others."""
    goal = Goal(requirements)
    return tuple(_searched(each, request, goal) if each.quantity in ("batch", "ctx") else on_plan(each, plan) for each in requirements)


def _searched(requirement: Requirement, request: PlanRequest, goal: Goal) -> Met:
    """`batch>=8` is met where eight sequences pass; what the most are is said beside it."""
    quantity, limit = requirement.quantity, int(requirement.limit)
    wanted = at_batch(request, limit) if quantity == "batch" else at_context(request, limit)
    running = request.budget.sequences if request.budget and quantity == "batch" else None
    try:
        met = not goal.failing(build(wanted)) and (running is None or limit <= running)
    except BadInput:  # more than the engine holds
        met = False
    most = solve(wanted if quantity == "ctx" else request, quantity, goal)
    if isinstance(most.value, int):
        many = plural(most.value, "sequence" if quantity == "batch" else "token")
        said = f"at most {many} pass{'es' if most.value == 1 else ''} ({most.reason})"
    else:
        said = most.reason
    return Met(requirement, met, most.value if isinstance(most.value, int) else 0, said)


def smallest_changes(request: PlanRequest, requirements: tuple[Requirement, ...]) -> tuple[Change, ...]:
    """One change of each kind that makes the plan meet all requirements and fit, those that none of their kind does left out."""
    work = request.workload
    goal = Goal(requirements)
    wanted = [each for each in requirements if each.quantity in ("batch", "ctx")]
    for each in wanted:  # what must pass is then that many, not the plan's own
        request = at_batch(request, int(each.limit)) if each.quantity == "batch" else at_context(request, int(each.limit))
    found = []
    for unknown, option in UNKNOWNS.items():
        if (unknown == "batch" and work.batch_size == 1) or unknown in (each.quantity for each in wanted):
            continue
        try:
            solved = solve(request, unknown, goal)
        except (BadInput, NotModelled):
            continue
        if solved.value is not None and solved.plan is not None and _is_change(unknown, solved, request):
            value = _value(unknown, solved)
            found.append(Change(option, value, solved.plan))
    return tuple(found)


def _is_change(unknown: str, solved: Solved, request: PlanRequest) -> bool:
    if unknown == "kv-dtype":
        return solved.beyond is not None
    if unknown == "devices":
        return isinstance(solved.value, int) and solved.value > request.split.devices
    own = request.workload.context_tokens if unknown == "ctx" else request.workload.batch_size
    return isinstance(solved.value, int) and solved.value < own


def _value(unknown: str, solved: Solved) -> str:
    split = solved.split
    if unknown == "devices" and split is not None and split.pipeline > 1:
        return f"{solved.value} (--tp {split.tensor} --pp {split.pipeline})"
    return str(solved.value)
