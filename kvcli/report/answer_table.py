"""Answers for people: what was solved for and what binds, each requirement with its number, and what would pass instead."""

from __future__ import annotations

from collections.abc import Sequence

from kvcli.plan.answers.answer import Answer
from kvcli.plan.answers.search import Solved
from kvcli.report.plan_table import fullest, print_terminal
from kvcli.report.table import Column, Table, say
from kvcli.units import format_seconds

_WHAT = {
    "ctx": "longest context",
    "batch": "most sequences",
    "devices": "fewest devices",
    "tp": "fewest tensor ranks",
    "kv-dtype": "widest type of the cache",
    "device": "parts that pass",
    "ngl": "most layers on the device (-ngl)",
    "n-cpu-moe": "fewest layers with experts on the host (--n-cpu-moe)",
}


def print_answer(found: Answer) -> None:
    """The verdict first, then the plan it is about."""
    for line in answer_lines(found):
        say(line)
    print()
    print_terminal([found.plan])


def answer_lines(found: Answer) -> list[str]:
    """What was solved for, each requirement, and what would pass instead."""
    lines = [] if found.solved is None else [_solved(found.solved)]
    lines += [f"{'met' if met.met else 'NOT met'}: {met.requirement.text} - {met.said}" for met in found.requirements]
    if found.changes:
        lines.append("would pass with " + ", or ".join(f"{change.option} {change.value}" for change in found.changes))
    elif not found.yes and found.solved is None:
        lines.append("no shorter context, smaller batch, narrower cache or number of devices alone would pass")
    return lines


def _solved(solved: Solved) -> str:
    what = _WHAT[solved.unknown]
    if solved.value is None:
        return f"{what}: none - {solved.reason}"
    if isinstance(solved.value, tuple):
        return f"{what}: {', '.join(solved.value)} - {solved.reason}"
    value = f"{solved.value:,}" if isinstance(solved.value, int) else solved.value
    if solved.plan is not None and solved.plan.memory is not None and solved.plan.memory.condition:
        value += f" (only if {solved.plan.memory.condition})"
    return f"{what}: {value} - {solved.binding} binds: {solved.reason}" if solved.beyond else f"{what}: {value} - {solved.reason}"


def print_many(answers: Sequence[Answer]) -> None:
    many_table(answers).print()


def many_table(answers: Sequence[Answer]) -> Table:
    """One line an answer."""
    rows = []
    for each in answers:
        plan, work = each.plan, each.plan.workload
        solved = "" if each.solved is None else "none" if each.solved.value is None else _short(each.solved)
        unmet = [met.requirement.text for met in each.requirements if not met.met]
        rows.append(
            [
                plan.spec.name,
                f"{work.context_tokens:,}",
                str(work.batch_size),
                f"{plan.shared.split.devices if plan.shared else 1} x {plan.device.id}" if plan.device else "",
                plan.cache.engine,
                plan.cache.kv.label,
                solved,
                each.solved.binding if each.solved else "",
                fullest(plan),
                format_seconds(plan.latency.decode.seconds) if plan.latency else "",
                "yes" if each.yes else "no: " + (", ".join(unmet) or "nothing solves"),
            ]
        )
    titles = (
        "model",
        "context",
        "batch",
        "devices",
        "engine",
        "cache type",
        "answer",
        "binding",
        "fullest device",
        "decode floor",
        "passes",
    )
    kept = [index for index, title in enumerate(titles) if title in ("model", "context", "passes") or len({row[index] for row in rows}) > 1]
    left = ("model", "devices", "engine", "cache type", "binding", "passes")
    keys = ("model", "context", "batch", "devices", "engine", "cache type")
    columns = [Column(titles[index], right=titles[index] not in left, key=titles[index] in keys) for index in kept]
    return Table(columns, [[row[index] for index in kept] for row in rows])


def _short(solved: Solved) -> str:
    if isinstance(solved.value, tuple):
        return f"{len(solved.value)} parts"
    return f"{solved.value:,}" if isinstance(solved.value, int) else str(solved.value)
