"""The workload: how many sequences, how long, and how much of each is prompt."""

from __future__ import annotations

from typing import NamedTuple


class Workload(NamedTuple):
    """`context_tokens` are in the cache of each of `batch_size` sequences, the newest token included.

    `encoder_tokens` are what cross-attention layers look at, of each sequence. All sequences begin with the same
    `shared_prefix_tokens`; the last `uncached_tokens` of a prompt (0: all) are not in the cache before the prefill. `new_tokens` are
    generated: the prefill gives the first, each decode step one more, with the cache at prompt + 1, + 2, … tokens.
    """

    context_tokens: int
    batch_size: int = 1
    prompt_tokens: int = 0
    encoder_tokens: int = 0
    shared_prefix_tokens: int = 0
    uncached_tokens: int = 0
    new_tokens: int = 1

    @property
    def prefill_tokens(self) -> int:
        """Tokens of one prompt; where none were named, what the context has room for beside new tokens (the last one is not kept)."""
        return self.prompt_tokens or self.context_tokens - (self.new_tokens - 1)


def positions_computed(prompt_tokens: int, new_tokens: int, cached: bool) -> int:
    """Token positions whose K and V are computed to generate `new_tokens` after a prompt.

    With a cache each position once: p + N - 1 (the last token's K and V are never needed). Without one, step i runs over
    all p + i tokens so far: N p + N (N - 1) / 2.
    """
    if cached:
        return prompt_tokens + new_tokens - 1
    return new_tokens * prompt_tokens + new_tokens * (new_tokens - 1) // 2
