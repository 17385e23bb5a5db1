"""The cache of a plan: what it needs, what the engine stores of it, and what a step reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.errors import Notice
from kvcli.ledger import Formula


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One group of identical layers. Bytes are totals over its `count` layers and all sequences."""

    kind: str
    count: int
    window_tokens: int | None
    bytes_per_token: int
    needed_bytes: int
    state_bytes: int
    stored_bytes: int
    formula: Formula


class CachePlan(NamedTuple):
    """The cache of all sequences. `bytes_per_token` is what the newest token of one sequence added.

    `stored_bytes` are over all devices, copies included; `stored_bytes_per_device` of the one that stores most. `causes` say why
    the engine stores something else than is needed, in bytes that sum to the difference.
    """

    kv: KvTypes
    engine: str
    engine_version: str
    rows: tuple[CacheRow, ...]
    bytes_per_token: int
    needed_bytes: int
    state_bytes: int
    stored_bytes: int
    stored_bytes_per_device: int
    read_bytes_per_step: int
    written_bytes_per_step: int
    causes: tuple[tuple[str, int], ...] = ()
    blocks: int | None = None
    block_tokens: int | None = None
    notices: tuple[Notice, ...] = ()
