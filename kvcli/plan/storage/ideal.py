"""The ideal engine: it stores what attention needs and nothing else."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.model.layers import Attention
from kvcli.plan.storage.policy import StoragePolicy
from kvcli.plan.workload import Workload


class Ideal(NamedTuple):
    name: str = "ideal"
    version: str = ""

    def stored_bytes(self, attention: Attention, workload: Workload, kv: KvTypes) -> int:
        return workload.batch_size * attention.token_bytes(kv) * attention.visible_tokens(workload.context_tokens)


def policy(cache: str) -> StoragePolicy:
    return Ideal()
