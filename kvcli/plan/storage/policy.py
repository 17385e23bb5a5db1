"""What every engine's storage rule looks like, and how one is found by name."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple, Protocol

from kvcli.dtypes import DType, KvTypes
from kvcli.errors import BadInput
from kvcli.model.cache_records import CacheRecord
from kvcli.plan.workload import Workload


class StoragePolicy(Protocol):
    """How an engine stores what one layer must remember."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """The engine version whose rule this is; empty where there is only one."""

    def stored_bytes(self, record: CacheRecord, workload: Workload, kv: KvTypes, dtype: DType) -> int:
        """Bytes of one record of one layer for all sequences, states included; `dtype` is the model's.

        Raises BadInput for a type or a layer the engine cannot store.
        """


#: Kinds of the built-in transformer's cache.
CACHES = ("static", "dynamic", "none")


class EngineOptions(NamedTuple):
    """What a user may say about an engine: the kind of kvcli's own cache, and transformers' static cache."""

    cache: str = "static"
    static: bool = False


#: engine -> module in this package, each with a function `policy(options) -> StoragePolicy`
ENGINES = {"ideal": "ideal", "transformers": "transformers", "kvcli": "kvcli"}


def policy(engine: str, options: EngineOptions | None = None) -> StoragePolicy:
    """The storage rule of that engine. Raises BadInput that lists the engines."""
    module = ENGINES.get(engine.strip().lower())
    if module is None:
        raise BadInput(f"--engine {engine[:40]!r} is not an engine kvcli knows", hint="one of " + ", ".join(ENGINES), code="unknown_engine")
    if options is not None and options.cache not in CACHES:
        raise BadInput(f"--cache {options.cache[:40]!r} is not a kind of cache", hint="one of " + ", ".join(CACHES), code="unknown_cache")
    found: StoragePolicy = import_module(f"kvcli.plan.storage.{module}").policy(options or EngineOptions())
    return found
