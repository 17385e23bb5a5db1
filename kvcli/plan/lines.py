"""The ledger of a plan: its lines, and the floors. The memory budget is in `budget/`."""

from __future__ import annotations

from kvcli.hardware.accelerators import Accelerator
from kvcli.ledger import Basis, Formula, Line, Unit
from kvcli.model.spec import ModelSpec
from kvcli.plan.floors import ONE, Chain, Latency, latency
from kvcli.plan.gguf_names import RULE
from kvcli.plan.plan import CachePlan
from kvcli.plan.sharing.shared import Shared
from kvcli.plan.speculative import DraftPlan
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


def draft_lines(draft: DraftPlan) -> tuple[Line, ...]:
    """The ledger lines of what a drafter adds; none where tokens are looked up in the text."""
    drafter = draft.speculation.drafter
    if drafter is None:
        return ()
    terms = (("drafted_tokens", draft.speculation.drafted), ("parameters", drafter.parameters))
    return (
        Line("draft_weights", draft.weights_bytes, Unit.BYTES, Formula("draft_weights", terms), source=drafter.name),
        Line("draft_kv_cache", draft.stored_bytes, Unit.BYTES, Formula("draft_cache", terms), source=drafter.name),
    )


def latency_on(
    spec: ModelSpec,
    workload: Workload,
    weights: WeightBytes,
    cache: CachePlan,
    shared: Shared | None,
    device: Accelerator,
    draft: DraftPlan | None = None,
) -> Latency:
    """Floors of a workload on a device, or on as many of them as share the model.

    Under speculative decoding a step checks the drafted tokens and the one after them at once, and something drafted them: at least
    one pass of the drafter.
    """
    chain = ONE if shared is None else _chain(workload, shared)
    amount = cache.read_bytes_per_step if shared is None else sum(each.cache_read_bytes for each in shared.chain) // chain.batches
    read = cache_line(cache, "kv_read", amount)
    reads = [weights_line(spec, weights, "weights_read", shared), read]
    if draft is not None and shared is None and draft.read_bytes_per_draft:
        numbers = (("bytes", draft.read_bytes_per_draft),)
        reads.append(Line("draft_read", draft.read_bytes_per_draft, Unit.BYTES, Formula("draft_read", numbers)))
    tokens = 1 + (draft.speculation.drafted if draft else 0)
    return latency(spec, workload, tuple(reads), device, weights.multiply_units, chain, tokens)


def _chain(workload: Workload, shared: Shared) -> Chain:
    """Stages work on batches of their own at a time, at most one for each sequence."""
    split = shared.split
    sequences = -(-workload.batch_size // split.data)
    return Chain(split.tensor, split.pipeline, split.data, min(split.pipeline, sequences))
