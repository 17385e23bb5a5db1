"""What every engine's storage rule looks like, and how one is found by name."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from kvcli.dtypes import KvTypes
from kvcli.errors import BadInput
from kvcli.model.layers import Attention
from kvcli.plan.workload import Workload


class StoragePolicy(Protocol):
    """How an engine stores what one layer must remember."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """The engine version whose rule this is; empty where there is only one."""

    def stored_bytes(self, attention: Attention, workload: Workload, kv: KvTypes) -> int:
        """Bytes one layer occupies for all sequences. Raises BadInput for a type the engine cannot store."""


#: engine -> module in this package, each with a function `policy(cache) -> StoragePolicy`
ENGINES = {"ideal": "ideal", "kvcli": "kvcli"}


def policy(engine: str, cache: str = "static") -> StoragePolicy:
    """The storage rule of that engine. Raises BadInput that lists the engines."""
    module = ENGINES.get(engine.strip().lower())
    if module is None:
        raise BadInput(f"--engine {engine[:40]!r} is not an engine kvcli knows", hint="one of " + ", ".join(ENGINES), code="unknown_engine")
    found: StoragePolicy = import_module(f"kvcli.plan.storage.{module}").policy(cache)
    return found
