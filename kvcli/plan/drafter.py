"""What drafts tokens, and what it adds to a plan. How these are found is in `speculative.py`."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.errors import Notice
from kvcli.model.spec import ModelSpec
from kvcli.plan.weights import WeightBytes


class Speculation(NamedTuple):
    """`drafted` tokens a step by `drafter`, None where they are looked up in the text (n-grams)."""

    drafted: int
    drafter: ModelSpec | None = None
    own_blocks: bool = False


class DraftPlan(NamedTuple):
    """What a drafter adds. Bytes of the cache are all sequences' and over all devices, copies included.

    `read_bytes_per_draft` are what one token drafted for each sequence reads, weights and cache; drafting one after another reads
    so much for each, drafting all at once no less than for one. `host_bytes` of the weights are tables in the host's memory,
    `copies_bytes` what more than one device holds.
    """

    speculation: Speculation
    weights: WeightBytes | None
    kv: KvTypes | None
    stored_bytes: int = 0
    weights_bytes: int = 0
    read_bytes_per_draft: int = 0
    per_place: tuple[PlaceBytes, ...] = ()
    host_bytes: int = 0
    copies_bytes: int = 0
    notices: tuple[Notice, ...] = ()

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.stored_bytes


class PlaceBytes(NamedTuple):
    """What the drafter adds to one device of the last stage: weights and cache, and what of them one draft reads."""

    weights: int = 0
    stored: int = 0
    weights_read: int = 0
    cache_read: int = 0

    @property
    def read(self) -> int:
        return self.weights_read + self.cache_read
