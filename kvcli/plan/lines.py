"""The ledger of a plan: its lines, and the floors. The memory budget is in `budget/`."""

from __future__ import annotations

from kvcli.hardware.accelerators import Accelerator
from kvcli.ledger import Basis, Formula, Line, Unit
from kvcli.model.spec import ModelSpec
from kvcli.plan.cache import CachePlan
from kvcli.plan.drafter import DraftPlan
from kvcli.plan.floors import cache_bytes
from kvcli.plan.mixes.names import RULE
from kvcli.plan.sharing.shared import Shared
from kvcli.plan.time.chain import steps_of
from kvcli.plan.time.latency import Latency
from kvcli.plan.time.steps import Steps
from kvcli.plan.weights import WeightBytes
from kvcli.plan.workload import Workload


def weights_line(spec: ModelSpec, weights: WeightBytes, item: str, shared: Shared | None = None) -> Line:
    """The ledger line of the resident (`weights`) or read (`weights_read`) bytes."""
    read = item == "weights_read"
    if shared is not None:
        return _shared_line(shared, item)
    amount = weights.read_bytes_per_step if read else weights.resident_bytes
    if weights.quantized is not None:
        return Line(item, amount, Unit.BYTES, weights.quantized_formula(spec, read), weights.basis, spec.source)
    if weights.mixed is not None:
        return Line(item, amount, Unit.BYTES, weights.mixed_formula(read), weights.basis, RULE)
    if weights.matrix_dtype is None or weights.other_dtype is None:
        return Line(item, amount, Unit.BYTES, Formula("tensors_of_file", (("bytes", amount),)), Basis.HEADER, spec.source)
    parameters = spec.step_parameters if read else spec.parameters
    matrices = spec.active_matrices - spec.shared if read else spec.block_matrices
    terms = (
        ("matrix_parameters", matrices),
        ("bits_each", weights.matrix_dtype.bits_per_element),
        ("other_parameters", parameters - matrices),
        ("other_bits_each", weights.other_dtype.bits_per_element),
    )
    return Line(item, amount, Unit.BYTES, Formula("weights_read" if read else "weights", terms), weights.basis, spec.source)


def _shared_line(shared: Shared, item: str) -> Line:
    """Of the fullest device, or of the busiest one of each stage, since a token passes all stages."""
    if item == "weights":
        size = shared.fullest.weights_bytes
        return Line(item, size, Unit.BYTES, Formula("device_weights", (("devices", shared.split.devices), ("bytes", size))))
    terms = tuple((f"stage_{number}", each.weights_read_bytes) for number, each in enumerate(shared.chain, 1))
    return Line(item, sum(size for _, size in terms), Unit.BYTES, Formula("sum_of_stages", terms))


def cache_line(cache: CachePlan, item: str, amount: int, shared: Shared | None = None) -> Line:
    """The ledger line of what the engine stores (`kv_cache`) or of what a step reads (`kv_read`)."""
    if item == "kv_cache" and shared is not None:
        numbers = (("devices", shared.split.devices), ("bytes", amount), ("all_bytes", cache.stored_bytes))
        return Line(item, amount, Unit.BYTES, Formula("device_cache", numbers), Basis.ENGINE_RULE, cache.engine)
    if item == "kv_cache":
        terms = tuple((f"{row.kind}_bytes", row.stored_bytes) for row in cache.rows)
        basis = Basis.FORMULA if cache.engine == "ideal" else Basis.ENGINE_RULE
        return Line(item, amount, Unit.BYTES, Formula("sum_of_layers", terms), basis, cache.engine)
    terms = (("needed_bytes", cache.needed_bytes), ("state_bytes", cache.state_bytes), ("read_bytes", amount))
    return Line(item, amount, Unit.BYTES, Formula("cache_read", terms))


def draft_lines(draft: DraftPlan, shared: Shared | None = None) -> tuple[Line, ...]:
    """The ledger lines of what a drafter adds, of the fullest device; none where tokens are looked up in the text."""
    drafter = draft.speculation.drafter
    if drafter is None:
        return ()
    weights, stored = (draft.weights_bytes, draft.stored_bytes) if shared is None else shared.fullest.draft[:2]
    terms = (("drafted_tokens", draft.speculation.drafted), ("parameters", drafter.parameters))
    return (
        Line("draft_weights", weights, Unit.BYTES, Formula("draft_weights", terms), source=drafter.name),
        Line("draft_kv_cache", stored, Unit.BYTES, Formula("draft_cache", terms), source=drafter.name),
    )


def latency_on(
    spec: ModelSpec,
    workload: Workload,
    weights: WeightBytes,
    cache: CachePlan,
    shared: Shared | None,
    device: Accelerator,
    draft: DraftPlan | None = None,
    host_bytes_per_s: float = 0.0,
) -> Latency:
    """Floors of a workload on a device, or on as many of them as share the model.

    Under speculative decoding a step checks the drafted tokens and the one after them at once, and something drafted them: at least
    one pass of the drafter.
    """
    steps = steps_of(spec, workload, weights, cache, shared, device, draft, host_bytes_per_s)
    tokens, batch = workload.context_tokens, workload.batch_size
    amount = cache.read_bytes_per_step if shared is None else steps.cache_read_bytes(tokens, batch)
    reads = [weights_line(spec, weights, "weights_read", shared), cache_line(cache, "kv_read", amount)]
    if draft is not None and draft.read_bytes_per_draft:
        numbers = (("bytes", draft.read_bytes_per_draft),)
        reads.append(Line("draft_read", draft.read_bytes_per_draft, Unit.BYTES, Formula("draft_read", numbers)))
    decode = steps.decode(tuple(reads))
    peak, rate = device.peak(*steps.units), device.bandwidth_bytes_per_s
    times = Latency(
        decode=decode,
        prefill=steps.prefill(reads[0], batch),
        arithmetic_intensity=steps.intensity(tokens, batch),
        ridge=peak / rate if peak and rate else None,
        ridge_of_bounds=steps.peak_flops / device.bandwidth_bound_bytes_per_s if peak else None,
        tokens_per_step=steps.tokens,
        steps=steps,
    )
    if shared is None or not batch % shared.split.data:
        return times
    return times._replace(tokens_per_s=_uneven_rate(times, steps, shared))


def _uneven_rate(times: Latency, steps: Steps, shared: Shared) -> float:
    """Tokens a second of replicas that do not wait for each other: those with a sequence fewer have shorter steps."""
    batch, device = steps.work.batch_size, steps.device
    fewest, more = divmod(batch, shared.split.data)
    rate = more * (fewest + 1) / times.decode.seconds if times.decode.seconds else float("inf")
    if not fewest:
        return rate * times.tokens_per_step
    idle = shared.idle_chain
    moved = sum(each.weights_read_bytes for each in idle) + sum(each.cache_read_bytes for each in idle) // steps.batches(batch)
    # only bytes: a floor of their step that may be low makes the rate's ceiling high, which it may be
    memory_s = (moved - steps.chain.stages * cache_bytes(device)) / device.bandwidth_bound_bytes_per_s
    rate += (shared.split.data - more) * fewest / memory_s if memory_s > 0 else float("inf")
    return rate * times.tokens_per_step
