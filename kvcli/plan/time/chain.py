"""Who reads and computes what in a step: the chain of devices, a drafter and the host, from the plan's shares."""

from __future__ import annotations

from kvcli.hardware.accelerators import Accelerator
from kvcli.model.spec import ModelSpec
from kvcli.plan.cache import CachePlan
from kvcli.plan.drafter import DraftPlan
from kvcli.plan.floors import Chain
from kvcli.plan.sharing.offload import on_device
from kvcli.plan.sharing.shared import Shared
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
    if shared is None:
        own = _less_narrower(Caches(spec, cache.kv), cache.read_bytes_per_step, workload)
        drafter, more = _drafter(draft, workload)
        read = weights.read_bytes_per_step + more
        return Steps(spec, spec, workload, device, weights.multiply_units, read, (own,), tokens=tokens, drafter=drafter)
    split = shared.split
    groups, ranks = split.data * split.attention_data, split.attention_ranks
    stages = [Caches(_as_rank(spec, layers, ranks), cache.kv, groups, split.context) for layers in _stages(shared)]
    caches = [_less_narrower(each, place.cache_read_bytes, workload) for each, place in zip(stages, shared.chain, strict=True)]
    drafter, more = _drafter(draft, workload, groups, ranks, split.context)
    linked = split.tensor * split.pipeline > 1
    return Steps(
        spec=spec,
        computed=spec if shared.placement is None else on_device(spec, shared.placement),
        work=workload,
        device=device,
        units=weights.multiply_units,
        weights_bytes=sum(each.weights_read_bytes for each in shared.chain) + more,
        caches=tuple(caches),
        chain=Chain(split.tensor, split.pipeline, split.data, min(split.pipeline, -(-workload.batch_size // split.data))),
        tokens=tokens,
        host=_host(spec, shared, cache, host_bytes_per_s),
        link_bytes_per_s=device.link_bytes_per_s if linked else 0.0,
        summed_layers=split.attention_data == 1,
        drafter=drafter,
    )


def _less_narrower(caches: Caches, read_bytes: int, work: Workload) -> Caches:
    """The same less what is kept in fewer bits than are needed, told from what the plan's own step reads."""
    kept = caches.read_bytes(work.context_tokens, work.batch_size, work) - read_bytes
    return caches._replace(narrower_bytes=-(-kept // caches.sequences(work.batch_size))) if kept > 0 else caches


def _drafter(draft: DraftPlan | None, work: Workload, groups: int = 1, ranks: int = 1, context: int = 1) -> tuple[Caches | None, int]:
    """A drafter's cache and what one draft reads beside it. It is read by the last stage alone, whatever the batch is cut into."""
    model = draft.speculation.drafter if draft else None
    if draft is None or model is None or draft.kv is None:
        return None, 0
    caches = Caches(model if ranks == 1 else _as_rank(model, range(len(model.order)), ranks), draft.kv, groups, context)
    return caches, max(0, draft.read_bytes_per_draft - caches.read_bytes(work.context_tokens, work.batch_size, work))


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
