"""The same greedy generation with several kinds of cache: equal tokens, equal logits, different times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvcli.measure.run import Runner
from kvcli.plan.workload import positions_computed
from kvcli.records import Record
from kvcli.runtime.sampling import Sampler, SamplingOptions

#: Largest difference of logits relative to their largest magnitude that rounding explains.
LOGIT_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True, slots=True)
class Compared:
    """One kind of cache at one length. `total_s` is prefill and all steps."""

    cache: str
    new_tokens: int
    total_s: float
    positions: int
    token_ids: tuple[int, ...]
    last_logits: Tensor


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a cache compares with the first one at the same length."""

    new_tokens: int
    caches: tuple[str, str]
    same_tokens: bool
    logit_difference: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.same_tokens and self.logit_difference <= self.tolerance

    def document(self) -> dict[str, Any]:
        return {
            "new_tokens": self.new_tokens,
            "caches": list(self.caches),
            "same_tokens": self.same_tokens,
            "logit_difference": self.logit_difference,
            "tolerance": self.tolerance,
            "holds": self.holds,
        }


def measure_all(
    runners: Sequence[Runner], options: SamplingOptions, prompt_ids: list[int], lengths: Sequence[int]
) -> tuple[list[Record], list[Compared]]:
    """Every length with every runner's cache, to full length: stop tokens are not obeyed, so that times compare.

    An interrupt ends the series after the point it met.
    """
    records: list[Record] = []
    results: list[Compared] = []
    for length in lengths:
        for runner in runners:
            record, generation = runner.measure(prompt_ids, Sampler(options, runner.model.device), length, frozenset())
            records.append(record)
            if record.error is not None or generation.last_logits is None:
                return records, results
            total_s = (generation.prefill_ns + sum(generation.step_ns)) / 1e9
            positions = positions_computed(len(prompt_ids), length, cached=runner.cache != "none")
            ids = tuple(generation.token_ids)
            results.append(Compared(runner.cache, length, total_s, positions, ids, generation.last_logits))
    return records, results


def agreements(results: list[Compared]) -> list[Agreement]:
    """Each result against the first of its length."""
    found = []
    first: dict[int, Compared] = {}
    for result in results:
        base = first.setdefault(result.new_tokens, result)
        if base is result:
            continue
        scale = float(base.last_logits.abs().max()) or 1.0
        difference = float((base.last_logits.float() - result.last_logits.float()).abs().max()) / scale
        tolerance = LOGIT_TOLERANCE[base.last_logits.dtype]
        same = base.token_ids == result.token_ids
        found.append(Agreement(result.new_tokens, (base.cache, result.cache), same, difference, tolerance))
    return found
