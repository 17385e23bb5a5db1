"""The workload: how many sequences, how long, and how much of each is prompt."""

from __future__ import annotations

from typing import NamedTuple


class Workload(NamedTuple):
    """`context_tokens` are in the cache of each of `batch_size` sequences, the newest token included.

    `encoder_tokens` are what cross-attention layers look at, of each sequence.
    """

    context_tokens: int
    batch_size: int = 1
    prompt_tokens: int = 0
    encoder_tokens: int = 0

    @property
    def prefill_tokens(self) -> int:
        """Tokens of one prompt; the whole context where none were named."""
        return self.prompt_tokens or self.context_tokens


def positions_computed(prompt_tokens: int, new_tokens: int, cached: bool) -> int:
    """Token positions whose K and V are computed to generate `new_tokens` after a prompt.

    With a cache each position once: p + N - 1 (the last token's K and V are never needed). Without one, step i runs over
    all p + i tokens so far: N p + N (N - 1) / 2.
    """
    if cached:
        return prompt_tokens + new_tokens - 1
    return new_tokens * prompt_tokens + new_tokens * (new_tokens - 1) // 2
