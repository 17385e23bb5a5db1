"""A pool of the cache whose size the deployment sets in tokens, against the one that fills the engine's memory."""

from __future__ import annotations

from fractions import Fraction

from kvcli.check.case import Case
from kvcli.check.engines.vllm import BLOCK_TOKENS
from kvcli.check.kept import version_of
from kvcli.check.requests import number
from kvcli.plan.budget.pool import Amount

#: Engines that take the size they are told. TGI ignores it for all models with flash attention.
OBEY = ("vllm", "sglang", "trtllm")
#: vLLM's first engine does not start when a request of the longest length has no room in it (`raise_if_cache_size_invalid`). Of later
#: versions some start and never run such a request, and the newest refuse again.
VLLM_CHECKS = (0, 7)


def pool_tokens(case: Case) -> int | None:
    """Tokens, where the deployment sets them and the engine obeys."""
    return number(case.deployment, "kv_tokens") if case.deployment.engine in OBEY else None


def held_in(case: Case, amount: Amount) -> Fraction:
    """Sequences of the context of which memory would hold `amount`, in the pool that is set or in that one, whichever is smaller."""
    tokens = pool_tokens(case)
    if tokens is None:
        return amount.concurrency
    size, most = tokens, amount.tokens
    if case.deployment.engine == "vllm":  # its pool is counted in blocks, of which layers of several kinds take several
        size, most = tokens // (number(case.deployment, "block_tokens") or BLOCK_TOKENS), amount.blocks
    return min(amount.concurrency, amount.concurrency * Fraction(size, most)) if most else amount.concurrency


def too_small(case: Case) -> bool:
    """Whether the pool that is set holds not even one request of the longest length."""
    memory, tokens = case.plan.memory if case.plan else None, pool_tokens(case)
    pool = memory.pool if memory is not None and tokens is not None else None
    if pool is None or case.asked is None or case.asked.context_tokens is None:
        return False
    return pool.least.concurrency >= 1 > held_in(case, pool.most)


def refuses_small(case: Case) -> bool:
    """Whether the engine then does not start for certain."""
    deployment, part = case.deployment, case.part
    if deployment.engine != "vllm" or deployment.version is None or part is None or part.vendor != "NVIDIA":
        return False
    return () < version_of(deployment) < VLLM_CHECKS
