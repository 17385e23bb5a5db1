"""What KV001 says of an engine that admits no request of the longest length: pools of a set size, and TGI's check at its start."""

from __future__ import annotations

from kvcli.check.case import Case
from kvcli.check.pool import pool_tokens, refuses_small
from kvcli.check.verdict import Outcome
from kvcli.check.words import spelled

#: Models whose attention TGI runs in pages on cards from Ampere on: then its router does not start with a --max-total-tokens
#: beyond what the profile found room for (`NotEnoughMemory`, backends/v3/src/lib.rs of 3.x). With others it takes what it is told.
TGI_PAGED = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "gemma",
    "gemma2",
    "phi3",
    "starcoder2",
    "cohere",
    "granite",
    "deepseek_v2",
    "deepseek_v3",
)


def small_pool(case: Case, tokens: int) -> Outcome:
    """The size of the pool that the deployment sets, not the memory, is what has no room."""
    said, size = size_said(case), pool_tokens(case) or 0
    message = f"{said}: the pool of {size:,} tokens does not hold one request of {tokens:,}"
    certain = refuses_small(case)
    message += f", and {case.deployment.engine} does not start" if certain else f": requests of more than {size:,} never finish"
    fix = f"{spelled(case, 'context_tokens', size)}, or leave {said} out"
    return Outcome("KV001", "error" if certain else "warning", message, case.place("kv_tokens"), f"{size:,} < {tokens:,}", fix)


def size_said(case: Case) -> str:
    found = case.setting("kv_tokens")
    return found.said.partition(" x ")[0] if found else ""


def tgi_refuses(case: Case) -> bool:
    """Whether TGI was told a length that it checks at its start."""
    length, spec, part = case.setting("context_tokens"), case.found.spec, case.part
    told = length is not None and not length.default and isinstance(length.value, int)
    if case.deployment.engine != "tgi" or not told or spec is None or part is None:
        return False
    return spec.model_type in TGI_PAGED and part.vendor == "NVIDIA" and part.peak("bf16") > 0
