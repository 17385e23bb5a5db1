"""`growth.*`: the memory behind a cache, filled by the real transformer, against the plan to the byte.

On CUDA the observed bytes are those requested from the allocator (`torch.cuda.memory_stats`). The CPU has no counting
allocator, so there they are the bytes of the distinct storages behind the cache: a view costs all it looks into.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence

import torch

from kvcli.dtypes import DType, KvTypes
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.kvcli import BuiltIn
from kvcli.plan.workload import Workload
from kvcli.runtime.caches import Cache, storage_bytes, view_bytes
from kvcli.runtime.transformer import Transformer
from kvcli.units import exact_bytes
from kvcli.verify.checks import Check, Skipped

#: Tokens of one prefill pass; long contexts are filled in several.
CHUNK_TOKENS = 512

#: (cache kind, tokens) -> an empty cache
CacheFactory = Callable[[str, int], Cache]
#: (cache kind, tokens) -> bytes
Predictor = Callable[[str, int], int]

#: PyTorch's CUDA allocator rounds requests up to 512 B and leaves up to 1 MiB of a large block unsplit.
ROUND_BYTES = 512
SMALL_BYTES = 2**20
UNSPLIT_BYTES = 2**20


def planned_bytes(model: Transformer, dtype: DType) -> Predictor:
    """The plan's own formula, under the built-in engine's storage rule."""

    def predict(kind: str, tokens: int) -> int:
        request = PlanRequest(model.spec, Workload(tokens), BuiltIn(kind), kv=KvTypes(dtype, dtype))
        return build(request).cache.stored_bytes

    return predict


def allocation_slack_bytes(tensor_bytes: Sequence[int]) -> int:
    """The most that allocated bytes may exceed requested ones, by the allocator's own rule (c10 CUDACachingAllocator)."""
    return sum(-size % ROUND_BYTES + (UNSPLIT_BYTES if size > SMALL_BYTES else 0) for size in tensor_bytes)


def growth_checks(
    model: Transformer,
    dtype: DType,
    contexts: Sequence[int],
    kinds: Sequence[str] = ("static", "dynamic"),
    predict: Predictor | None = None,
    new_cache: CacheFactory | None = None,
) -> Iterator[Check]:
    """Each kind of cache at each context: predicted and observed bytes. A dynamic cache grows from one to the next."""
    predict = predict or planned_bytes(model, dtype)
    make = new_cache or (lambda kind, tokens: model.new_cache(kind, 1, tokens))
    cuda = model.device.type == "cuda"
    _fill(model, make("static", CHUNK_TOKENS), min(CHUNK_TOKENS, max(contexts)))  # workspaces are allocated once, before the count
    for kind in kinds:
        cache: Cache | None = None
        before = _counters(model) if cuda else (0, 0)
        for tokens in sorted(contexts):
            if cache is None or kind == "static":
                cache = None
                before = _counters(model) if cuda else before
                cache = make(kind, tokens)
            _fill(model, cache, tokens)
            yield from _compare(model, kind, tokens, cache, predict(kind, tokens), before)
        del cache


def _compare(model: Transformer, kind: str, tokens: int, cache: Cache, predicted: int, before: tuple[int, int]) -> Iterator[Check]:
    name = f"growth.{kind}.{tokens}"
    storage = storage_bytes(cache.tensors())
    if model.device.type != "cuda":
        yield Check(name, predicted, storage, "B", 0, "exact: bytes of the distinct storages", _view_note(cache, storage))
        return
    requested, allocated = (now - then for now, then in zip(_counters(model), before, strict=True))
    yield Check(name, predicted, requested, "B", 0, "exact: bytes requested from the allocator", _view_note(cache, storage))
    slack = allocation_slack_bytes([tensor.untyped_storage().nbytes() for tensor in cache.tensors()])
    yield Check(
        f"growth.{kind}.{tokens}.allocated",
        predicted,
        allocated,
        "B",
        slack,
        "512 B rounding and up to 1 MiB unsplit for each large tensor",
    )


def _view_note(cache: Cache, storage: int) -> str:
    shown = view_bytes(cache.tensors())
    if storage <= shown:
        return ""
    return f"the cache keeps views of larger tensors: {exact_bytes(shown)} of keys and values hold {exact_bytes(storage)} of storage"


def _fill(model: Transformer, cache: Cache, tokens: int) -> None:
    """Runs the transformer until the cache holds `tokens` tokens. What they say does not matter, only that it is computed."""
    generator = torch.Generator().manual_seed(0)
    while cache.length < tokens:
        count = min(CHUNK_TOKENS, tokens - cache.length)
        ids = torch.randint(model.spec.vocab_size, (1, count), generator=generator).to(model.device)
        model.forward(ids, cache)


def _counters(model: Transformer) -> tuple[int, int]:
    """(requested, allocated) bytes of the CUDA allocator now."""
    gc.collect()
    torch.cuda.synchronize(model.device)
    stats = torch.cuda.memory_stats(model.device)
    return stats["requested_bytes.all.current"], stats["allocated_bytes.all.current"]


def allocator_skipped(device: torch.device) -> Skipped | None:
    """What the CPU cannot show."""
    if device.type == "cuda":
        return None
    return Skipped("growth.*.allocated", "the CPU has no counting allocator: distinct storages were counted instead")
