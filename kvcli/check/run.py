"""The gate: every rule on every case, waivers, and the numbers that a baseline keeps."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kvcli.check.baseline import against, read, regressions
from kvcli.check.case import Case
from kvcli.check.compare import MEASURES
from kvcli.check.doubts import BRANCH, Fits, failing_branches, softened
from kvcli.check.gather import gather
from kvcli.check.nodes import Place
from kvcli.check.reach import could_fit
from kvcli.check.rules import known, memory, shape, time
from kvcli.check.verdict import Cell, Measures, Outcome, Report, Waiver
from kvcli.errors import BadInput
from kvcli.plan.time.limits import tpot_floor_s, ttft_floor_s
from kvcli.units import plural

Rule = Callable[[Case], Outcome | list[Outcome]]
RULES: tuple[Rule, ...] = (
    *(memory.does_not_fit, memory.headroom, shape.beyond_trained, shape.split, time.ttft, time.tpot, memory.too_few_sequences),
    *(known.device, known.model, shape.kv_dtype, memory.memory_fraction, shape.format_without_units, shape.gpu_request),
    *(time.cost, known.understood),
)


def check(
    paths: Sequence[Path],
    today: datetime.date,
    devices: Sequence[str] = (),
    strict: bool = False,
    baseline: str | None = None,
    updating: bool = False,
) -> tuple[Report, str | None]:
    """The report, and the path of the baseline: the one given, else the one that the capacity files name.

    A named baseline may be missing until it is first written, a given one only while `updating`, which also writes a broken one anew.
    Raises BadInput for files that cannot be read; what a deployment has wrong is an outcome.
    """
    gathered = gather(paths, devices, strict)
    named = [(Path(each.path).parent / each.baseline.text).as_posix() for each in gathered.capacities if each.baseline]
    if baseline is None and len(set(named)) > 1:
        hint = "check them one by one, or give --baseline FILE"
        raise BadInput(f"the capacity files name different baselines: {', '.join(sorted(set(named)))[:200]}", hint, "usage")
    said = [_said(case) for case in gathered.cases]
    pairs = list(zip(gathered.cases, said, strict=True))
    lost = failing_branches((case.deployment, _device(case), outcomes, _fits(case)) for case, outcomes in pairs)
    report = Report(tuple(_cell(case, outcomes, lost, today) for case, outcomes in pairs), passed_over=gathered.passed_over)
    path = baseline or (named[0] if named else None)
    if path is None or (not os.path.exists(path) and (updating or baseline is None)):
        return report, path
    try:
        held = read(path)
    except BadInput:
        if updating:
            return report, path
        raise
    report = against(report, held)._replace(passed_over=gathered.passed_over)
    cells = zip(report.cells, gathered.cases, strict=True)
    return report._replace(cells=tuple(_compared(cell, case, today) for cell, case in cells)), path


def _compared(cell: Cell, case: Case, today: datetime.date) -> Cell:
    """With KV012, where the baseline has the cell."""
    if cell.before is None:
        return cell
    limit = case.limit("regression")
    allowed = {measure.key: limit.value for measure in MEASURES} if limit else {}
    worse = tuple(_waived(each, case, cell.device, today) for each in regressions(cell, cell.before, allowed))
    held = worse or (Outcome("KV012", "passed", "", cell.place),)
    return cell._replace(outcomes=tuple(sorted((*cell.outcomes, *held), key=lambda each: each.rule)))


def _said(case: Case) -> list[Outcome]:
    """What the rules say of what was read."""
    outcomes: list[Outcome] = []
    for rule in RULES:
        found = rule(case)
        outcomes += found if isinstance(found, list) else [found]
    return outcomes


def _fits(case: Case) -> Fits:
    return lambda reach: could_fit(case, reach)


def _device(case: Case) -> str:
    return case.device.text if case.device else "unknown device"


def _cell(case: Case, said: list[Outcome], lost: set[tuple[Place, str]], today: datetime.date) -> Cell:
    """`lost`: scripts of which every command fails, with the device."""
    device = _device(case)
    every = any(each.code == BRANCH and (each.place, device) in lost for each in case.deployment.problems)
    outcomes = [_waived(softened(each, case.deployment, case.pool, every, _fits(case)), case, device, today) for each in said]
    numbers = measures(case)
    if any(each.rule == "KV001" and each.level == "error" for each in outcomes):
        numbers = Measures(numbers.memory_bytes, numbers.usable_bytes)  # what does not start serves nobody, at no speed and no price
    assumed = (*(case.asked.assumed if case.asked else ()), *(time.prompt_assumed(case) if numbers.ttft_floor_s is not None else ()))
    return Cell(
        target=case.target.name,
        device=device,
        place=case.deployment.place,
        outcomes=tuple(sorted(outcomes, key=lambda each: each.rule)),
        measures=numbers,
        assumed=assumed,
        memory_of=_memory_of(case, numbers),
    )


def _memory_of(case: Case, numbers: Measures) -> str:
    """Whose memory the numbers have, where it is all users' at once, of one instance."""
    one, used, asked = case.plan.memory if case.plan else None, numbers.memory_bytes, case.asked
    if one is None or used is None or used <= one.total_bytes or not case.load.users or asked is None:
        return ""
    longest = asked.request.workload.context_tokens
    count = -(-case.load.users // max(1, case.deployment.replicas))
    return f"{plural(count, 'sequence')} of {plural(min(case.load.context_p99 or longest, longest), 'token')} at once"


def _waived(outcome: Outcome, case: Case, device: str, today: datetime.date) -> Outcome:
    """A waiver makes a note of an error or a warning, until the day after it expires."""
    if outcome.level not in ("error", "warning"):
        return outcome
    for each in case.target.waivers:
        if each.rule != outcome.rule or (each.on and device not in each.on):
            continue
        if datetime.date.fromisoformat(each.expires) >= today:
            return outcome._replace(level="note", waiver=Waiver(each.reason, each.expires))
        return outcome._replace(message=f"{outcome.message} (its waiver expired on {each.expires}: {each.reason})")
    return outcome


def measures(case: Case) -> Measures:
    plan = memory.loaded(case)
    held = memory.sequences_held(case)
    first, step = time.ttft_plan(case), time.step_plan(case)
    cost = time.least_cost(case)
    budget = plan.memory if plan else None
    one = case.plan.memory if case.plan else None
    if budget is None or (one is not None and case.deployment.engine in memory.REFUSE_TO_START and one.total_bytes > budget.total_bytes):
        budget = one  # what must be there for the engine to start, though no user asks for so much
    return Measures(
        memory_bytes=budget.total_bytes if budget else None,
        usable_bytes=budget.usable_bytes if budget else None,
        sequences=held[0] if held else None,
        ttft_floor_s=ttft_floor_s(first) if first else None,
        tpot_floor_s=tpot_floor_s(step) if step else None,
        cost_per_mtok=cost[0] if cost else None,
    )
