"""The built-in transformer: what each kind of its cache (`--cache`) holds when `context_tokens` are in it.

`static` is allocated once for the whole context, with a ring of w tokens in window layers; `dynamic` concatenates and
keeps the same tokens; `none` keeps nothing and recomputes.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli import __version__
from kvcli.dtypes import COMPUTE, KvTypes
from kvcli.errors import BadInput, NotModelled
from kvcli.model.cache_records import Attention
from kvcli.model.spec import ModelSpec
from kvcli.plan.sharing.rules import SharingRule
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored, by_record, model_kv
from kvcli.plan.workload import Workload


class BuiltIn(NamedTuple):
    cache: str = "static"
    name: str = "kvcli"
    version: str = __version__
    obeys_file: bool = False
    sharing: SharingRule = SharingRule(gap="the built-in transformer runs on one device")

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        return model_kv(spec)

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        for group in spec.groups:
            for record in group.records:
                if not isinstance(record, Attention) or record.kind not in ("full_attention", "sliding_attention"):
                    raise NotModelled(
                        f"the built-in transformer has no {record.kind} layers", hint="use --engine ideal", code="not_runnable"
                    )
        if kv.key not in COMPUTE or kv.value != kv.key:
            raise BadInput(
                f"the built-in transformer keeps K and V in one of fp32, fp16 and bf16, not in {kv.label}",
                hint="leave --kv-dtype out, or use --engine ideal",
                code="unsupported_kv_dtype",
            )
        needed = by_record(spec, workload, lambda record: record.needed_bytes(workload.context_tokens, kv))
        if self.cache != "none":
            return Stored(needed)
        return Stored((0,) * len(needed), (("recomputed instead of kept", -sum(needed)),))


def policy(options: EngineOptions) -> StoragePolicy:
    """Raises NotModelled under speculative decoding, which the built-in transformer does not do."""
    if options.drafted:
        raise NotModelled("the built-in transformer drafts no tokens", hint="leave --speculative out", code="not_runnable")
    return BuiltIn(options.cache)
