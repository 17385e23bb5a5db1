"""How SGLang stores DeepSeek-V4: a pool each of windows, entries, index keys and compressor states, all addressed by pages of 256.

Pages of entries line up with those of the tokens: one of 256 tokens has 64 entries of CSA or 2 of HCA. Windows are kept in pages
of the same 256 tokens in every layer. States of CSA lie in rings of 8 rows; there are as many rings as the pool of windows has
windows, two a page. States of HCA lie in a ring of 128 rows a request. Sources, 0.5 of autumn 2026: `deepseek_v4_memory_pool`,
`deepseek_v4_compress_state`, `pool_configurator`; the rows of states are checked against sizes its developers measured.
"""

from __future__ import annotations

from collections import Counter

from kvcli.dtypes import FP32, PLAIN, KvTypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.cache_records import CacheRecord
from kvcli.model.latent_records import Compressed
from kvcli.model.spec import ModelSpec
from kvcli.plan.storage.held import Held
from kvcli.plan.storage.policy import Stored
from kvcli.plan.workload import Workload

#: The only type, and the only page.
KV = KvTypes(PLAIN["fp8"], PLAIN["fp8"])
PAGE = 256
#: 448 fp8 elements, 64 bf16 elements of rope, 7 scales and a byte of padding; pages are padded to a multiple of 576.
ROW, WIDTH, ALIGNMENT = 584, 512, 576
#: 128 fp8 elements and a float32 scale.
INDEX_ROW, INDEX_WIDTH = 132, 128
#: (ratio, index width) of window layers, CSA and HCA.
SHAPES = ((0, 0), (4, INDEX_WIDTH), (128, 0))
#: Rows of a ring of compressor states, by ratio.
RINGS = {4: 8, 128: 128}


def compressed(spec: ModelSpec) -> bool:
    return any(isinstance(record, Compressed) for group in spec.groups for record in group.records)


def state_rows(slots: int, ratio: int) -> int:
    """Rows of a pool of states for that many slots: a ring and a row more, in whole entries."""
    return -(-(slots + RINGS[ratio] + 1) // ratio) * ratio


def store(spec: ModelSpec, workload: Workload, kv: KvTypes, page_tokens: int | None) -> Stored:
    """See StoragePolicy. Raises BadInput for types and pages it has no pools of, NotModelled for other shapes."""
    if kv != KV:
        text = f"sglang keeps DeepSeek-V4's cache in fp8, not in {kv.label}"
        raise BadInput(text, hint="--kv-dtype fp8", code="unsupported_kv_dtype")
    if page_tokens not in (None, PAGE):
        text = f"sglang keeps DeepSeek-V4 in pages of {PAGE} tokens alone"
        raise BadInput(text, hint="leave --page-size out", code="bad_page_size")
    n, batch = workload.context_tokens, workload.batch_size
    rows: list[int] = []
    causes: Counter[str] = Counter()
    windows = False
    for group in spec.groups:
        for record in group.records:
            held = _held(spec, record, n, batch, kv)
            rows.append(group.count * held.total_bytes)
            windows = windows or n > PAGE
            for cause, size in held.causes:
                causes[cause] += group.count * size
    stored = tuple((cause, size) for cause, size in causes.items() if size)
    text = "windows are counted at the two pages they may lie in; sglang frees what left them with a delay"
    return Stored(tuple(rows), stored, batch * -(-n // PAGE), PAGE, (Notice("sglang_window_pool", text),) if windows else ())


def _held(spec: ModelSpec, record: CacheRecord, n: int, batch: int, kv: KvTypes) -> Held:
    """The pools of one layer, as far as the sequences and the spare pages go."""
    window = getattr(record, "window_tokens", None)
    known = isinstance(record, Compressed) and record.dim == WIDTH and (record.ratio, record.index_dim) in SHAPES
    if not isinstance(record, Compressed) or not known or not window or PAGE % window:
        text = f"kvcli has no rule of sglang for the {record.kind} layers of {spec.model_type}, of this shape"
        raise NotModelled(text, hint="use --engine ideal", code="no_storage_rule")
    ratio, index, pages = record.ratio, record.index_dim, -(-n // PAGE)
    in_window = min(pages, -(-(window - 1) // PAGE) + 1)
    row, key = ROW - kv.key.bytes_for(WIDTH), INDEX_ROW - kv.key.bytes_for(INDEX_WIDTH)
    spare = "windows kept" if record.visible_tokens(n) < n else "page rounding"
    held = _pages(batch, in_window, PAGE, ROW, record.visible_tokens(n), row, spare, ALIGNMENT)
    if not ratio:
        return held
    held += _pages(batch, pages, PAGE // ratio, ROW, record.entries(n), row, "page rounding", ALIGNMENT)
    if index:
        held += _pages(batch, pages, PAGE // ratio, INDEX_ROW, record.entries(n), key, "page rounding", 1)
        used, slots = (batch * in_window * (PAGE // window) * RINGS[ratio],) * 2
    else:
        used, slots = batch * RINGS[ratio], (batch + 1) * RINGS[ratio]
    # values and gates, in CSA of two streams
    state = FP32.bytes_for((4 if index else 2) * (record.dim + index))
    total = state_rows(slots, ratio) * state
    return held + Held(
        total,
        (("spare pages", total - used * state), ("compressor states", used * state - batch * record.open_bytes(n, kv))),
    )


def _pages(batch: int, pages: int, rows: int, row_bytes: int, kept: int, longer_bytes: int, spare: str, alignment: int) -> Held:
    """A pool of `pages` pages a sequence and a spare one. `kept` rows of each sequence are needed, `longer_bytes` less of each."""
    page = -(-rows * row_bytes // alignment) * alignment
    return Held(
        (batch * pages + 1) * page,
        (
            ("spare pages", page),
            ("page alignment", batch * pages * (page - rows * row_bytes)),
            (spare, batch * (pages * rows - kept) * row_bytes),
            ("fp8 rows and index keys with scales", batch * kept * longer_bytes),
        ),
    )
