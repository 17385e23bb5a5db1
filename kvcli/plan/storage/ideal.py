"""The ideal engine: it stores what attention needs and nothing else."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.dtypes import DType, KvTypes
from kvcli.model.cache_records import CacheRecord
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy
from kvcli.plan.workload import Workload


class Ideal(NamedTuple):
    name: str = "ideal"
    version: str = ""

    def stored_bytes(self, record: CacheRecord, workload: Workload, kv: KvTypes, dtype: DType) -> int:
        needed = record.needed_bytes(workload.context_tokens, kv)
        return workload.batch_size * (needed + record.state_bytes(dtype, workload.encoder_tokens))


def policy(options: EngineOptions) -> StoragePolicy:
    return Ideal()
