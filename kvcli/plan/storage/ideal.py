"""The ideal engine: it stores what attention needs and nothing else."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.model.spec import ModelSpec
from kvcli.plan.sharing.rules import SharingRule, more_in_middle
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored, by_record, model_kv
from kvcli.plan.workload import Workload


class Ideal(NamedTuple):
    name: str = "ideal"
    version: str = ""
    obeys_file: bool = True
    #: whole words of the tables to each, the last stage one layer fewer
    sharing: SharingRule = SharingRule(True, more_in_middle, experts="any", data_attention=True, context=True)

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        return model_kv(spec)

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        n, m = workload.context_tokens, workload.encoder_tokens
        return Stored(by_record(spec, workload, lambda record: record.needed_bytes(n, kv) + record.state_bytes(spec.dtype, m)))


def policy(options: EngineOptions) -> StoragePolicy:
    return Ideal()
