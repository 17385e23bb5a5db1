"""Requirements on a plan: `--require EXPR`, each met, refuted for certain, or, for times, not refuted.

A floor is a time that nothing beats, so a limit below it is refuted; a limit above it is only not refuted. Memory is certain both
ways as far as it is counted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from kvcli.errors import BadInput
from kvcli.plan.plan import Plan
from kvcli.units import format_bytes, format_seconds, parse_count, parse_seconds, parse_size

if TYPE_CHECKING:
    from kvcli.plan.budget.memory import MemoryPlan

#: quantity -> (comparison it is asked with, example)
EXAMPLES = ("fits", "headroom>=10%", "headroom>=4GiB", "tpot<=20ms", "ttft<=500ms", "batch>=8", "ctx>=32k")
_PATTERN = re.compile(r"\s*(fits|headroom|tpot|ttft|batch|ctx)\s*(?:(<=|>=)\s*(\S+)\s*)?")
_ASKED = {"headroom": ">=", "tpot": "<=", "ttft": "<=", "batch": ">=", "ctx": ">="}
NEEDS_MEMORY = ("fits", "headroom", "batch", "ctx")


class Requirement(NamedTuple):
    """`text` as typed. `limit` is a share (headroom in %), bytes, seconds, or a count; `share` tells the first two apart."""

    text: str
    quantity: str
    limit: float = 0.0
    share: bool = False


class Met(NamedTuple):
    """`value` is the plan's own: bytes, a share, seconds or a count; None where the plan fits nothing. `said` is for people."""

    requirement: Requirement
    met: bool
    value: float | int | bool | None
    said: str


def parse_requirement(text: str) -> Requirement:
    """Raises BadInput that shows the forms there are."""
    found = _PATTERN.fullmatch(text)
    if found is None or (found[1] == "fits") != (found[2] is None) or (found[2] and _ASKED[found[1]] != found[2]):
        raise BadInput(
            f"--require {text[:60]!r} is not a requirement kvcli knows", hint="like " + ", ".join(EXAMPLES), code="bad_requirement"
        )
    quantity, value = found[1], found[3]
    if quantity == "fits":
        return Requirement(text.strip(), quantity)
    if quantity == "headroom" and value.endswith("%"):
        try:
            share = float(value[:-1]) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            raise BadInput(
                f"--require {text[:60]!r}: a share is from 0% to below 100%", hint="--require 'headroom>=10%'", code="bad_requirement"
            )
        return Requirement(text.strip(), quantity, share, share=True)
    if quantity == "headroom":
        return Requirement(text.strip(), quantity, parse_size(value, "--require headroom"))
    if quantity in ("tpot", "ttft"):
        return Requirement(text.strip(), quantity, parse_seconds(value, f"--require {quantity}"))
    return Requirement(text.strip(), quantity, parse_count(value, f"--require {quantity}"))


def check_device(requirements: tuple[Requirement, ...], plan: Plan) -> None:
    """Raises BadInput where a requirement on memory or time has no device to be held against."""
    for requirement in requirements:
        if plan.device is None:
            text = f"--require {requirement.text!r} needs a --device to hold the plan against"
            raise BadInput(text, hint="--device h100-sxm5-80", code="device_missing")
        if plan.memory is None and requirement.quantity in NEEDS_MEMORY:
            text = f"--require {requirement.text!r}: {plan.device.id} is sold with different amounts of memory"
            raise BadInput(text, hint="name a part with a fixed amount", code="device_without_memory")


def _fits_said(memory: MemoryPlan) -> str:
    if memory.condition:
        return f"fits only if {memory.condition}"
    if memory.fits:
        return f"fits with {format_bytes(memory.headroom_bytes)}"
    return "does not fit the host" if memory.headroom_bytes >= 0 else f"misses by {format_bytes(-memory.headroom_bytes)}"


def _peak_known(plan: Plan) -> bool:
    return plan.device is None or bool(plan.device.peak_bound(*plan.weights.multiply_units))


def on_plan(requirement: Requirement, plan: Plan) -> Met:
    """Of everything but `batch` and `ctx`, which ask for a search (`solve.py`)."""
    quantity, limit, memory = requirement.quantity, requirement.limit, plan.memory
    if quantity in ("tpot", "ttft"):
        from kvcli.plan.time.limits import tpot_floor_s, ttft_floor_s  # only limits on time pay for it

        if plan.latency is None:
            device = plan.device.id if plan.device else "no device"
            raise BadInput(f"{requirement.text!r}: no bandwidth is known that {device} cannot exceed", "--bandwidth 100GB/s", "no_floor")
        floor = tpot_floor_s(plan) if quantity == "tpot" else ttft_floor_s(plan)
        met = floor <= limit
        open_words = "not refuted" if _peak_known(plan) else "not refuted by bandwidth, peak unknown"
        said = f"the floor is {format_seconds(floor)}: " + (open_words if met else "refuted, no execution is that fast")
        return Met(requirement, met, floor, said)
    if memory is None:
        raise ValueError("a plan without memory is held against nothing")
    if quantity == "fits":
        return Met(requirement, memory.fits, memory.fits, _fits_said(memory))
    share = memory.headroom_bytes / memory.usable_bytes
    value: float | int = share if requirement.share else memory.headroom_bytes
    said = f"headroom is {format_bytes(memory.headroom_bytes)}, {100 * share:.1f}% of what is usable"
    return Met(requirement, value >= limit, value, said)
