"""The transformers library, release 5.23: what its cache object holds between steps.

The dynamic cache keeps exactly n tokens, and in window and chunk layers one token fewer than is visible, since the next
step brings its own; the static cache allocates what its longest sequence may need. Convolution states keep all K columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcli.dtypes import DType, KvTypes
from kvcli.errors import Notice
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Compressed, Latent
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Recurrent
from kvcli.plan.sharing.rules import SharingRule
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored, by_record, model_kv
from kvcli.plan.workload import Workload
from kvcli.units import format_bytes

#: Why its cache object holds something else than attention needs.
CAUSES = {
    "full_attention": "layout of full layers",
    "state": "all K conv columns",
    "window": "windows between steps",
}

SHARING = SharingRule(gap="kvcli has no rule how transformers spreads a model over devices")


@dataclass(frozen=True, slots=True)
class Transformers:
    """`static` is the preallocated cache of `context_tokens` tokens."""

    static: bool = False
    name: str = "transformers"
    version: str = "5.23"
    obeys_file: bool = False
    sharing: SharingRule = SHARING

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        return model_kv(spec)

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        n, m = workload.context_tokens, workload.encoder_tokens
        rows = by_record(spec, workload, lambda record: self._one(record, workload, kv, spec.dtype))
        needed = by_record(spec, workload, lambda record: record.needed_bytes(n, kv) + record.state_bytes(spec.dtype, m))
        differences = {"full_attention": 0, "state": 0, "window": 0}
        kinds = [record for group in spec.groups for record in group.records]
        for record, held, kept in zip(kinds, rows, needed, strict=True):
            cause = "state" if isinstance(record, Recurrent) else "window" if record.window_tokens else "full_attention"
            differences[cause] += held - kept
        causes = tuple((CAUSES[cause], size) for cause, size in differences.items() if size)
        return Stored(rows, causes, notices=() if self.static else self._prefill_notice(spec, workload, kv))

    def _prefill_notice(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> tuple[Notice, ...]:
        """Until the next step, the tensors of window layers are views of the whole prompt's: the peak has no window."""
        prompt, extra = workload.prefill_tokens, 0
        for group in spec.groups:
            for record in group.records:
                limit = isinstance(record, Attention) and record.owns_cache and (record.window_tokens or record.chunk_tokens)
                if isinstance(record, Attention) and limit and prompt >= limit:
                    extra += workload.batch_size * group.count * record.token_bytes(kv) * (prompt - limit + 1)
        if not extra:
            return ()
        text = f"right after a prefill of {prompt:,} tokens in one pass, window layers still hold {format_bytes(extra)} more"
        return (Notice("prefill_peak", text),)

    def _one(self, record: CacheRecord, workload: Workload, kv: KvTypes, dtype: DType) -> int:
        n = workload.context_tokens
        if isinstance(record, Attention):
            return self._attention(record, n, kv)
        if isinstance(record, Latent):
            index = record.index_bytes(kv) * n
            if record.index_pool > 1 and index:  # of every token a key, a gate and a mark that it is no padding
                index = kv.key.bytes_for(2 * record.index_dim + 1) * n
            return record.row_bytes(kv) * self._kept(n, record.window_tokens) + index
        if isinstance(record, Compressed):
            return self._compressed(record, n, kv)
        if isinstance(record, Recurrent):
            columns = record.conv_kernel if record.transformers_columns < 0 else record.transformers_columns
            return record.bytes_with_columns(columns, dtype) + record.transformers_bytes
        return record.needed_bytes(n, kv) + record.state_bytes(dtype, workload.encoder_tokens)

    def _attention(self, record: Attention, n: int, kv: KvTypes) -> int:
        if not record.owns_cache or record.transformers_keeps == -2:
            return 0
        limit = record.chunk_tokens or record.window_tokens
        kept = self._kept(n, limit)
        if record.transformers_keeps >= 0:
            # what it keeps between steps is one less than its window, which the static cache allocates whole
            kept = self._kept(n, record.transformers_keeps + 1 if record.transformers_keeps else None)
        beside = (record.index_bytes(kv) + record.transformers_token_bytes) * n
        return record.token_bytes(kv, record.transformers_heads) * kept + beside

    def _kept(self, n: int, limit: int | None) -> int:
        if limit is None:
            return n
        return min(n, limit) if self.static else min(n, limit - 1)

    def _compressed(self, record: Compressed, n: int, kv: KvTypes) -> int:
        """Window layers keep K and V apart although they are equal; layers with entries keep one tensor for both."""
        row = kv.key.bytes_for(record.dim) * self._kept(n, record.window_tokens)
        return row * (1 if record.ratio else 2) + record.entry_bytes(kv) * record.entries(n) + record.open_bytes(n, kv)


def policy(options: EngineOptions) -> StoragePolicy:
    return Transformers(options.static)
