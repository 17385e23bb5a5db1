"""From a request to its plan: the cache, the weights, each device's share, the budget and the floors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcli.dtypes import COMPUTE, KvTypes
from kvcli.errors import BadInput, Notice
from kvcli.model.cache_records import CacheRecord
from kvcli.model.layers import LayerGroup, cache_bytes, written_bytes
from kvcli.model.spec import ModelSpec
from kvcli.plan.cache import CachePlan, CacheRow, row_formula
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import Stored
from kvcli.plan.time.reads import batch_read_bytes
from kvcli.plan.weights import WeightBytes, weight_bytes
from kvcli.plan.workload import Workload

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator
    from kvcli.plan.drafter import DraftPlan
    from kvcli.plan.sharing.shared import Shared


def build(request: PlanRequest) -> Plan:
    """The plan of a request. Pure: no clock, no files, no device is asked.

    Raises BadInput for types that the model's rows or the engine cannot store, NotModelled where the engine has no rule.
    """
    spec, workload = request.spec, request.workload
    if workload[4:] != (0, 0, 1):
        from kvcli.plan.time.options import check_workload  # only those who say how a prompt is cached pay for it

        check_workload(workload)
    weights = weight_bytes(spec, request.weights)
    kv, kv_notices = kv_types(request)
    shared = _shared(request, weights, kv)
    stored = shared.cache.stored if shared else request.engine.store(spec, workload, kv)
    cache = _cache(request, kv, stored, shared)
    draft = _draft(request, kv, shared or stored)
    if shared is not None and draft is not None:
        shared = shared.with_drafter(draft.per_place, draft.host_bytes)
    weights = weights._replace(multiply_units=(*weights.multiply_units, *_cache_units(spec, cache.kv)))
    notices = [*spec.notices, *weights.notices, *kv_notices, *cache.notices, *(draft.notices if draft else ())]
    longest = max(workload.context_tokens, workload.prefill_tokens)
    if workload.prefill_tokens > workload.context_tokens:
        raise BadInput(
            f"a prompt of {workload.prefill_tokens:,} tokens does not fit a context of {workload.context_tokens:,}",
            hint="raise --ctx or lower --prompt-tokens",
            code="prompt_longer_than_context",
        )
    if longest > spec.max_context_tokens:
        text = f"{longest:,} tokens are beyond the {spec.max_context_tokens:,} positions {spec.name} was trained for"
        notices.append(Notice("context_beyond_positions", text))
    notices += _encoder_notice(spec, workload)
    memory = times = None
    if request.device is not None:
        from kvcli.plan.budget.memory import memory_on  # only a device pays for it
        from kvcli.plan.lines import latency_on

        host_rate = request.timing.host_bytes_per_s if request.timing else 0.0
        memory = memory_on(request, weights, kv, cache, shared, draft)
        if request.device.bandwidth_bound_bytes_per_s:  # else no rate is known that it cannot exceed
            times = latency_on(spec, workload, weights, cache, shared, request.device, draft, host_rate)
        notices += _device_notices(request.device, weights, shared, host_rate)
        if times is None:
            notices.append(_no_floor(request.device, weights.read_bytes_per_step + cache.read_bytes_per_step))
    plan = Plan(spec, workload, cache, weights, request.device, memory, times, tuple(notices), shared, draft, request)
    if request.timing and request.timing.slo and times:
        from kvcli.plan.time.limits import limit_notices  # only those with a limit pay for it

        plan = plan._replace(notices=(*plan.notices, *limit_notices(plan)))
    return plan


def _shared(request: PlanRequest, weights: WeightBytes, kv: KvTypes) -> Shared | None:
    if not request.shared:
        return None
    from kvcli.plan.sharing.shared import share  # only several memories pay for it

    return share(request.spec, request.workload, kv, weights, request.engine, request.split, request.offload)


def _draft(request: PlanRequest, kv: KvTypes, main: Stored | Shared) -> DraftPlan | None:
    if request.speculation is None:
        return None
    from kvcli.plan.speculative import with_drafter  # only speculative decoding pays for it

    file = request.spec.tensors
    if request.weights is None and file is not None and file.parts is not None:
        head = file.parts.head or file.parts.table
    else:
        dtype = request.weights if request.weights in COMPUTE and request.weights else request.spec.dtype
        head = dtype.bytes_for(request.spec.head_matrix)
    return with_drafter(request, kv, main, head)


def _cache_units(spec: ModelSpec, kv: KvTypes) -> tuple[str, ...]:
    """Multiply units that attention could use: a narrow cache, or an indexer, may be multiplied as narrow as it is."""
    units = {"fp8"} if any(getattr(record, "index_heads", 0) for group in spec.groups for record in group.records) else set()
    for dtype in kv:
        if dtype not in COMPUTE:
            units.add("fp8" if dtype.name in ("fp8", "nvfp4", "mxfp4") else "int8")
    return tuple(sorted(units))


def kv_types(request: PlanRequest) -> tuple[KvTypes, tuple[Notice, ...]]:
    """The types asked for, else the file's where the engine obeys it, else the engine's own."""
    spec, file = request.spec, request.spec.quantization
    plain = request.engine.auto_kv(spec)
    if request.kv is not None or file is None or not file.kv_key:
        return request.kv or plain, ()
    if file.kv_dtype is None:
        text = f"{spec.source} sets {file.kv_key} to {file.kv_why}, for which kvcli has no rule: the cache is planned in {plain.label}"
        return plain, (Notice("kv_dtype_not_modelled", text),)
    if not request.engine.obeys_file:
        text = f"{spec.source} asks for a {file.kv_dtype.name} cache ({file.kv_key}), which {request.engine.name} does not obey"
        return plain, (Notice("kv_dtype_of_file", text),)
    text = f"the cache is {file.kv_dtype.name} because {spec.source} says so ({file.kv_key}): --kv-dtype changes it"
    return KvTypes(file.kv_dtype, file.kv_dtype), (Notice("kv_dtype_of_file", text),)


def _encoder_notice(spec: ModelSpec, workload: Workload) -> list[Notice]:
    cross = [record for group in spec.groups for record in group.records if record.kind == "cross_attention"]
    if workload.encoder_tokens or all(getattr(record, "default_tokens", 0) for record in cross):
        return []
    text = "the cross-attention cache depends on the encoder's tokens and is not counted: --encoder-tokens gives them"
    return [Notice("encoder_tokens_missing", text)]


def _cache(request: PlanRequest, kv: KvTypes, stored: Stored, shared: Shared | None) -> CachePlan:
    spec, workload = request.spec, request.workload
    n, batch = workload.context_tokens, workload.batch_size
    most = max(each.stored_bytes for each in shared.on_devices) if shared else stored.total_bytes
    records = [(group, record) for group in spec.groups for record in group.records]
    rows = tuple(_row(*pair, request, kv, size) for pair, size in zip(records, stored.rows, strict=True))
    state = sum(row.state_bytes for row in rows)
    return CachePlan(
        kv=kv,
        engine=request.engine.name,
        engine_version=request.engine.version,
        rows=rows,
        bytes_per_token=cache_bytes(spec.groups, n, kv) - cache_bytes(spec.groups, n - 1, kv),
        needed_bytes=sum(row.needed_bytes for row in rows),
        state_bytes=state,
        stored_bytes=stored.total_bytes,
        stored_bytes_per_device=most,
        causes=stored.causes,
        blocks=stored.blocks,
        block_tokens=stored.block_tokens,
        notices=stored.notices,
        # states are read and written whole by every step
        read_bytes_per_step=max(0, batch_read_bytes(spec, n, batch, workload.shared_prefix_tokens, kv) + state - stored.narrower_bytes),
        written_bytes_per_step=batch * written_bytes(spec.groups, kv) + sum(r.state_bytes for r in rows if r.kind != "cross_attention"),
    )


def _row(group: LayerGroup, record: CacheRecord, request: PlanRequest, kv: KvTypes, stored_bytes: int) -> CacheRow:
    workload, dtype = request.workload, request.spec.dtype
    n, sequences = workload.context_tokens, workload.batch_size * group.count
    needed = record.needed_bytes(n, kv)
    state = record.state_bytes(dtype, workload.encoder_tokens)
    return CacheRow(
        kind=record.kind,
        count=group.count,
        window_tokens=record.window_tokens,
        bytes_per_token=sequences * (needed - record.needed_bytes(n - 1, kv)),
        needed_bytes=sequences * needed,
        state_bytes=sequences * state,
        stored_bytes=stored_bytes,
        formula=row_formula(record, group.count, workload, kv, dtype),
    )


#: what floors say of links
_LINKS = "of what devices send each other floors count at most the least that a decode step must receive, so they may be low"


def _device_notices(device: Accelerator, weights: WeightBytes, shared: Shared | None, host_rate: float) -> list[Notice]:
    notices = []
    if device.usable_bytes is None:
        notices = [Notice("unknown_memory", f"{device.id} is sold with different amounts of memory: nothing is said about fitting")]
    if shared is not None and shared.host is not None and host_rate:
        text = "the host's memory is in the floors at the rate given, less what the largest CPU cache could keep"
        notices.append(Notice("host_in_floors", text))
    elif shared is not None and shared.host is not None:
        text = "what is read from the host's memory is not in the floors: nothing is known of its bandwidth (--host-bandwidth)"
        notices.append(Notice("host_not_in_floors", text))
    elif shared is not None:
        notices.append(Notice("links_not_in_floors", _LINKS))
    if device.bandwidth_bound_bytes_per_s and not device.peak(*weights.multiply_units):
        notices.append(Notice("unknown_peak", f"no peak of {device.id} is known for {weights.dtype} weights: floors are bandwidth alone"))
    return notices


def _no_floor(device: Accelerator, step_read_bytes: int) -> Notice:
    """Says why there is no floor, and what a step would take at a rate that was measured, which may be exceeded."""
    text = f"no rate is known that {device.id} cannot exceed, so there is no floor; --bandwidth gives one, channels x MT/s x 8 B of a CPU"
    if rate := device.bandwidth_measured_bytes_per_s:
        text += (
            f"; reading {step_read_bytes:,} B at the {rate / 1e9:,.1f} GB/s measured on {device.measured_on} takes "
            f"{step_read_bytes / rate * 1e3:,.4g} ms, an estimate of a decode step"
        )
    return Notice("no_bandwidth_bound", text)
