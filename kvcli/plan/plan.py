"""The plan: one frozen answer that every command, record and report shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcli.errors import Notice
from kvcli.model.spec import ModelSpec
from kvcli.plan.cache import CachePlan
from kvcli.plan.weights import WeightBytes
from kvcli.plan.workload import Workload

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator
    from kvcli.plan.budget.memory import MemoryPlan
    from kvcli.plan.drafter import DraftPlan
    from kvcli.plan.request import PlanRequest
    from kvcli.plan.sharing.shared import Shared
    from kvcli.plan.time.latency import Latency
    from kvcli.plan.time.options import Timing


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
    request: PlanRequest | None = None

    @property
    def asked_timing(self) -> Timing | None:
        return self.request.timing if self.request else None

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
