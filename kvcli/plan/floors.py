"""Floors: times that no correct execution beats.

A floor is the larger of bytes / bandwidth and FLOPs / peak, never their sum, since memory and arithmetic overlap. It
counts no byte that need not move: no input table, no token outside a window, nothing that stays in the last-level cache.
Correct means: computes what the model defines in the types that the plan names, reads each active matrix whole, and shares between
sequences what the workload says is shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kvcli.ledger import Basis, Formula, Line, Unit
from kvcli.model.latent_records import Latent
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


def prefill_floor_flops(spec: ModelSpec, prompt_tokens: int, encoder_tokens: int = 0, uncached_tokens: int = 0) -> int:
    """FLOPs without which one prompt's first token cannot be known, where its last `uncached_tokens` (0: all) are not in the cache.

    Only the last token's logits are wanted. From the top down, a layer whose output is wanted for its last m tokens needs K and
    V of the tokens these see: all of them, or the last m + w - 1 under a window, less those in the cache; and so many outputs of the
    layer below. What a recurrent mixer needs for its state is not told apart from its output and is counted for m tokens: a floor
    may be low.
    """
    total, wanted, new = 2 * (spec.head_matrix + spec.shared), 1, uncached_tokens or prompt_tokens
    remaining = [group.count for group in spec.groups]
    for number in reversed(spec.order):
        if wanted == new:
            break
        remaining[number] -= 1
        cost, wanted = _cone(spec.groups[number], prompt_tokens, new, wanted, encoder_tokens)
        total += cost
    return total + sum(
        count * _cone(group, prompt_tokens, new, new, encoder_tokens)[0]
        for group, count in zip(spec.groups, remaining, strict=True)
        if count
    )


def _cone(group: LayerGroup, prompt: int, new: int, wanted: int, encoder_tokens: int) -> tuple[int, int]:
    """FLOPs of one layer whose last `wanted` outputs are needed, and how many outputs of the layer below that takes."""
    seen = min(new, max([wanted, *(record.seen_tokens(prompt, wanted) for record in group.records)]))
    parameters = group.parameters
    # latent rows can be attended over unexpanded: then each query, not each row, is multiplied with the expansion
    expansion = sum(record.expansion for record in group.records if isinstance(record, Latent))
    rows = max(0, parameters.key_value - expansion)
    matrices = wanted * (parameters.active_matrices - rows) + seen * rows
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


class Path(NamedTuple):
    """Another way that bytes take beside a device's own memory, at `bytes_per_s` at most: `link` or `host_memory`."""

    name: str
    line: Line
    bytes_per_s: float
    source: str = ""
    basis: Basis = Basis.CONSTANT

    @property
    def seconds(self) -> float:
        return bandwidth_floor_s(int(self.line.amount), self.bytes_per_s)


def bandwidth_floor_s(moved_bytes: int, bytes_per_s: float) -> float:
    return moved_bytes / bytes_per_s


#: The most that any server CPU keeps on chip (EPYC 9684X: 1,152 MiB); rows of CPU platforms do not say which CPU is in them.
LARGEST_CPU_CACHE_BYTES = 1152 * 2**20
#: The most that any accelerator of the table keeps (Max 1550), for parts of which nothing is said.
LARGEST_CACHE_BYTES = 408 * 2**20


def cache_bytes(device: Accelerator) -> int:
    """What may stay on chip from step to step."""
    if device.last_level_cache_bytes:
        return device.last_level_cache_bytes
    return LARGEST_CPU_CACHE_BYTES if device.id.startswith("cpu") else LARGEST_CACHE_BYTES


def floor_terms(
    moved_bytes: int, flops: int, device: Accelerator, units: tuple[str, ...], caches: int = 1, devices: int = 1
) -> tuple[float, float]:
    """Seconds of the bytes that do not fit the last-level caches, and of the FLOPs; the floor is the larger. An unknown peak is 0."""
    uncached = max(0, moved_bytes - caches * cache_bytes(device))
    peak = devices * device.peak_bound(*units)
    return bandwidth_floor_s(uncached, device.bandwidth_bound_bytes_per_s), flops / peak if peak else 0.0


def floor(
    phase: str,
    parts: tuple[Line, ...],
    flops: Line,
    device: Accelerator,
    units: tuple[str, ...],
    caches: int = 1,
    devices: int = 1,
    paths: tuple[Path, ...] = (),
) -> Floor:
    """The largest of the times for the bytes of `parts`, less what fits the last-level caches, for `flops` on `devices`, and for
    what takes other `paths`.
    """
    total = sum(int(line.amount) for line in parts)
    cached = min(total, caches * cache_bytes(device))
    rate, peak = device.bandwidth_bound_bytes_per_s, devices * device.peak_bound(*units)
    source = device.id
    all_memory_s = bandwidth_floor_s(total, rate)
    memory_s, compute_s = floor_terms(total, int(flops.amount), device, units, caches, devices)
    times = (("bandwidth_s", memory_s), ("compute_s", compute_s), *((f"{path.name}_s", path.seconds) for path in paths))
    name, seconds = max(times, key=lambda pair: pair[1])
    terms = (("bytes", total), ("bytes_per_s", rate))
    lines = (
        *parts,
        Line(f"{phase}_bandwidth_uncached", all_memory_s, Unit.SECONDS, Formula("bytes_over_bandwidth", terms), Basis.FORMULA, source),
        Line(f"{phase}_last_level_cache", -cached, Unit.BYTES, Formula("last_level_cache", (("bytes", -cached),)), Basis.CONSTANT, source),
        _over(f"{phase}_bandwidth", total - cached, rate, memory_s, Basis.FORMULA, source),
        flops,
        Line(
            f"{phase}_compute",
            compute_s,
            Unit.SECONDS,
            Formula("flops_over_peak", (("flops", flops.amount), ("flops_per_s", peak))),
            Basis.FORMULA,
            source,
        ),
        *(line for path in paths for line in (path.line, _path_line(phase, path))),
        Line(f"{phase}_floor", seconds, Unit.SECONDS, Formula("larger_of", times)),
    )
    return Floor(seconds, {"bandwidth_s": "memory"}.get(name, name.removesuffix("_s")), lines)


def _over(item: str, size: int, rate: float, seconds: float, basis: Basis, source: str) -> Line:
    return Line(item, seconds, Unit.SECONDS, Formula("bytes_over_bandwidth", (("bytes", size), ("bytes_per_s", rate))), basis, source)


def _path_line(phase: str, path: Path) -> Line:
    return _over(f"{phase}_{path.name}", int(path.line.amount), path.bytes_per_s, path.seconds, path.basis, path.source)
