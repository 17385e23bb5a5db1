"""The decision that opens a report: does it fit, what binds, and the floors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvcli.plan.answers.answer import Answer
from kvcli.plan.plan import Plan
from kvcli.report.answer_table import answer_lines
from kvcli.report.budget_table import VERDICTS, verdict
from kvcli.report.floors_table import floors_table
from kvcli.report.time_rows import first_token_row
from kvcli.units import exact_bytes, format_bytes


class Verdict(NamedTuple):
    """`kind` is `fits`, `fits_if`, `does_not_fit` or `open`; `figures` are (what, value, remark)."""

    kind: str
    words: str
    said: tuple[str, ...] = ()
    figures: tuple[tuple[str, str, str], ...] = ()


def verdict_of(plan: Plan, found: Answer | None) -> Verdict:
    """Of one plan; what was required or solved for stands above whether it fits."""
    kind, words = _fit(plan)
    said = tuple(answer_lines(found)) if found else ()
    if found is not None and not found.yes:
        unmet = ", ".join(each.requirement.text for each in found.requirements if not each.met)
        return Verdict("does_not_fit", f"Not met: {unmet}" if unmet else "No answer", (*said, words), _figures(plan))
    return Verdict(kind, words, said, _figures(plan))


def _fit(plan: Plan) -> tuple[str, str]:
    if plan.memory is not None:
        words = verdict(plan.memory)
        return plan.memory.verdict, words[0].upper() + words[1:]
    needs = f"Weights and stored cache take {format_bytes(plan.total_bytes)}"
    if plan.device is None:
        return "open", f"{needs}; no device was named to hold them"
    return "open", f"{needs}; nothing is said about fitting {plan.device.id}"


def _figures(plan: Plan) -> tuple[tuple[str, str, str], ...]:
    memory, found = plan.memory, []
    if memory is not None:
        usable = f"of {format_bytes(memory.usable_bytes)} usable; headroom {format_bytes(memory.headroom_bytes)}"
        found.append(("memory of the fullest device, at least", format_bytes(memory.total_bytes), usable))
    else:
        for name, size in (("cache stored", plan.cache.stored_bytes), ("weights", plan.weights.resident_bytes)):
            found.append((name, format_bytes(size), exact_bytes(size)))
    floors = floors_table(plan)
    if plan.latency and not isinstance(floors, str):
        decode, prefill = floors.rows[0], floors.rows[1]
        found.append((f"floor of a {decode[0]}", decode[1], decode[2]))
        found.append((f"floor of the {prefill[0]}", prefill[1], prefill[2]))
        name, seconds, remark = first_token_row(plan)
        found.append((f"floor of the {name}", seconds, remark))
    elif isinstance(floors, str):
        found.append(("floors", "none", floors))
    return tuple(found)


#: verdict -> how it reads of one plan, and of several
_COUNTED = {
    "fits": ("fits", "fit"),
    "fits_if": ("fits only if overheads stay low", "fit only if overheads stay low"),
    "does_not_fit": ("does not fit", "do not fit"),
}


def verdict_of_many(plans: Sequence[Plan], answers: Sequence[Answer], failed: int) -> Verdict:
    """How many fit, or pass where something was required or solved for."""
    points = f"{failed} more could not be planned" if failed else ""
    said = (points,) if points else ()
    if answers:
        passing = sum(each.yes for each in answers)
        kind = "fits" if passing == len(answers) else "does_not_fit"
        return Verdict(kind, f"{passing} of {len(answers)} pass", said)
    counts = Counter(plan.memory.verdict for plan in plans if plan.memory is not None)
    of = f"{len(plans):,} plan" + ("" if len(plans) == 1 else "s")
    if not counts:
        return Verdict("open", f"{of}; no device of known memory to hold them", said)
    words = ", ".join(f"{counts[kind]:,} {forms[counts[kind] > 1]}" for kind, forms in _COUNTED.items() if counts[kind])
    kind = next(iter(counts)) if len(counts) == 1 and counts.total() == len(plans) else "open"
    return Verdict(kind, f"Of {of} {words}", said)


def short(plan: Plan) -> str:
    """For a heading: `fits: yes`; empty where nothing is said about fitting."""
    return "" if plan.memory is None else f"fits: {VERDICTS[plan.memory.verdict]}"
