"""Engines that one container runs at the same time on the same devices."""

from __future__ import annotations

from collections.abc import Sequence

from kvcli.check.case import Case, make_case
from kvcli.check.deployment import Deployment
from kvcli.units import format_bytes

#: Engines whose first rank takes the first device it sees; SGLang may be told another one, and llama.cpp takes what is free.
FIRST = ("vllm", "tgi")


def with_neighbours(deployments: Sequence[Deployment]) -> list[Deployment]:
    """Each with the others of its container that run beside it. A command that is not sent to the background ends before the next."""
    groups: list[list[int]] = []
    for index, each in enumerate(deployments):
        if not each.container or each.engine not in FIRST or (each.gpus is not None and not each.gpus.shared):
            continue
        base, second, _ = each.container.partition("#")
        before = deployments[groups[-1][0]] if groups else None
        if second and before is not None and (before.name, before.container.partition("#")[0]) == (each.name, base):
            groups[-1].append(index)
        else:
            groups.append([index])
    found = list(deployments)
    for group in groups:
        last = next((index for index in group if not deployments[index].background), None)
        running = [index for index in group if deployments[index].background or index == last]
        for index in running if len(running) > 1 else ():
            others = tuple(deployments[other] for other in running if other != index)
            found[index] = found[index]._replace(beside=others)
    return found


def neighbours(case: Case) -> list[Case]:
    """The other engines on the same devices; none where one model is said for all that a target names."""
    if case.target.model is not None:
        return []
    own = case.models
    return [
        make_case(case.target, each, own, case.device, case.pool, case.part, case.device_problem, own.find(each.model), case.strict)
        for each in case.deployment.beside
    ]


def together(cases: Sequence[Case]) -> tuple[int, int, str] | None:
    """(bytes that all must hold to start, bytes that the device has, the terms); None where one of them is not known."""
    sizes = []
    for each in cases:
        if each.plan is None or each.plan.memory is None:
            return None
        sizes.append((each.deployment.container, each.plan.memory.contents_bytes, each.plan.memory.usable_bytes))
    terms = " + ".join(f"{name} {size:,}" for name, size, _ in sizes)
    return sum(size for _, size, _ in sizes), min(usable for _, _, usable in sizes), terms


def too_much(case: Case) -> tuple[str, str] | None:
    """(message, formula) where each would fit and all do not."""
    if not case.deployment.beside:
        return None
    sums = together([case, *neighbours(case)])
    if sums is None or sums[0] <= sums[1]:
        return None
    names = ", ".join(each.container for each in case.deployment.beside)
    message = f"beside {names} on the same device: weights and one request of each need {format_bytes(sums[0])}"
    return f"{message}, and there are {format_bytes(sums[1])}", f"{sums[2]} = {sums[0]:,} B > {sums[1]:,} B usable"
