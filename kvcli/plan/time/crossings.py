"""Where the curves of a step cross: the batch at which arithmetic binds, the context at which the cache outweighs the weights."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvcli.plan.time.steps import Steps

#: Beyond these nobody asks; a crossing further out is none.
MOST_SEQUENCES = 2**24
MOST_TOKENS = 2**30


def compute_bound_batch(steps: Steps) -> int | None:
    """The fewest sequences at which arithmetic takes the most time of a step at the workload's context; None: never, or peak unknown.

    Bytes and FLOPs are straight lines in the batch, so that it is bound from there on; where a batch is dealt among groups of devices
    they go in steps, and the answer is one at which it is bound and one fewer is not.
    """
    tokens, steps = steps.work.context_tokens, steps._replace(peak=steps.peak_flops)

    def lead(batch: int) -> float:
        """Seconds by which arithmetic takes longer than all else."""
        found = steps.terms(tokens, batch)
        return found[1][1] - max(0.0, *(seconds for name, seconds in found if name != "compute"))

    if not steps.peak_flops:
        return None
    return _first(lambda batch: lead(batch) >= 0, MOST_SEQUENCES, _crossing(lead, 2, 3, MOST_SEQUENCES))


def kv_passes_weights_context(steps: Steps) -> int | None:
    """The fewest tokens at which a step of the workload's batch reads more of the caches than of weights; None: never."""
    batch = steps.work.batch_size

    def lead(tokens: int) -> int:
        return steps.cache_read_bytes(tokens, batch) + steps.drafter_read_bytes(tokens, batch) - steps.weights_bytes

    def passes(tokens: int) -> bool:
        return lead(tokens) > 0

    chunks = [getattr(r, "chunk_tokens", None) for each in steps.all_caches for group in each.spec.groups for r in group.records]
    chunk = max((size for size in chunks if size), default=0)
    if not chunk:
        here = steps.work.context_tokens
        return _first(passes, MOST_TOKENS, _crossing(lambda tokens: lead(tokens) - 1, here, 2 * here, MOST_TOKENS))
    # a chunked cache falls at each border: the first chunk at whose end it passes, then the place in it
    number = _first(lambda count: passes(count * chunk), MOST_TOKENS // chunk)
    if number is None:
        return None
    before = (number - 1) * chunk
    place = _first(lambda tokens: passes(before + tokens), chunk)
    return None if place is None else before + place


def _crossing(lead: Callable[[int], float], one: int, other: int, most: int) -> int:
    """Where a straight line through two points of `lead` becomes 0; `most` where it never does."""
    start = lead(one)
    slope = (lead(other) - start) / (other - one)
    return min(most, max(2, math.ceil(one - start / slope))) if slope > 0 else most


def _first(holds: Callable[[int], bool], most: int, guess: int = 0) -> int | None:
    """The smallest number up to `most` from which on `holds`; None where it does not hold at `most`. A `guess` is tried first."""
    if holds(1):
        return 1
    if guess > 1 and holds(guess) and not holds(guess - 1):
        return guess
    if guess == most and not holds(most):
        return None
    high = 1
    while not holds(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
