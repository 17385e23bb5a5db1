"""`--solve devices|tp|ngl|n-cpu-moe`: how many devices, or how much of a model on one."""

from __future__ import annotations

from collections.abc import Iterator

from kvcli.errors import KvcliError, NotModelled
from kvcli.plan.answers.search import Goal, Solved, largest, misses, quietly
from kvcli.plan.build import build
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.offload import Offload
from kvcli.plan.sharing.split import Split

#: Devices of a usual node; the most that one copy of a model is spread over, and the most that share its heads.
NODE, MOST_DEVICES, MOST_RANKS = 8, 256, 64


def splits(devices: int, experts: int = 1) -> Iterator[Split]:
    """Ways to use so many devices for one copy of a model: as many tensor ranks as a node has first, then more pipeline stages.

    With `experts` ranks for routed experts only those whose tensor ranks they divide.
    """
    ranks = [n for n in range(1, min(devices, MOST_RANKS) + 1) if devices % n == 0 and n % experts == 0]
    for tensor in sorted(ranks, key=lambda n: (n > NODE, -n)):
        yield Split(tensor=tensor, pipeline=devices // tensor, experts=experts)


def counts() -> Iterator[int]:
    """Up to four nodes any number of devices, beyond them whole nodes."""
    yield from range(1, 4 * NODE)
    yield from range(4 * NODE, MOST_DEVICES + 1, NODE)


def fewest_devices(request: PlanRequest, goal: Goal) -> Solved:
    """The fewest devices of any split that divides the model, beyond four nodes in whole nodes; of several splits the one whose
    tensor ranks fill a node."""
    last: Plan | None = None
    tried = build_error = ""
    for devices in counts():
        for split in splits(devices, request.split.experts):
            plan = quietly(request._replace(split=split))
            if isinstance(plan, KvcliError):
                build_error = build_error or plan.message
                continue
            tried = goal.failing(plan)
            if not tried:
                reason = f"tp {split.tensor} x pp {split.pipeline}"
                reason += " in whole nodes" if devices > 4 * NODE else ""
                reason += "" if last is None else f"; fewer: {misses(last, goal.failing(last))}"
                binding = goal.failing(last) if last is not None else "none"
                return Solved("devices", devices, plan, last, binding, reason, split)
            last = plan
        if devices >= 64 and last is None:
            break
    if last is None:
        raise NotModelled(build_error or "no split can be planned", hint="use --engine ideal", code="no_sharing_rule")
    why = goal.failing(last)
    return Solved("devices", None, None, last, why, f"not even {MOST_DEVICES:,} devices pass: {misses(last, why)}")


def fewest_ranks(request: PlanRequest, goal: Goal) -> Solved:
    """The fewest tensor ranks, the other degrees as they are."""
    last: Plan | None = None
    for tensor in range(request.split.experts, MOST_RANKS + 1, request.split.experts):
        plan = quietly(request._replace(split=request.split._replace(tensor=tensor)))
        if isinstance(plan, KvcliError):
            continue
        why = goal.failing(plan)
        if not why:
            binding = goal.failing(last) if last is not None else "none"
            reason = "one rank is enough" if last is None else f"fewer: {misses(last, binding)}"
            return Solved("tp", tensor, plan, last, binding, reason, plan.shared.split if plan.shared else None)
        last = plan
    if last is None:
        raise NotModelled(f"no number of tensor ranks divides {request.spec.name}", code="no_sharing_rule")
    why = goal.failing(last)
    return Solved("tp", None, None, last, why, f"no tp up to {MOST_RANKS} passes: {misses(last, why)}")


def most_layers(request: PlanRequest, goal: Goal) -> Solved:
    """The most layers on the device, the output counted as one."""
    moe = request.offload.moe_layers if request.offload else 0

    def at(layers: int) -> PlanRequest:
        return request._replace(offload=Offload(layers, moe))

    value, why = largest(lambda n: goal.failing(build(at(n))), 1, len(request.spec.order) + 1)
    if not value:
        nothing = build(at(0))
        if reason := goal.failing(nothing):
            return Solved("ngl", None, None, nothing, reason, f"not even without a layer: {misses(nothing, reason)}")
        return Solved("ngl", 0, nothing, build(at(1)), why, f"the output alone: {misses(build(at(1)), why)}")
    plan = build(at(value))
    if not why:
        return Solved("ngl", value, plan, None, "none", "all layers and the output are on the device")
    return Solved("ngl", value, plan, build(at(value + 1)), why, f"one layer more: {misses(build(at(value + 1)), why)}")


def fewest_moe_layers(request: PlanRequest, goal: Goal) -> Solved:
    """The fewest layers whose experts must stay on the host."""
    layers = request.offload.layers if request.offload else None
    last: Plan | None = None
    for kept in range(len(request.spec.order) + 1):
        plan = build(request._replace(offload=Offload(layers, kept)))
        why = goal.failing(plan)
        if not why:
            reason = "all experts are on the device" if last is None else f"one layer fewer: {misses(last, goal.failing(last))}"
            return Solved("n-cpu-moe", kept, plan, last, goal.failing(last) if last else "none", reason)
        last = plan
    if last is None:
        raise ValueError("a model has layers")
    why = goal.failing(last)
    return Solved("n-cpu-moe", None, None, last, why, f"not with all experts on the host: {misses(last, why)}")
