"""Floors: times that no correct execution beats.

A floor is the larger of bytes / bandwidth and FLOPs / peak, never their sum, since memory and arithmetic overlap. It
counts no byte that need not move: no input table, no token outside a window, nothing that stays in the last-level cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kvcli.ledger import Basis, Formula, Ledger, Line, Unit
from kvcli.model.layers import LayerGroup
from kvcli.model.spec import ModelSpec
from kvcli.plan.workload import Workload

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator


def decode_flops(spec: ModelSpec, workload: Workload) -> int:
    """FLOPs of one decode step of the whole batch: 2 x (active layer matrices + head) + what each record computes."""
    return workload.batch_size * (2 * (spec.active_matrices + spec.head_matrix) + _step_flops(spec, workload))


def _step_flops(spec: ModelSpec, workload: Workload) -> int:
    """Of one sequence, beside the matrices: scores, sums and states."""
    n, m = workload.context_tokens, workload.encoder_tokens
    return sum(group.count * record.step_flops(n, m) for group in spec.groups for record in group.records)


def forward_flops(spec: ModelSpec, cached_tokens: int, new_tokens: int, logit_rows: int = 1, encoder_tokens: int = 0) -> int:
    """FLOPs of one causal forward of one sequence, as most code runs it: every layer computes every token."""
    return (
        2 * new_tokens * spec.active_matrices
        + 2 * logit_rows * spec.head_matrix
        + _pass_flops(spec.groups, cached_tokens, new_tokens, encoder_tokens)
    )


def _pass_flops(groups: Iterable[LayerGroup], cached: int, new: int, encoder_tokens: int) -> int:
    return sum(group.count * record.pass_flops(cached, new, encoder_tokens) for group in groups for record in group.records)


def prefill_floor_flops(spec: ModelSpec, prompt_tokens: int, encoder_tokens: int = 0) -> int:
    """FLOPs without which one prompt's first token cannot be known.

    Only the last token's logits are wanted. From the top down, a layer whose output is wanted for its last m tokens needs K and
    V of the tokens these see: all of them, or the last m + w - 1 under a window; and so many outputs of the layer below. What a
    recurrent mixer needs for its state is not told apart from its output and is counted for m tokens: a floor may be low.
    """
    total, wanted = 2 * (spec.head_matrix + spec.shared), 1
    remaining = [group.count for group in spec.groups]
    for number in reversed(spec.order):
        if wanted == prompt_tokens:
            break
        remaining[number] -= 1
        cost, wanted = _cone(spec.groups[number], prompt_tokens, wanted, encoder_tokens)
        total += cost
    return total + sum(
        count * _cone(group, prompt_tokens, prompt_tokens, encoder_tokens)[0]
        for group, count in zip(spec.groups, remaining, strict=True)
        if count
    )


def _cone(group: LayerGroup, prompt: int, wanted: int, encoder_tokens: int) -> tuple[int, int]:
    """FLOPs of one layer whose last `wanted` outputs are needed, and how many outputs of the layer below that takes."""
    seen = max([wanted, *(record.seen_tokens(prompt, wanted) for record in group.records)])
    parameters = group.parameters
    matrices = wanted * (parameters.active_matrices - parameters.key_value) + seen * parameters.key_value
    return 2 * matrices + sum(r.pass_flops(prompt - wanted, wanted, encoder_tokens) for r in group.records), seen


class Chain(NamedTuple):
    """Devices that a token passes: `stages` one after another, each of `ranks` side by side, in `replicas`; a stage works on one
    of `batches` parts of a replica's sequences at a time.
    """

    ranks: int = 1
    stages: int = 1
    replicas: int = 1
    batches: int = 1


ONE = Chain()


class Floor(NamedTuple):
    """One floor in seconds, what it is made of, and which of its terms binds."""

    seconds: float
    bound: str
    lines: tuple[Line, ...]


class Latency(NamedTuple):
    """Floors of a decode step and of a prefill. A step can emit at most `tokens_per_step` tokens of each sequence;
    `tokens_per_s` is the ceiling where replicas differ in their number of sequences."""

    decode: Floor
    prefill: Floor
    arithmetic_intensity: float
    ridge: float | None
    tokens_per_step: int = 1
    tokens_per_s: float | None = None

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.decode.lines + self.prefill.lines)


def bandwidth_floor_s(moved_bytes: int, bytes_per_s: float) -> float:
    return moved_bytes / bytes_per_s


def floor_terms(
    moved_bytes: int, flops: int, device: Accelerator, units: tuple[str, ...], caches: int = 1, devices: int = 1
) -> tuple[float, float]:
    """Seconds of the bytes that do not fit the last-level caches, and of the FLOPs; the floor is the larger. An unknown peak is 0."""
    uncached = max(0, moved_bytes - caches * device.last_level_cache_bytes)
    peak = devices * device.peak(*units)
    return bandwidth_floor_s(uncached, device.bandwidth_bound_bytes_per_s), flops / peak if peak else 0.0


def floor(
    phase: str, parts: tuple[Line, ...], flops: Line, device: Accelerator, units: tuple[str, ...], caches: int = 1, devices: int = 1
) -> Floor:
    """The larger of the time for the bytes of `parts`, less what fits the last-level caches, and the time for `flops` on `devices`."""
    total = sum(int(line.amount) for line in parts)
    cached = min(total, caches * device.last_level_cache_bytes)
    rate, peak = device.bandwidth_bound_bytes_per_s, devices * device.peak(*units)
    source = device.id
    all_memory_s = bandwidth_floor_s(total, rate)
    memory_s, compute_s = floor_terms(total, int(flops.amount), device, units, caches, devices)
    seconds = max(memory_s, compute_s)
    terms = (("bytes", total), ("bytes_per_s", rate))
    lines = (
        *parts,
        Line(f"{phase}_bandwidth_uncached", all_memory_s, Unit.SECONDS, Formula("bytes_over_bandwidth", terms), Basis.FORMULA, source),
        Line(f"{phase}_last_level_cache", -cached, Unit.BYTES, Formula("last_level_cache", (("bytes", -cached),)), Basis.CONSTANT, source),
        Line(
            f"{phase}_bandwidth",
            memory_s,
            Unit.SECONDS,
            Formula("bytes_over_bandwidth", (("bytes", total - cached), ("bytes_per_s", rate))),
            Basis.FORMULA,
            source,
        ),
        flops,
        Line(
            f"{phase}_compute",
            compute_s,
            Unit.SECONDS,
            Formula("flops_over_peak", (("flops", flops.amount), ("flops_per_s", peak))),
            Basis.FORMULA,
            source,
        ),
        Line(
            f"{phase}_floor",
            seconds,
            Unit.SECONDS,
            Formula("larger_of", (("bandwidth_s", memory_s), ("compute_s", compute_s))),
        ),
    )
    return Floor(seconds, "memory" if memory_s >= compute_s else "compute", lines)


def latency(
    spec: ModelSpec,
    workload: Workload,
    reads: tuple[Line, ...],
    device: Accelerator,
    units: tuple[str, ...],
    chain: Chain = ONE,
    tokens: int = 1,
) -> Latency:
    """Both floors of a workload on a device, or on a chain of them.

    The read lines are then of the busiest device of each stage, summed, since a token passes the stages in turn; FLOPs are shared
    by all devices of a replica, which may be at work on other sequences. `reads` are weights, cache and a drafter's, in this order;
    a step computes `tokens` of each sequence.
    """
    step, prompt = _decode_line(spec, workload, tokens), _prefill_line(spec, workload)
    peak, rate = device.peak(*units), device.bandwidth_bound_bytes_per_s
    # sequences of other replicas are computed elsewhere, those of other batches meanwhile
    at_work = chain.ranks * chain.replicas * chain.batches
    everyone = chain.ranks * chain.replicas * chain.stages
    prefill_read = reads[0]._replace(item="prefill_weights_read")
    return Latency(
        decode=floor("decode", reads, step, device, units, chain.stages, at_work),
        prefill=floor("prefill", (prefill_read,), prompt, device, units, chain.stages, everyone),
        arithmetic_intensity=step.amount / at_work / max(1, sum(line.amount for line in reads)),
        ridge=peak / rate if peak else None,
        tokens_per_step=tokens,
    )


def _decode_line(spec: ModelSpec, workload: Workload, tokens: int) -> Line:
    total = tokens * decode_flops(spec, workload)
    terms = (
        ("batch_size", tokens * workload.batch_size),
        ("active_matrices", spec.active_matrices),
        ("head_matrix", spec.head_matrix),
        ("attention_flops", _step_flops(spec, workload)),
    )
    return Line("decode_flops", total, Unit.FLOPS, Formula("decode_flops", terms))


def _prefill_line(spec: ModelSpec, workload: Workload) -> Line:
    tokens, encoder = workload.prefill_tokens, workload.encoder_tokens
    floor_flops = prefill_floor_flops(spec, tokens, encoder)
    terms = (
        ("batch_size", workload.batch_size),
        ("tokens", tokens),
        ("active_matrices", spec.active_matrices),
        ("head_matrix", spec.head_matrix),
        ("attention_flops", _pass_flops(spec.groups, 0, tokens, encoder)),
        ("spared_flops", forward_flops(spec, 0, tokens, 1, encoder) - floor_flops),
    )
    return Line("prefill_flops", workload.batch_size * floor_flops, Unit.FLOPS, Formula("prefill_flops", terms))
