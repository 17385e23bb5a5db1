"""What a user may say about the memory budget, and how sizes are written."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.units import parse_size

_SHARE = re.compile(r"(?:0?\.[0-9]{1,9}|1(?:\.0{1,9})?|0\.[0-9]{1,9})")


class Lora(NamedTuple):
    """`slots` adapters of rank `rank` held at once."""

    slots: int
    rank: int


class BudgetOptions(NamedTuple):
    """None means the engine's default, or a range where there is none.

    `utilization` is the share of memory the engine may take; `activations_bytes`, `graphs_bytes` and `reserve_bytes` (all else
    that is not torch's) put the user's value in place of a range; `kv_memory_bytes` is the pool of one device. `sequences` is
    max_num_seqs. `host_bytes` is the host's memory, `cache_ram_bytes` what it holds of prompts.
    """

    utilization: Fraction | None = None
    activations_bytes: int | None = None
    graphs_bytes: int | None = None
    reserve_bytes: int | None = None
    kv_memory_bytes: int | None = None
    sequences: int | None = None
    lora: Lora | None = None
    encoder_cache_tokens: int | None = None
    host_bytes: int | None = None
    cache_ram_bytes: int | None = None


DEFAULTS = BudgetOptions()


def parse_share(text: str, option: str) -> Fraction:
    """A share of memory, as in `0.92`. Raises BadInput outside 0 to 1."""
    if not _SHARE.fullmatch(text.strip()) or not Fraction(text.strip()):
        raise BadInput(f"{option} {text[:40]!r} is not a share above 0 and at most 1", hint=f"as in {option} 0.92", code="bad_share")
    return Fraction(text.strip())


def parse_lora(text: str) -> Lora:
    """`SLOTS:RANK`. Raises BadInput."""
    match = re.fullmatch(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})", text.strip())
    if match is None:
        raise BadInput(f"--lora {text[:40]!r} is not SLOTS:RANK", hint="four adapters of rank 16 are --lora 4:16", code="bad_lora")
    return Lora(int(match[1]), int(match[2]))


def _size(text: str | None, option: str) -> int | None:
    return None if text is None else parse_size(text, option, zero=True)


def read_budget(
    utilization: str | None,
    activations: str | None,
    graphs: str | None,
    reserve: str | None,
    kv_memory: str | None,
    sequences: int | None,
    lora: str | None,
    encoder_cache: int | None,
    host_memory: str | None,
    cache_ram: str | None,
) -> BudgetOptions | None:
    """The options as typed; None where nothing was. Raises BadInput for what is no size, share or count."""
    found = BudgetOptions(
        utilization=None if utilization is None else parse_share(utilization, "--utilization"),
        activations_bytes=_size(activations, "--activations"),
        graphs_bytes=_size(graphs, "--graphs"),
        reserve_bytes=_size(reserve, "--reserve"),
        kv_memory_bytes=_size(kv_memory, "--kv-memory"),
        sequences=sequences,
        lora=None if lora is None else parse_lora(lora),
        encoder_cache_tokens=encoder_cache,
        host_bytes=_size(host_memory, "--host-memory"),
        cache_ram_bytes=_size(cache_ram, "--cache-ram"),
    )
    return None if found == DEFAULTS else found
