"""SGLang 0.5: pools of token slots, handed out in pages, each pool with one spare page.

A pool has size + page_size slots (visible in its start-up line). Window layers have a pool of their own, states a pool of
max_mamba_cache_size + 1 slots. Stored is what the sequences take of the pools and the spare page of each; the pools
themselves fill the memory budget.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kvcli import dtypes
from kvcli.dtypes import KvTypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Latent
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Recurrent
from kvcli.plan.sharing.rules import SharingRule, more_in_last
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored, half_kv
from kvcli.plan.workload import Workload

#: The packed fp8 row of sparse MLA, and its index key with a scale, in bytes; the shape (rank, rope, index) they are of.
PACKED_ROW, INDEX_ROW, PACKED_SHAPE = 656, 132, (512, 64, 128)
#: Sparse MLA runs with pages of 64 alone.
SPARSE_PAGE = 64

#: Hybrids whose states lie in the state pool.
STATE_MODELS = (
    *("bailing_hybrid", "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "nemotron_h", "qwen3_next"),
    *("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"),
)

SHARING = SharingRule(True, more_in_last, experts=True, data_attention=True)


@dataclass(frozen=True, slots=True)
class SgLang:
    """`page_tokens` None: SGLang's own choice."""

    page_tokens: int | None = None
    name: str = "sglang"
    version: str = "0.5"
    obeys_file: bool = True
    sharing: SharingRule = SHARING

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        return half_kv(spec)

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        """See StoragePolicy. `blocks` are pages of the sequences, those of the largest pool, without the spare one."""
        if kv.key != kv.value or kv.key.name not in ("fp16", "bf16", "fp8"):
            raise BadInput(
                f"sglang keeps K and V both in fp16, bf16 or fp8, not in {kv.label}", hint="--kv-dtype fp8", code="unsupported_kv_dtype"
            )
        page = self._page(spec)
        rows: list[int] = []
        causes: Counter[str] = Counter()
        notices: tuple[Notice, ...] = ()
        pages = paged = 0
        for group in spec.groups:
            for record in group.records:
                if isinstance(record, Recurrent):
                    one, found = self._state(spec, record, workload.batch_size)
                else:
                    held, row, needed = self._paged(spec, record, workload, kv, page)
                    one = (workload.batch_size * held + 1) * page * row
                    found = self._differences(record, held, row, needed, workload, kv, page)
                    pages, paged = max(pages, held), 1
                    if record.window_tokens is not None and record.window_tokens < workload.context_tokens:
                        text = "window layers are counted at the pages their window lies in; sglang frees what left it with a delay"
                        notices = (Notice("sglang_window_pool", text),)
                rows.append(one * group.count)
                for cause, size in found:
                    causes[cause] += size * group.count
        blocks = workload.batch_size * pages if paged else None
        stored = tuple((cause, size) for cause, size in causes.items() if size)
        return Stored(tuple(rows), stored, blocks, page if paged else None, notices)

    def _page(self, spec: ModelSpec) -> int:
        if not _sparse(spec):
            return self.page_tokens or 1
        if self.page_tokens not in (None, SPARSE_PAGE):
            raise BadInput(
                f"sglang keeps sparse MLA in pages of {SPARSE_PAGE} tokens alone", hint="leave --page-size out", code="bad_page_size"
            )
        return SPARSE_PAGE

    def _state(self, spec: ModelSpec, record: Recurrent, batch: int) -> tuple[int, list[tuple[str, int]]]:
        """One layer: K - 1 convolution columns in bf16, the state in float32 unless the file says otherwise, and a spare slot."""
        if spec.model_type not in STATE_MODELS:
            raise _no_rule(spec, record)
        kept = record._replace(conv_dtype=dtypes.BF16).state_bytes(spec.dtype, 0)
        spare = ("spare slot of the state pool", kept)
        return (batch + 1) * kept, [spare, ("state dtype", batch * (kept - record.state_bytes(spec.dtype, 0)))]

    def _paged(self, spec: ModelSpec, record: CacheRecord, workload: Workload, kv: KvTypes, page: int) -> tuple[int, int, int]:
        """Of one layer and sequence: pages, bytes of a token's slot, and bytes of a token that are needed."""
        n = workload.context_tokens
        if isinstance(record, Attention) and record.owns_cache and not record.index_dim:
            row = record.token_bytes(kv)
            if record.chunk_tokens is not None and n > record.chunk_tokens:
                raise NotModelled(
                    f"kvcli has no rule of sglang for {spec.name} beyond a chunk of {record.chunk_tokens:,} tokens",
                    hint="use --engine ideal",
                    code="no_storage_rule",
                )
            if record.window_tokens is None or n <= record.window_tokens:
                return -(-n // page), row, row
            if not any(each.kind == "full_attention" for group in spec.groups for each in group.records):
                raise NotModelled(
                    f"kvcli has no rule of sglang for {spec.name}, whose layers all have windows, beyond its window",
                    hint="use --engine ideal",
                    code="no_storage_rule",
                )
            return min(-(-n // page), -(-(record.window_tokens - 1) // page) + 1), row, row
        if isinstance(record, Latent) and record.owns_cache and record.window_tokens is None and record.index_pool == 1:
            row, index = record.row_bytes(kv), record.index_bytes(kv)
            if not _sparse(spec):
                return -(-n // page), row, row
            if (record.rank, record.rope_dim, record.index_dim or 128) == PACKED_SHAPE:
                packed = PACKED_ROW if kv.key.name == "fp8" else row
                return -(-n // page), packed + (INDEX_ROW if index else 0), row + index
        raise _no_rule(spec, record)

    def _differences(
        self, record: CacheRecord, held: int, row: int, needed: int, workload: Workload, kv: KvTypes, page: int
    ) -> list[tuple[str, int]]:
        """(cause, bytes) of one layer and all sequences: they sum to its slots - needed."""
        n, batch = workload.context_tokens, workload.batch_size
        tokens = min(n, record.window_tokens or n)
        cause = "page rounding" if tokens == n else "windows kept"
        return [
            ("spare pages", page * row),
            (cause, batch * (held * page - tokens) * row),
            ("fp8 rows and index keys with scales", batch * tokens * (row - needed)),
        ]


def _sparse(spec: ModelSpec) -> bool:
    return any(isinstance(record, Latent) and record.index_topk for group in spec.groups for record in group.records)


def _no_rule(spec: ModelSpec, record: CacheRecord) -> NotModelled:
    text = f"kvcli has no rule of sglang for the {record.kind} layers of {spec.model_type}"
    return NotModelled(text, hint="use --engine ideal", code="no_storage_rule")


def policy(options: EngineOptions) -> StoragePolicy:
    """Raises BadInput for a version other than 0.5."""
    version = options.version or "0.5"
    if ".".join(version.strip().lower().removeprefix("v").split(".")[:2]) != "0.5":
        raise BadInput(
            f"kvcli does not know what sglang {version[:20]} stores", hint="--engine-version is 0.5", code="unknown_engine_version"
        )
    return SgLang(options.page_size)
