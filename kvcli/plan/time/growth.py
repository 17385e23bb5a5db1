"""Floors summed over a growing context, exactly: by pieces on which every term is a straight line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvcli.model.cache_records import CacheRecord
from kvcli.plan.time.steps import Caches, Steps


class Growth(NamedTuple):
    """Floors of the time for an output token after the first: of the first such token, the last, and the mean of all. Seconds.

    A step that checks drafted tokens emits several; each has its share of the step.
    """

    first_s: float
    last_s: float
    mean_s: float


def growth(steps: Steps) -> Growth:
    """Over the steps after the prefill; where only one token is new, the one step at the workload's context."""
    work, each = steps.work, steps.tokens
    if work.new_tokens == 1:
        alone = steps.seconds(work.context_tokens, work.batch_size) / each
        return Growth(alone, alone, alone)
    first, last = work.prefill_tokens + 1, work.prefill_tokens + work.new_tokens - 1
    ends = [steps.seconds(tokens, work.batch_size) / each for tokens in (first, last)]
    total = sum_of_steps(steps, first, last)
    return Growth(ends[0], ends[1], total / each / (last - first + 1))


def sum_of_steps(steps: Steps, first: int, last: int) -> float:
    """Seconds of one step at each context from `first` to `last`."""
    starts = sorted({first, *(cut for cut in _cuts(steps, first, last) if first < cut <= last)})
    ends = [start - 1 for start in starts[1:]] + [last]
    return sum(_piece(steps, start, end) for start, end in zip(starts, ends, strict=True))


def _piece(steps: Steps, first: int, last: int) -> float:
    """On a piece each term is a straight line, so the term that is largest at both ends is largest between; else halves are asked."""
    batch = steps.work.batch_size
    left, right = _values(steps, first, batch), _values(steps, last, batch)
    winner = max(range(len(left)), key=left.__getitem__)
    if right[winner] >= max(right):
        return (left[winner] + right[winner]) / 2 * (last - first + 1)
    if last - first < 2:
        return max(left) + (max(right) if last > first else 0.0)
    # the largest of straight lines: the last context at which this one still is
    low, high = first, last
    while high - low > 1:
        middle = (low + high) // 2
        share = (middle - first) / (last - first)
        values = [a + (b - a) * share for a, b in zip(left, right, strict=True)]
        low, high = (middle, high) if values[winner] >= max(values) else (low, middle)
    return (left[winner] + _values(steps, low, batch)[winner]) / 2 * (low - first + 1) + _piece(steps, high, last)


def _values(steps: Steps, tokens: int, batch: int) -> list[float]:
    return [0.0, *(seconds for _, seconds in steps.terms(tokens, batch))]


def _cuts(steps: Steps, first: int, last: int) -> Iterator[int]:
    """Contexts at which a new piece begins."""
    prefix = steps.work.shared_prefix_tokens
    groups = steps.all_caches
    for caches in groups:
        if caches.context_ranks > 1:
            # the busiest rank has one token more at each of these, and steps between
            yield from range(first + (1 - first) % caches.context_ranks, last + 1, caches.context_ranks)
    for record in _records((*groups, Caches(steps.computed, groups[0].kv))):
        for shift in {0, prefix}:
            yield from (cut + shift for cut in _ends(record))
            for period in _periods(record):
                yield from range(first - (first - shift) % period, last + 1, period)
                # visibility restarts after a border
                yield from range(first - (first - shift - 1) % period, last + 1, period)


def _records(groups: tuple[Caches, ...]) -> set[CacheRecord]:
    return {record for caches in groups for group in caches.spec.groups for record in group.records}


def _ends(record: CacheRecord) -> Iterator[int]:
    """Where a record's lines bend once."""
    yield from (1, 2)
    pool, ratio = getattr(record, "index_pool", 1), getattr(record, "ratio", 1) or 1
    for name in ("window_tokens", "index_topk", "read_tokens"):
        width = getattr(record, name, None)
        if width:
            yield from (width, width + 1, width * ratio, width * ratio + 1, width + pool)


def _periods(record: CacheRecord) -> Iterator[int]:
    """Where they jump or bend again and again."""
    for name in ("chunk_tokens", "ratio", "index_pool", "index_ratio"):
        period = getattr(record, name, None)
        if period and period > 1:
            yield period
