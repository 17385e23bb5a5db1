"""More devices for a case: splits that a node, or a pool, can hold, each planned before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvcli.check.case import Case, planned
from kvcli.check.lengths import may_fit, surely_fits
from kvcli.check.words import OPTIONS, spelled
from kvcli.plan.sharing.split import Split

#: Devices of a usual node, in which tensor ranks stay; and the most that are proposed where no pool says how many there are.
NODE, MOST_DEVICES = 8, 64
#: Engines that deal layers to whatever devices they see.
DEALS_LAYERS = ("llama.cpp", "ollama")


def most_devices(case: Case) -> int:
    """Devices that one instance can have."""
    pool = case.pool.devices if case.pool else None
    return MOST_DEVICES if pool is None else pool // max(1, case.deployment.replicas)


def more_ranks(split: Split, most: int) -> Iterator[Split]:
    """More tensor ranks, the other degrees as they are; experts that are spread over all ranks, or groups over the tensor's, stay so."""
    whole = split.experts > 1 and split.experts == split.tensor * split.data
    step = 1 if whole else max(1, min(split.experts, split.tensor))
    for tensor in range(split.tensor + 1, max(NODE, split.tensor) + 1):
        made = split._replace(tensor=tensor, experts=tensor * split.data if whole else split.experts)
        if tensor % step == 0 and tensor % split.attention_data == 0 and made.devices <= most:
            yield made


def more_stages(split: Split, most: int) -> Iterator[list[Split]]:
    """The fewest devices first, beyond a node in whole nodes: of each number its splits, those with most tensor ranks first."""
    own = split.tensor * split.pipeline
    for devices in (*range(2, NODE), *range(NODE, most + 1, NODE)):
        found = []
        for tensor in range(min(devices, NODE), 0, -1):
            made = split._replace(tensor=tensor, pipeline=devices // tensor)
            fits = devices % tensor == 0 and made.pipeline > 1 and tensor % split.experts == 0 and tensor % split.attention_data == 0
            if fits and devices > own and made.devices <= most:
                found.append(made)
        yield found


class Fewest(NamedTuple):
    """The fewest devices that fit whatever the overheads are, and the fewest that fit if these stay low."""

    sure: Split | None
    perhaps: Split | None


def fewest(case: Case) -> Fewest:
    """More tensor ranks, which are what most people add, before stages. Of one number of devices the first split that divides decides."""
    if case.asked is None or case.part is None or case.plan is None or not case.part.usable_bytes:
        return Fewest(None, None)
    request, most, perhaps = case.asked.request, most_devices(case), None
    # however a model is shared, its weights and its cache must be somewhere
    needed = case.plan.weights.resident_bytes + case.plan.cache.needed_bytes + case.plan.cache.state_bytes
    stages = more_stages(request.split, most) if takes_stages(case) else ()
    for alike in (*([split] for split in more_ranks(request.split, most)), *stages):
        if not alike or alike[0].tensor * alike[0].pipeline * case.part.usable_bytes < needed:
            continue
        plans = ((split, planned(request._replace(split=split))) for split in alike)
        split, plan = next((pair for pair in plans if pair[1] is not None), (alike[0], None))
        if plan is not None and surely_fits(plan):
            return Fewest(split, perhaps)
        if plan is not None and may_fit(plan):
            perhaps = perhaps or split
    return Fewest(None, perhaps)


def named(case: Case, split: Split) -> str:
    """`--tensor-parallel-size 2 on 2 x l4`."""
    part = case.part.id if case.part else ""
    if case.deployment.engine in DEALS_LAYERS:
        return f"{split.devices} x {part}"
    own = case.asked.request.split if case.asked else split
    words = [spelled(case, "tensor_parallel", split.tensor)]
    if split.pipeline > 1 or own.pipeline > 1:
        words.append(spelled(case, "pipeline_parallel", split.pipeline))
    return f"{' '.join(words)} on {split.devices} x {part}"


def takes_stages(case: Case) -> bool:
    """Whether the engine can deal layers among devices: TGI cannot."""
    engine = case.deployment.engine
    return engine in DEALS_LAYERS or engine not in OPTIONS or "pipeline_parallel" in OPTIONS[engine]


def takes_ranks(case: Case) -> bool:
    return case.own or "tensor_parallel" in OPTIONS.get(case.deployment.engine, {})
