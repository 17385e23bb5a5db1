"""What every engine's storage rule looks like, and how one is found by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, Protocol

from kvcli.dtypes import FP16, FP32, KvTypes
from kvcli.errors import BadInput, Notice
from kvcli.model.cache_records import CacheRecord
from kvcli.model.spec import ModelSpec
from kvcli.plan.sharing.rules import SharingRule
from kvcli.plan.workload import Workload


class Stored(NamedTuple):
    """What an engine holds for the sequences of a workload.

    `rows` are bytes of each record of each group in the model's order, states included, for all layers of the group and all
    sequences; they sum to the whole. `causes` say why that is not what is needed: (cause, bytes), summing to the difference.
    `blocks` of `block_tokens` tokens are what the sequences take in engines that have them.
    """

    rows: tuple[int, ...]
    causes: tuple[tuple[str, int], ...] = ()
    blocks: int | None = None
    block_tokens: int | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(self.rows)

    @property
    def narrower_bytes(self) -> int:
        """What is kept in fewer bits than are needed, which no step can read."""
        return -sum(size for _, size in self.causes if size < 0)


class StoragePolicy(Protocol):
    """How an engine stores what a model must remember."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """The engine version whose rule this is; empty where there is only one."""

    @property
    def obeys_file(self) -> bool:
        """Whether the cache type that a model's file asks for is the one it takes."""

    @property
    def sharing(self) -> SharingRule:
        """How its devices share a model."""

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        """The types it takes where neither the user nor a file it obeys names any."""

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        """Bytes for all sequences. Raises BadInput for a type the engine cannot store, NotModelled for a layer it has no rule for."""


def model_kv(spec: ModelSpec) -> KvTypes:
    """The model's own dtype, as most code keeps its cache."""
    return KvTypes(spec.dtype, spec.dtype)


def half_kv(spec: ModelSpec) -> KvTypes:
    """The model's own dtype, in engines that run float32 files in fp16."""
    return KvTypes(FP16, FP16) if spec.dtype == FP32 else model_kv(spec)


def by_record(spec: ModelSpec, workload: Workload, of_one: Callable[[CacheRecord], int]) -> tuple[int, ...]:
    """Rows of an engine that stores each sequence and layer alone: `of_one` gives one record's bytes of one sequence."""
    return tuple(workload.batch_size * group.count * of_one(record) for group in spec.groups for record in group.records)


#: Kinds of the built-in transformer's cache.
CACHES = ("static", "dynamic", "none")


class EngineOptions(NamedTuple):
    """What a user may say about an engine; each engine reads what concerns it, and None means its default."""

    cache: str = "static"
    static: bool = False
    version: str | None = None
    block_size: int | None = None
    page_size: int | None = None
    ubatch: int | None = None
    parallel: int | None = None
    kv_unified: bool = False
    #: llama.cpp: tokens of the one buffer that all slots share, where it is not the context times the slots
    shared_tokens: int | None = None
    swa_full: bool = False
    max_num_batched_tokens: int | None = None
    #: tokens drafted before each step (speculative decoding), whose keys, values and states it must hold or undo
    drafted: int = 0


#: engine -> module in this package, each with a function `policy(options) -> StoragePolicy`
ENGINES = {
    "ideal": "ideal",
    "transformers": "transformers",
    "kvcli": "kvcli",
    "llama.cpp": "llama_cpp",
    "ollama": "ollama",
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
}


def policy(engine: str, options: EngineOptions | None = None) -> StoragePolicy:
    """The storage rule of that engine. Raises BadInput that lists the engines."""
    module = ENGINES.get(engine.strip().lower())
    if module is None:
        raise BadInput(f"--engine {engine[:40]!r} is not an engine kvcli knows", hint="one of " + ", ".join(ENGINES), code="unknown_engine")
    if options is not None and options.cache not in CACHES:
        raise BadInput(f"--cache {options.cache[:40]!r} is not a kind of cache", hint="one of " + ", ".join(CACHES), code="unknown_cache")
    found: StoragePolicy = import_module(f"kvcli.plan.storage.{module}").policy(options or EngineOptions())
    return found
