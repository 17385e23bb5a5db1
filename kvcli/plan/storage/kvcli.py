"""The built-in transformer: what each kind of its cache (`--cache`) holds when `context_tokens` are in it.

`static` is allocated once for the whole context, with a ring of w tokens in window layers; `dynamic` concatenates and
keeps the same tokens; `none` keeps nothing and recomputes.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli import __version__
from kvcli.dtypes import COMPUTE, KvTypes
from kvcli.errors import BadInput
from kvcli.model.layers import Attention
from kvcli.plan.storage.policy import StoragePolicy
from kvcli.plan.workload import Workload

CACHES = ("static", "dynamic", "none")


class BuiltIn(NamedTuple):
    cache: str = "static"
    name: str = "kvcli"
    version: str = __version__

    def stored_bytes(self, attention: Attention, workload: Workload, kv: KvTypes) -> int:
        if kv.key not in COMPUTE or kv.value != kv.key:
            raise BadInput(
                f"the built-in transformer keeps K and V in one of fp32, fp16 and bf16, not in {kv.label}",
                hint="leave --kv-dtype out, or use --engine ideal",
                code="unsupported_kv_dtype",
            )
        if self.cache == "none":
            return 0
        return workload.batch_size * attention.token_bytes(kv) * attention.visible_tokens(workload.context_tokens)


def policy(cache: str) -> StoragePolicy:
    if cache not in CACHES:
        raise BadInput(f"--cache {cache[:40]!r} is not a kind of cache", hint="one of " + ", ".join(CACHES), code="unknown_cache")
    return BuiltIn(cache)
