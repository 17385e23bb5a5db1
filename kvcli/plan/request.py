"""What a plan is asked for: a model, a workload, types, an engine and at most one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcli.dtypes import DType, KvTypes
from kvcli.model.spec import ModelSpec
from kvcli.plan.mixes.names import Mix
from kvcli.plan.sharing.split import ALONE, Split
from kvcli.plan.storage.policy import StoragePolicy
from kvcli.plan.workload import Workload

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator
    from kvcli.plan.budget.options import BudgetOptions
    from kvcli.plan.drafter import Speculation
    from kvcli.plan.sharing.offload import Offload
    from kvcli.plan.time.options import Timing


class PlanRequest(NamedTuple):
    """`kv` and `weights` None mean auto: the cache in the type the file fixes, else the compute dtype; the file's own weights."""

    spec: ModelSpec
    workload: Workload
    engine: StoragePolicy
    kv: KvTypes | None = None
    weights: DType | Mix | None = None
    device: Accelerator | None = None
    split: Split = ALONE
    offload: Offload | None = None
    speculation: Speculation | None = None
    timing: Timing | None = None
    budget: BudgetOptions | None = None

    @property
    def shared(self) -> bool:
        """Whether more than one memory holds the model."""
        return not self.split.alone or self.offload is not None
