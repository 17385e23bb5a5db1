"""What a user may ask about time beside the workload, and whether the workload's numbers agree."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.plan.workload import Workload


class Slo(NamedTuple):
    """Limits that someone published: of the time to the first token and of each after it, in seconds."""

    name: str
    ttft_s: float
    tpot_s: float
    source: str


class Calibration(NamedTuple):
    """Measured time / floor of `points` records of one device; their median."""

    device: str
    measured_over_floor: float
    points: int
    source: str


class Timing(NamedTuple):
    """None, and 0 for a rate, where nothing was said. `price_per_hour` is of all devices together; `max_sequences` and
    `max_batched_tokens` are what a scheduler lets into one step.
    """

    host_bytes_per_s: float = 0.0
    efficiency: float | None = None
    calibrations: tuple[Calibration, ...] = ()
    slo: Slo | None = None
    price_per_hour: float | None = None
    max_sequences: int | None = None
    max_batched_tokens: int | None = None


def check_workload(work: Workload) -> None:
    """Raises BadInput where prefix, prompt, new tokens and context contradict each other."""
    room = work.context_tokens - (work.new_tokens - 1)
    if work.prompt_tokens > room or room < 1:
        prompt = f"a prompt of {work.prompt_tokens:,} and " if work.prompt_tokens else ""
        raise BadInput(
            f"{prompt}{work.new_tokens:,} new tokens do not fit a context of {work.context_tokens:,}",
            hint=f"--ctx {(work.prompt_tokens or 1) + work.new_tokens - 1} or more: the last token's cache is never needed",
            code="prompt_longer_than_context",
        )
    if work.uncached_tokens > work.prefill_tokens:
        text = f"--uncached-tokens {work.uncached_tokens:,} are more than the prompt's {work.prefill_tokens:,} tokens"
        raise BadInput(text, hint="give at most --prompt-tokens", code="bad_prompt_parts")
    if work.shared_prefix_tokens >= work.prefill_tokens:
        text = f"--shared-prefix {work.shared_prefix_tokens:,} leaves nothing of the prompt's {work.prefill_tokens:,} tokens"
        raise BadInput(text, hint="each sequence computes at least its last token: give less", code="bad_prompt_parts")
