"""The plan: one frozen answer that every command, record and report shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.errors import Notice
from kvcli.ledger import Basis, Formula, Ledger, Line, Unit
from kvcli.model.layers import LayerGroup, cache_bytes
from kvcli.model.spec import ModelSpec
from kvcli.plan.floors import Latency, latency
from kvcli.plan.request import PlanRequest
from kvcli.plan.weights import WeightBytes, weight_bytes
from kvcli.plan.workload import Workload

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One group of identical layers. Bytes are totals over its `count` layers and all sequences."""

    kind: str
    count: int
    window_tokens: int | None
    bytes_per_token: int
    needed_bytes: int
    state_bytes: int
    stored_bytes: int
    formula: Formula


class CachePlan(NamedTuple):
    """The cache of all sequences. `bytes_per_token` is what the newest token of one sequence added."""

    kv: KvTypes
    engine: str
    engine_version: str
    rows: tuple[CacheRow, ...]
    bytes_per_token: int
    needed_bytes: int
    state_bytes: int
    stored_bytes: int
    read_bytes_per_step: int
    written_bytes_per_step: int


class MemoryPlan(NamedTuple):
    """Weights and cache against what the device has. `headroom_bytes` is negative on a misfit."""

    ledger: Ledger
    total_bytes: int
    usable_bytes: int
    usable_basis: str
    headroom_bytes: int
    fits: bool


class Plan(NamedTuple):
    spec: ModelSpec
    workload: Workload
    cache: CachePlan
    weights: WeightBytes
    device: Accelerator | None
    memory: MemoryPlan | None
    latency: Latency | None
    notices: tuple[Notice, ...]

    @property
    def total_bytes(self) -> int:
        """Weights in memory and the cache as the engine stores it."""
        return self.weights.resident_bytes + self.cache.stored_bytes


def build(request: PlanRequest) -> Plan:
    """The plan of a request. Pure: no clock, no files, no device is asked.

    Raises BadInput for types that the model's rows or the engine cannot store, NotModelled for weights without a rule.
    """
    spec, workload = request.spec, request.workload
    weights = weight_bytes(spec, request.weights)
    cache = _cache(request, request.kv or KvTypes(spec.dtype, spec.dtype))
    notices = [*spec.notices, *weights.notices]
    if workload.context_tokens > spec.max_context_tokens:
        text = f"{workload.context_tokens:,} tokens are beyond the {spec.max_context_tokens:,} positions {spec.name} was trained for"
        notices.append(Notice("context_beyond_positions", text))
    memory = times = None
    if request.device is not None:
        memory = _memory(spec, weights, cache, request.device)
        times = _latency(spec, workload, cache, weights, request.device)
        notices += _device_notices(request.device, weights)
    return Plan(spec, workload, cache, weights, request.device, memory, times, tuple(notices))


def _cache(request: PlanRequest, kv: KvTypes) -> CachePlan:
    spec, workload = request.spec, request.workload
    n, batch = workload.context_tokens, workload.batch_size
    rows = tuple(_row(group, request, kv) for group in spec.groups)
    needed = sum(row.needed_bytes for row in rows)
    return CachePlan(
        kv=kv,
        engine=request.engine.name,
        engine_version=request.engine.version,
        rows=rows,
        bytes_per_token=cache_bytes(spec.groups, n, kv) - cache_bytes(spec.groups, n - 1, kv),
        needed_bytes=needed,
        state_bytes=sum(row.state_bytes for row in rows),
        stored_bytes=sum(row.stored_bytes for row in rows),
        # a step sees the visible tokens, which is what attention keeps, and adds one token to every layer
        read_bytes_per_step=needed,
        written_bytes_per_step=batch * cache_bytes(spec.groups, 1, kv),
    )


def _row(group: LayerGroup, request: PlanRequest, kv: KvTypes) -> CacheRow:
    attention, n, batch = group.attention, request.workload.context_tokens, request.workload.batch_size
    per_token = attention.token_bytes(kv)
    visible = attention.visible_tokens(n)
    return CacheRow(
        kind=attention.kind,
        count=group.count,
        window_tokens=attention.window_tokens,
        bytes_per_token=group.count * batch * per_token * (visible - attention.visible_tokens(n - 1)),
        needed_bytes=group.count * batch * per_token * visible,
        state_bytes=0,
        stored_bytes=group.count * request.engine.stored_bytes(attention, request.workload, kv),
        formula=Formula(
            "attention_cache",
            (
                ("layers", group.count),
                ("num_key_value_heads", attention.num_key_value_heads),
                ("key_dim", attention.key_dim),
                ("value_dim", attention.value_dim),
                ("visible_tokens", visible),
                ("batch_size", batch),
                ("key_bits", kv.key.bits_per_element),
                ("value_bits", kv.value.bits_per_element),
                ("bytes_per_token_and_layer", per_token),
            ),
        ),
    )


def weights_line(spec: ModelSpec, weights: WeightBytes, item: str) -> Line:
    """The ledger line of the resident (`weights`) or read (`weights_read`) bytes."""
    read = item == "weights_read"
    amount = weights.read_bytes_per_step if read else weights.resident_bytes
    if weights.matrix_dtype is None or weights.other_dtype is None:
        return Line(item, amount, Unit.BYTES, Formula("tensors_of_file", (("bytes", amount),)), Basis.HEADER, spec.source)
    parameters = spec.active_parameters if read else spec.parameters
    terms = (
        ("matrix_parameters", spec.block_matrices),
        ("bits_each", weights.matrix_dtype.bits_per_element),
        ("other_parameters", parameters - spec.block_matrices),
        ("other_bits_each", weights.other_dtype.bits_per_element),
    )
    return Line(item, amount, Unit.BYTES, Formula("weights_read" if read else "weights", terms), weights.basis, spec.source)


def cache_line(cache: CachePlan, item: str, amount: int) -> Line:
    basis = Basis.FORMULA if cache.engine == "ideal" else Basis.ENGINE_RULE
    terms = tuple((f"{row.kind}_bytes", row.stored_bytes if item == "kv_cache" else row.needed_bytes) for row in cache.rows)
    return Line(item, amount, Unit.BYTES, Formula("sum_of_layers", terms), basis, cache.engine)


def _memory(spec: ModelSpec, weights: WeightBytes, cache: CachePlan, device: Accelerator) -> MemoryPlan | None:
    if device.usable_bytes is None:
        return None
    total = weights.resident_bytes + cache.stored_bytes
    lines = (weights_line(spec, weights, "weights"), cache_line(cache, "kv_cache", cache.stored_bytes))
    headroom = device.usable_bytes - total
    return MemoryPlan(Ledger(lines), total, device.usable_bytes, device.usable_basis, headroom, headroom >= 0)


def _latency(spec: ModelSpec, workload: Workload, cache: CachePlan, weights: WeightBytes, device: Accelerator) -> Latency:
    read = cache_line(cache, "kv_read", cache.read_bytes_per_step)
    return latency(spec, workload, weights_line(spec, weights, "weights_read"), read, device, weights.multiply_units)


def _device_notices(device: Accelerator, weights: WeightBytes) -> list[Notice]:
    notices = [Notice("overheads_not_counted", "memory counts weights and cache; activations, device context and graphs come on top")]
    if device.usable_bytes is None:
        notices = [Notice("unknown_memory", f"{device.id} is sold with different amounts of memory: nothing is said about fitting")]
    if not device.peak(*weights.multiply_units):
        notices.append(Notice("unknown_peak", f"no peak of {device.id} is known for {weights.dtype} weights: floors are bandwidth alone"))
    return notices
