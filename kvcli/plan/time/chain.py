"""Who reads and computes what in a step: the chain of devices, a drafter and the host, from the plan's shares."""

from __future__ import annotations

from dataclasses import replace

from kvcli.hardware.accelerators import Accelerator
from kvcli.model.spec import ModelSpec
from kvcli.plan.floors import Chain
from kvcli.plan.plan import CachePlan
from kvcli.plan.sharing.shared import Shared
from kvcli.plan.speculative import DraftPlan
from kvcli.plan.time.steps import Caches, Host, Steps
from kvcli.plan.weights import WeightBytes
from kvcli.plan.workload import Workload


def steps_of(
    spec: ModelSpec,
    workload: Workload,
    weights: WeightBytes,
    cache: CachePlan,
    shared: Shared | None,
    device: Accelerator,
    draft: DraftPlan | None = None,
    host_bytes_per_s: float = 0.0,
) -> Steps:
    """The steps of a plan on one device, or on the chain of devices that a token passes."""
    tokens = 1 + (draft.speculation.drafted if draft else 0)
    drafter = draft.speculation.drafter if draft else None
    if shared is None:
        caches, read = [Caches(spec, cache.kv)], weights.read_bytes_per_step
        if draft and drafter and draft.kv:
            caches.append(Caches(drafter, draft.kv))
            read += draft.read_bytes_per_draft - caches[1].read_bytes(workload.context_tokens, workload.batch_size, workload)
        return Steps(spec, spec, workload, device, weights.multiply_units, read, tuple(caches), tokens=tokens)
    split = shared.split
    groups, ranks = split.data * split.attention_data, split.attention_ranks
    caches = [Caches(_as_rank(spec, layers, ranks), cache.kv, groups, split.context) for layers in _stages(shared)]
    if draft and drafter and draft.kv:
        caches.append(Caches(_as_rank(drafter, range(len(drafter.order)), ranks), draft.kv, groups, split.context))
    linked = split.tensor * split.pipeline > 1
    return Steps(
        spec=spec,
        computed=spec if shared.host is None else _on_device(spec, shared, cache.engine_version),
        work=workload,
        device=device,
        units=weights.multiply_units,
        weights_bytes=sum(each.weights_read_bytes for each in shared.chain),
        caches=tuple(caches),
        chain=Chain(split.tensor, split.pipeline, split.data, min(split.pipeline, -(-workload.batch_size // split.data))),
        tokens=tokens,
        host=_host(spec, shared, cache, host_bytes_per_s),
        link_bytes_per_s=_link(device) if linked else 0.0,
        summed_layers=split.attention_data == 1,
    )


def _link(device: Accelerator) -> float:
    from kvcli.hardware.links import link_bytes_per_s  # only several devices pay for it

    return link_bytes_per_s(device.id)


def _stages(shared: Shared) -> list[range]:
    """The layers of each stage."""
    stages = {each.rank.stage: each.rank.layers for each in shared.cache.ranks if not each.rank.host}
    return [layers for _, layers in sorted(stages.items())]


def _as_rank(spec: ModelSpec, layers: range, ranks: int) -> ModelSpec:
    from kvcli.plan.sharing.ranks import rank_spec

    return rank_spec(spec, layers, ranks)[0]


def _host(spec: ModelSpec, shared: Shared, cache: CachePlan, bytes_per_s: float) -> Host | None:
    """None where nothing is read of the host's memory, or nothing is known of its rate."""
    place = shared.host
    if place is None or not bytes_per_s:
        return None
    layers = next(each.rank.layers for each in shared.cache.ranks if each.rank.host)
    return Host(place.weights_read_bytes, Caches(_as_rank(spec, layers, 1), cache.kv) if layers else None, bytes_per_s)


def _on_device(spec: ModelSpec, shared: Shared, version: str) -> ModelSpec:
    """The layers whose products the device does: the host may do its own meanwhile, and experts that stay there."""
    from kvcli.plan.sharing.offload import Offload, place

    offload = shared.offload or Offload()
    placement = place(spec, offload, version)
    inside = _as_rank(spec, range(placement.first, len(spec.order)), 1)
    if offload.moe_layers:
        bare = (replace(group, parameters=group.parameters._replace(expert=0)) for group in inside.groups)
        inside = replace(inside, groups=tuple(bare))
    return inside if placement.output else replace(inside, head_matrix=0)
