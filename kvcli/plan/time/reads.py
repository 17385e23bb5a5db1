"""What one decode step reads of the caches of several sequences that may share a prefix."""

from __future__ import annotations

from kvcli.dtypes import KvTypes
from kvcli.model.cache_records import CacheRecord
from kvcli.model.spec import ModelSpec


def own_read_bytes(record: CacheRecord, tokens: int, prefix_tokens: int, kv: KvTypes) -> int:
    """At least what a sequence of `tokens` reads beyond its first `prefix_tokens`, in one layer.

    Where a step reads a choice of tokens, every sequence may choose all of them in the prefix: only what chooses them (index keys)
    is its own. Where visibility restarts (chunks) it may be low, never high.
    """
    rest = max(0, tokens - prefix_tokens)
    for limit in ("index_topk", "read_tokens"):
        if getattr(record, limit, None) is not None:
            record = record._replace(**{limit: 0})  # type: ignore[attr-defined]  # every record is a NamedTuple
    return min(record.read_bytes(rest, kv), record.read_bytes(tokens, kv))


def sequences_read_bytes(record: CacheRecord, tokens: int, sequences: int, prefix_tokens: int, kv: KvTypes) -> int:
    """One layer, states aside: each sequence's own tokens, and the `prefix_tokens` that all begin with once."""
    whole = record.read_bytes(tokens, kv)
    if not prefix_tokens or sequences < 2:
        return sequences * whole
    return whole + (sequences - 1) * own_read_bytes(record, tokens, prefix_tokens, kv)


def batch_read_bytes(spec: ModelSpec, tokens: int, sequences: int, prefix_tokens: int, kv: KvTypes) -> int:
    """All layers of a model, states aside."""
    return sum(
        group.count * sequences_read_bytes(record, tokens, sequences, prefix_tokens, kv)
        for group in spec.groups
        for record in group.records
    )


def cached_read_bytes(spec: ModelSpec, prompt_tokens: int, uncached_tokens: int, kv: KvTypes, encoder_tokens: int = 0) -> int:
    """At least what a prefill of the last `uncached_tokens` of one prompt reads of the rows cached before: what the last token looks
    at, less all that the new ones write, and recurrent states.
    """
    if uncached_tokens >= prompt_tokens:
        return 0
    total = 0
    for group in spec.groups:
        for record in group.records:
            rows = record.read_bytes(prompt_tokens, kv) - uncached_tokens * record.written_bytes(kv)
            # a cross-attention state is made by the encoder of this very request
            state = 0 if record.kind == "cross_attention" else record.state_bytes(spec.dtype, encoder_tokens)
            total += group.count * (max(0, rows) + state)
    return total
