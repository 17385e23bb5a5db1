"""SGLang 0.5: pools of token slots, handed out in pages, each pool with one spare page.

A pool has size + page_size slots (visible in its start-up line). States have a pool of max_mamba_cache_size + 1 slots. Window
layers have a pool of their own where the architecture is on SGLang's list (`is_hybrid_swa_model`); elsewhere their tokens stay
as if they had no window. Stored is what the sequences take of the pools and the spare page of each; the pools themselves fill
the memory budget. Sources, 0.5.19: `configs/model_config`, `mem_cache/memory_pool`, `managers/schedule_batch`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvcli import dtypes
from kvcli.dtypes import KvTypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Latent
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Recurrent
from kvcli.plan.sharing.rules import SharingRule, more_in_last
from kvcli.plan.storage import sglang_v4
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored, half_kv
from kvcli.plan.workload import Workload

#: The packed fp8 row of sparse MLA, and its index key with a scale, in bytes; the shape (rank, rope, index) they are of.
PACKED_ROW, INDEX_ROW, PACKED_SHAPE = 656, 132, (512, 64, 128)
#: Sparse MLA runs with pages of 64 alone; MiniMax-M3 takes 128 unless told otherwise.
SPARSE_PAGE, INDEXED_PAGE = 64, 128
#: model_types with a pool of index keys beside keys and values.
INDEXED = frozenset(("minimax_m3_vl_text",))

#: Hybrids whose states lie in the state pool.
STATE_MODELS = (
    *("bailing_hybrid", "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "nemotron_h", "qwen3_next"),
    *("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"),
)

SHARING = SharingRule(True, more_in_last, experts="inside", data_attention=True, words_by_attention=True, whole_blocks=True)
#: model_types whose window layers have a pool of their own. A chunk counts as a window (Llama-4).
WINDOW_POOLS = frozenset(
    [
        *("gemma4_text", "gemma4_unified_text", "gpt_oss", "granite_swa", "granitemoe_swa", "inkling_text", "laguna", "llama4_text"),
        *("mellum", "mimo_v2_flash", "muse_glimmer_text", "step3p5", "step3p7"),
    ]
)


class Paged(NamedTuple):
    """One layer's part of a sequence: `pages` of slots of `row_bytes`, of which `visible` tokens of `needed_bytes` are needed.

    `pooled`: what left the window is freed.
    """

    pages: int
    row_bytes: int
    needed_bytes: int
    visible: int
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class SgLang:
    """`page_tokens` None: SGLang's own choice. `drafted` tokens have slots, and states in a pool beside."""

    page_tokens: int | None = None
    drafted: int = 0
    name: str = "sglang"
    version: str = "0.5"
    obeys_file: bool = True
    sharing: SharingRule = SHARING

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        return sglang_v4.KV if sglang_v4.compressed(spec) else half_kv(spec)

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        """See StoragePolicy. `blocks` are pages of the sequences, those of the largest pool, without the spare one."""
        if sglang_v4.compressed(spec):
            if self.drafted:
                text = f"kvcli has no rule what sglang keeps of {spec.name} for drafted tokens"
                raise NotModelled(text, hint="leave --speculative out", code="no_storage_rule")
            return sglang_v4.store(spec, workload, kv, self.page_tokens)
        if kv.key != kv.value or kv.key.name not in ("fp16", "bf16", "fp8"):
            raise BadInput(
                f"sglang keeps K and V both in fp16, bf16 or fp8, not in {kv.label}", hint="--kv-dtype fp8", code="unsupported_kv_dtype"
            )
        page, n, batch = self._page(spec), workload.context_tokens, workload.batch_size
        rows: list[int] = []
        causes: Counter[str] = Counter()
        notices: dict[str, Notice] = {}
        most = 0
        for group in spec.groups:
            for record in group.records:
                if isinstance(record, Recurrent):
                    one, found = self._state(spec, record, batch)
                else:
                    held = self._paged(spec, record, n, kv, page)
                    drafting = self._paged(spec, record, n + self.drafted, kv, page).pages - held.pages
                    if held.pooled:  # a window moves with the drafted tokens
                        drafting = -(-self.drafted // page)
                    one = (batch * (held.pages + drafting) + 1) * page * held.row_bytes
                    found = _differences(held, n, batch, page)
                    found.append(("slots of drafted tokens", batch * drafting * page * held.row_bytes))
                    most = max(most, held.pages + drafting)
                    if held.visible < n:
                        notice = _window_notice(spec, held.pooled)
                        notices[notice.code] = notice
                rows.append(one * group.count)
                for cause, size in found:
                    causes[cause] += size * group.count
        stored = tuple((cause, size) for cause, size in causes.items() if size)
        return Stored(tuple(rows), stored, batch * most or None, page if most else None, tuple(notices.values()))

    def _page(self, spec: ModelSpec) -> int:
        if not _sparse(spec):
            return self.page_tokens or (INDEXED_PAGE if spec.model_type in INDEXED else 1)
        if self.page_tokens not in (None, SPARSE_PAGE):
            raise BadInput(
                f"sglang keeps sparse MLA in pages of {SPARSE_PAGE} tokens alone", hint="leave --page-size out", code="bad_page_size"
            )
        return SPARSE_PAGE

    def pool_rows(self, spec: ModelSpec, kv: KvTypes) -> tuple[int, int, int, int]:
        """How its pools are counted: tokens of a page, bytes of a token in the large pool and in the pool of windows, bytes of a
        sequence's states. Raises NotModelled for layers without a rule, and for DeepSeek-V4's pools."""
        if sglang_v4.compressed(spec):
            raise NotModelled(f"kvcli has no rule how sglang deals memory among the pools of {spec.name}", hint="use --engine ideal")
        page, rows, windows, states = self._page(spec), 0, 0, 0
        pooled = spec.model_type in WINDOW_POOLS
        for group in spec.groups:
            for record in group.records:
                if isinstance(record, Recurrent):
                    one, _ = replace(self, drafted=0)._state(spec, record, 0)
                    states += group.count * one
                    continue
                width = group.count * self._paged(spec, record, 1, kv, page).row_bytes
                if pooled and isinstance(record, Attention) and (record.window_tokens or record.chunk_tokens):
                    windows += width
                else:
                    rows += width
        return page, rows, windows, states

    def _state(self, spec: ModelSpec, record: Recurrent, batch: int) -> tuple[int, list[tuple[str, int]]]:
        """One layer: K - 1 convolution columns in bf16, the state in float32 unless the file says otherwise, and a spare slot."""
        if spec.model_type not in STATE_MODELS:
            raise _no_rule(spec, record)
        kept = record._replace(conv_dtype=dtypes.BF16).state_bytes(spec.dtype, 0)
        causes = [
            ("spare slot of the state pool", kept),
            ("state dtype", batch * (kept - record.state_bytes(spec.dtype, 0))),
        ]
        if not self.drafted:
            return (batch + 1) * kept, causes
        # a state after each drafted token and after the one before them, of each running request and a spare one
        tokens = (batch + 1) * (self.drafted + 1)
        return (batch + 1 + tokens) * kept, [*causes, ("states of drafted tokens", tokens * kept)]

    def _paged(self, spec: ModelSpec, record: CacheRecord, n: int, kv: KvTypes, page: int) -> Paged:
        """What one layer keeps of a sequence of n tokens. Raises NotModelled for layers without a rule."""
        if isinstance(record, Attention) and record.owns_cache and record.index_dim and spec.model_type in INDEXED:
            if kv.key.name == "fp8":
                text = f"whether sglang keeps the index keys of {spec.model_type} in fp8 or in 16 bits depends on the device"
                raise NotModelled(text, hint="--kv-dtype bf16, or --engine ideal", code="no_storage_rule")
            row = record.token_bytes(kv) + record.index_bytes(kv)
            return Paged(-(-n // page), row, row, n)
        if isinstance(record, Attention) and record.owns_cache and not record.index_dim:
            row, width = record.token_bytes(kv), record.chunk_tokens or record.window_tokens
            visible = record.visible_tokens(n)
            if width is None or n <= width or spec.model_type not in WINDOW_POOLS:
                return Paged(-(-n // page), row, row, visible)
            if not any(each.kind == "full_attention" for group in spec.groups for each in group.records):
                raise NotModelled(
                    f"kvcli has no rule of sglang for {spec.name}, whose layers all have windows, beyond its window",
                    hint="use --engine ideal",
                    code="no_storage_rule",
                )
            return Paged(min(-(-n // page), -(-(width - 1) // page) + 1), row, row, visible, pooled=True)
        if isinstance(record, Latent) and record.owns_cache and record.window_tokens is None and record.index_pool == 1:
            row, index = record.row_bytes(kv), record.index_bytes(kv)
            if not _sparse(spec):
                return Paged(-(-n // page), row, row, n)
            if (record.rank, record.rope_dim, record.index_dim or 128) == PACKED_SHAPE:
                packed = PACKED_ROW if kv.key.name == "fp8" else row
                return Paged(-(-n // page), packed + (INDEX_ROW if index else 0), row + index, n)
        raise _no_rule(spec, record)


def _differences(held: Paged, n: int, batch: int, page: int) -> list[tuple[str, int]]:
    """(cause, bytes) of one layer and all sequences: they sum to its slots - needed."""
    kept, visible = held.pages * page, held.visible
    found = [("spare pages", page * held.row_bytes)]
    if held.pooled:
        found.append(("windows kept", batch * (kept - visible) * held.row_bytes))
    else:
        found.append(("page rounding", batch * (kept - n) * held.row_bytes))
        found.append(("windows kept in full", batch * (n - visible) * held.row_bytes))
    return [*found, ("fp8 rows and index keys with scales", batch * visible * (held.row_bytes - held.needed_bytes))]


def _window_notice(spec: ModelSpec, pooled: bool) -> Notice:
    if pooled:
        text = "window layers are counted at the pages their window lies in; sglang frees what left it with a delay"
        return Notice("sglang_window_pool", text)
    text = f"sglang has no pool for the windows of {spec.model_type}: it keeps all tokens of these layers"
    return Notice("sglang_windows_kept", text)


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
    return SgLang(options.page_size, options.drafted)
