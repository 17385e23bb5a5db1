"""`--solve`: the largest or smallest value of one quantity with which a plan fits and meets what else is required.

Every answer is a plan that was built and passed, beside one that was built and did not: no formula is inverted, so pages, groups,
replicas and windows count as they do in any plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvcli.dtypes import PLAIN, KvTypes
from kvcli.errors import BadInput, KvcliError, NotModelled
from kvcli.hardware.accelerators import Accelerator, table
from kvcli.model.latent_records import Compressed
from kvcli.plan.answers.search import Goal, Solved, largest, misses, quietly
from kvcli.plan.answers.solve_devices import fewest_devices, fewest_moe_layers, fewest_ranks, most_layers
from kvcli.plan.build import build
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.offload import Offload
from kvcli.units import plural

UNKNOWNS = ("ctx", "batch", "devices", "tp", "kv-dtype", "device", "ngl", "n-cpu-moe")
#: More sequences than one instance serves.
MOST_SEQUENCES = 2**20


def solve(request: PlanRequest, unknown: str, goal: Goal, parts: tuple[Accelerator, ...] = ()) -> Solved:
    """`parts` of the user are ranked with those of the table.

    Raises BadInput for an unknown that cannot be solved for here, NotModelled where no plan of the kind can be built at all.
    """
    if unknown != "device" and (request.device is None or request.device.usable_bytes is None):
        raise BadInput(f"--solve {unknown} needs a --device of known memory", hint="--device h100-sxm5-80", code="device_missing")
    found = _device(request, goal, parts) if unknown == "device" else _SOLVERS[unknown](request, goal)
    return found._replace(request=_solving(request, found))


def _solving(request: PlanRequest, found: Solved) -> PlanRequest | None:
    """The request whose plan passed."""
    plan, value = found.plan, found.value
    if plan is None or value is None:
        return None
    made = request._replace(workload=plan.workload, device=plan.device)
    if found.unknown == "kv-dtype":
        return made._replace(kv=plan.cache.kv)
    if found.split is not None:
        return made._replace(split=found.split)
    if isinstance(value, int) and found.unknown in ("ngl", "n-cpu-moe"):
        own = request.offload or Offload()
        return made._replace(offload=own._replace(layers=value) if found.unknown == "ngl" else own._replace(moe_layers=value))
    return made


def context_peaks(request: PlanRequest, tokens: int) -> tuple[int, ...]:
    """Lengths up to `tokens` at which a sequence may take more than at `tokens`: before a chunk or an entry closes."""
    found = {tokens}
    for group in request.spec.groups:
        for record in group.records:
            chunk = getattr(record, "chunk_tokens", None)
            if chunk and tokens > chunk:
                found.add(tokens // chunk * chunk)
            if isinstance(record, Compressed) and record.ratio and tokens >= record.ratio:
                found.add((tokens + 1) // record.ratio * record.ratio - 1)
    return tuple(sorted(length for length in found if length > 0))


def at_context(request: PlanRequest, tokens: int) -> PlanRequest:
    """The same with another context; a prompt that was as long as it stays so."""
    work = request.workload
    prompt = min(work.prompt_tokens, tokens - (work.new_tokens - 1))
    return request._replace(workload=work._replace(context_tokens=tokens, prompt_tokens=prompt))


def _context(request: PlanRequest, goal: Goal) -> Solved:
    """A sequence grows through all lengths, so each of them must pass."""

    def passes(tokens: int) -> str:
        return next((why for length in context_peaks(request, tokens) if (why := goal.failing(build(at_context(request, length))))), "")

    work = request.workload
    trained = request.spec.max_context_tokens
    # who asks for more than the model was trained for gets an answer there
    longest = max(trained, work.context_tokens)
    least = min(longest, max(1, work.shared_prefix_tokens + 1, work.uncached_tokens, work.new_tokens))
    value, why = largest(passes, least, longest)
    if value < least:
        plan = build(at_context(request, least))
        shortest = "one token passes" if least == 1 else f"{least:,} tokens pass"
        return Solved("ctx", None, None, plan, why, f"not even {shortest}: {misses(plan, why)}")
    plan = build(at_context(request, value))
    if not why and longest > trained:
        return Solved("ctx", value, plan, None, "search limit", f"{longest:,} tokens pass, and more were not asked for")
    if not why:
        return Solved("ctx", value, plan, None, "trained positions", f"the model was trained for {longest:,} tokens, and all of them pass")
    beyond = build(at_context(request, value + 1))
    return Solved("ctx", value, plan, beyond, why, f"one token more: {misses(beyond, why)}")


def at_batch(request: PlanRequest, sequences: int) -> PlanRequest:
    return request._replace(workload=request.workload._replace(batch_size=sequences))


def _batch(request: PlanRequest, goal: Goal) -> Solved:
    bound = ""

    def passes(sequences: int) -> str:
        nonlocal bound
        try:
            return next((why for each in _grown(request, sequences) if (why := goal.failing(each))), "")
        except BadInput as error:  # an engine's own bound, as llama.cpp's slots
            bound = error.message
            return "engine"

    running = request.budget.sequences if request.budget else None
    value, why = largest(passes, 1, running or MOST_SEQUENCES)
    if not value:
        plan = build(at_batch(request, 1))
        return Solved("batch", None, None, plan, why, f"not even one sequence passes: {misses(plan, why)}")
    plan = build(at_batch(request, value))
    if not why and running:
        most = f"the scheduler runs {plural(running, 'sequence')} together" + (", and all of them pass" if running > 1 else "")
        return Solved("batch", value, plan, None, "max sequences", most)
    if not why:
        return Solved("batch", value, plan, None, "search limit", f"{value:,} sequences pass, and more are not tried")
    if why == "engine":
        return Solved("batch", value, plan, None, why, bound)
    beyond = build(at_batch(request, value + 1))
    return Solved("batch", value, plan, beyond, why, f"one sequence more: {misses(beyond, why)}")


def _grown(request: PlanRequest, sequences: int) -> Iterator[Plan]:
    for length in context_peaks(request, request.workload.context_tokens):
        yield build(at_batch(at_context(request, length), sequences))


#: From most bits to fewest; of equal bits the float first.
KV_ORDER = ("bf16", "fp16", "q8_0", "fp8", "int8", "q5_1", "q5_0", "q4_1", "nvfp4", "q4_0", "iq4_nl", "int4")


def _kv_dtype(request: PlanRequest, goal: Goal) -> Solved:
    """The widest type of the cache that passes, of those that the engine keeps; its own first."""
    last, why = None, ""
    for types in kv_types(request):
        plan = quietly(request._replace(kv=types))
        if isinstance(plan, KvcliError):
            continue
        why = goal.failing(plan)
        if not why:
            reason = "the engine's own type passes" if last is None else f"wider: {misses(last, goal.failing(last))}"
            return Solved("kv-dtype", plan.cache.kv.label, plan, last, goal.failing(last) if last else "none", reason)
        last = plan
    if last is None:
        raise NotModelled(f"{request.engine.name} keeps {request.spec.name} in none of the types kvcli tries", code="no_storage_rule")
    return Solved("kv-dtype", None, None, last, why, f"not even {last.cache.kv.label} passes: {misses(last, why)}")


def kv_types(request: PlanRequest) -> Iterator[KvTypes | None]:
    """The type a plan takes by itself, then narrower ones."""
    yield None
    own = build(request._replace(kv=None)).cache.kv.key.bits_per_element
    for name in KV_ORDER:
        if PLAIN[name].bits_per_element < own:
            yield KvTypes(PLAIN[name], PLAIN[name])


def _device(request: PlanRequest, goal: Goal, own: tuple[Accelerator, ...]) -> Solved:
    """All parts that pass, the smallest memory first, of equal memory the slowest. Parts of which a rate that a limit on time depends on
    is not known are named apart: nothing refutes them."""
    found: list[Plan] = []
    unproven: list[str] = []
    asked = {each.quantity for each in goal.requirements}
    parts = {part.id: part for part in (*table(), *own)}
    for part in sorted(parts.values(), key=lambda part: (part.usable_bytes or 0, part.bandwidth_bytes_per_s)):
        if part.usable_bytes is None:
            continue
        plan = build(request._replace(device=part))
        # a prompt's time is mostly arithmetic's, a step's mostly the memory's
        unknown = "ttft" in asked and not part.peak(*plan.weights.multiply_units)
        if unknown or (plan.latency is None and asked & {"ttft", "tpot"}):
            unproven += [part.id] if plan.memory is not None and plan.memory.fits else []
        elif not goal.failing(plan):
            found.append(plan)
    names = tuple(plan.device.id for plan in found if plan.device)
    apart = f"; of {', '.join(unproven)} too little is known to refute or to rank them" if unproven else ""
    if not found:
        return Solved("device", None, None, None, "memory", f"no part of the table passes{apart}")
    maybe = [plan.device.id for plan in found if plan.device and plan.memory and plan.memory.condition]
    low = f"; only if overheads stay low: {', '.join(maybe)}" if maybe else ""
    many = "1 part passes" if len(names) == 1 else f"{len(names)} parts pass, the one with least memory first"
    return Solved("device", names, found[0], None, "memory", f"{many}{low}{apart}")


_SOLVERS: dict[str, Callable[[PlanRequest, Goal], Solved]] = {
    "ctx": _context,
    "batch": _batch,
    "devices": fewest_devices,
    "tp": fewest_ranks,
    "kv-dtype": _kv_dtype,
    "ngl": most_layers,
    "n-cpu-moe": fewest_moe_layers,
}
