"""The plan: one frozen answer that every command, record and report shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.errors import Notice
from kvcli.ledger import Formula
from kvcli.model.spec import ModelSpec
from kvcli.plan.weights import WeightBytes
from kvcli.plan.workload import Workload

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator
    from kvcli.plan.budget.memory import MemoryPlan
    from kvcli.plan.floors import Latency
    from kvcli.plan.sharing.shared import Shared
    from kvcli.plan.speculative import DraftPlan
    from kvcli.plan.time.options import Timing


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


class Plan(NamedTuple):
    spec: ModelSpec
    workload: Workload
    cache: CachePlan
    weights: WeightBytes
    device: Accelerator | None
    memory: MemoryPlan | None
    latency: Latency | None
    notices: tuple[Notice, ...]
    shared: Shared | None = None
    draft: DraftPlan | None = None
    asked_timing: Timing | None = None

    @property
    def timing(self) -> Timing:
        """What was asked about time beside the workload."""
        from kvcli.plan.time.options import Timing  # only a device pays for it

        return self.asked_timing or Timing()

    @property
    def total_bytes(self) -> int:
        """Weights in memory and the cache as the engine stores it, a drafter's too, over all devices and the host."""
        if self.shared is None:
            return self.weights.resident_bytes + self.cache.stored_bytes + (self.draft.total_bytes if self.draft else 0)
        return sum(each.devices * each.total_bytes for each in self.shared.places)

    @property
    def device_bytes(self) -> int:
        """Weights and cache of the fullest device."""
        return self.total_bytes if self.shared is None else self.shared.fullest.total_bytes

    @property
    def resident_bytes_per_device(self) -> int:
        """Weights of the device that holds most of them."""
        return self.weights.resident_bytes if self.shared is None else max(each.weights_bytes for each in self.shared.on_devices)
