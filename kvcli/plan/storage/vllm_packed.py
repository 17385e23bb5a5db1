"""How vLLM stores DeepSeek-V4: several caches a layer, with pages of their own sizes, packed side by side into one block.

A layer has a cache of its window, one of compressed entries, in CSA one of index keys, and a short float32 window of what its
compressors have not finished. Caches that cover equally many tokens a block and look equally far back form a bucket; a bucket is
cut into groups, and a block id is as wide as the widest group. Sources, vLLM 0.27 to 0.33: the cache specifications in
`models/deepseek_v4` (`attention`, `compressor`) and `sparse_swa`, `kv_cache_interface` (rows and alignment), the grouping in
`kv_cache_utils`; checked against block widths and a start-up refusal that its developers and users printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from kvcli.dtypes import FP32, KvTypes
from kvcli.errors import BadInput, NotModelled
from kvcli.model.latent_records import Compressed
from kvcli.model.spec import ModelSpec
from kvcli.plan.sharing.rules import ceil_div
from kvcli.plan.storage.policy import Stored
from kvcli.plan.storage.vllm_groups import Kind, blocks_admitted, blocks_held
from kvcli.plan.workload import Workload

#: Tokens of a block of entries; of the window; of compressor states by ratio (pages of all are nearly equally long).
ENTRY_BLOCK, WINDOW_BLOCK, STATE_BLOCKS = 256, 64, {4: 4, 128: 8}
#: fp8_ds_mla of V4: 448 fp8 elements, 64 bf16 elements of rope and 8 bytes of scales; the width it is of.
ROW, WIDTH = 584, 512
#: An index key: 128 fp8 elements and a float32 scale.
INDEX_ROW, INDEX_WIDTH = 132, 128
#: Pages are padded to a multiple of it: with fp8_ds_mla rows, and with plain ones.
ALIGNMENT, PLAIN_ALIGNMENT = 576, 512


class Rows(NamedTuple):
    """What a cache keeps for each token or entry, and how its pages are aligned, in bytes."""

    row_bytes: int
    index_bytes: int
    alignment: int


class Part(NamedTuple):
    """One cache of one layer: `rows` rows a block of `block_tokens` tokens. `window_tokens` 0 keeps all tokens.

    `width` elements of a row are needed and `why` is the cause of the rest; both are empty for states.
    """

    block_tokens: int
    window_tokens: int
    rows: int
    row_bytes: int
    page_bytes: int
    width: int = 0
    why: str = ""


class Bucket(NamedTuple):
    """Caches with blocks and windows alike, in `groups` groups. `page_bytes` are of one block in all of them."""

    block_tokens: int
    window_tokens: int
    groups: int
    page_bytes: int

    @property
    def kind(self) -> Kind:
        return Kind("window" if self.window_tokens else "full", self.window_tokens, 0)


class Packing(NamedTuple):
    """`block_bytes` are of one block id."""

    block_bytes: int
    buckets: tuple[Bucket, ...]

    def ids(self, tokens: int) -> int:
        """Block ids of one sequence between decode steps."""
        return sum(each.groups * blocks_held(each.kind, each.block_tokens, tokens, 0) for each in self.buckets)

    def ids_admitted(self, tokens: int, in_flight: int) -> int:
        """Block ids that must be free before such a sequence is admitted."""
        return sum(each.groups * blocks_admitted(each.kind, each.block_tokens, tokens, 0, in_flight) for each in self.buckets)


def rows_of(kv: KvTypes) -> Rows:
    """fp8 means the packed rows of FlashMLA; in 16 bits rows are plain."""
    if kv.key.name == "fp8":
        return Rows(ROW, INDEX_ROW, ALIGNMENT)
    return Rows(kv.key.bytes_for(WIDTH), INDEX_ROW, PLAIN_ALIGNMENT)


def parts(record: Compressed, rows: Rows) -> tuple[Part, ...]:
    """The caches of one layer. Raises NotModelled for shapes vLLM has no rows for."""
    window, ratio, index = record.window_tokens, record.ratio, record.index_dim
    overlap = 2 if index else 1
    if record.dim != WIDTH or window is None or index not in (0, INDEX_WIDTH) or (ratio and STATE_BLOCKS.get(ratio, 0) * overlap != 8):
        raise NotModelled(f"kvcli has no rule of vllm for {record.kind} layers of this shape", hint="use --engine ideal")

    def part(block: int, limit: int, count: int, row: int, width: int = 0, why: str = "") -> Part:
        return Part(block, limit, count, row, ceil_div(count * row, rows.alignment) * rows.alignment, width, why)

    found = [part(WINDOW_BLOCK, window, WINDOW_BLOCK, rows.row_bytes, record.dim, "fp8_ds_mla rows")]
    if ratio:
        entries, block = ENTRY_BLOCK // ratio, STATE_BLOCKS[ratio]
        found.append(part(ENTRY_BLOCK, 0, entries, rows.row_bytes, record.dim, "fp8_ds_mla rows"))
        if index:
            found.append(part(ENTRY_BLOCK, 0, entries, rows.index_bytes, index, "fp8 index keys with a scale"))
        # values and gates of each stream, of the tokens of the entries that overlap
        for width in (record.dim, index):
            if width:
                found.append(part(block, overlap * ratio, block, FP32.bytes_for(2 * overlap * width)))
    return tuple(found)


def packing(layers: list[tuple[int, Compressed]], rows: Rows) -> Packing:
    """How caches of (count, record) layers share blocks."""
    sizes: dict[tuple[int, int], Counter[int]] = {}
    for count, record in layers:
        for part in parts(record, rows):
            sizes.setdefault((part.block_tokens, part.window_tokens), Counter())[part.page_bytes] += count
    # A bucket with as many caches of one size as of the other repeats a pattern and can be cut; a mixed one stays whole.
    balanced = {key: max(counts.values()) for key, counts in sizes.items() if len(set(counts.values())) == 1}
    least = max((repeats for key, repeats in balanced.items() if len(sizes[key]) > 1), default=0)
    repeats = _fewest_padding(list(balanced.values()), least) if least else 0
    groups = {key: ceil_div(balanced[key], repeats) if repeats and key in balanced else 1 for key in sizes}
    widths = [sum(page * ceil_div(count, groups[key]) for page, count in counts.items()) for key, counts in sizes.items()]
    buckets = (
        Bucket(*key, groups=groups[key], page_bytes=sum(page * count for page, count in counts.items())) for key, counts in sizes.items()
    )
    return Packing(max(widths), tuple(buckets))


def _fewest_padding(counts: list[int], least: int) -> int:
    """The group size from `least` on that leaves the fewest empty places, the largest of equals."""
    return min(range(least, max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))


def compressed_layers(spec: ModelSpec, kv: KvTypes, block_tokens: int | None) -> list[tuple[int, Compressed]]:
    """(count, record) of a model of compressed layers alone. Raises NotModelled and BadInput for what vLLM has no such cache for."""
    found = [(group.count, record) for group in spec.groups for record in group.records if isinstance(record, Compressed)]
    if len(found) != sum(len(group.records) for group in spec.groups) or not any(record.ratio for _, record in found):
        raise NotModelled(f"kvcli has no rule of vllm for the mixture of layers of {spec.name}", hint="use --engine ideal")
    if kv.key != kv.value or kv.key.name not in ("bf16", "fp8"):
        text = f"vllm keeps DeepSeek-V4's cache in fp8 or bf16, not in {kv.label}"
        raise BadInput(text, hint="--kv-dtype fp8", code="unsupported_kv_dtype")
    if block_tokens not in (None, ENTRY_BLOCK):
        text = f"vllm keeps DeepSeek-V4 in blocks of {ENTRY_BLOCK} tokens, not of {block_tokens}"
        raise BadInput(text, hint="leave --block-size out", code="bad_block_size")
    return found


def store(layers: list[tuple[int, Compressed]], workload: Workload, kv: KvTypes) -> Stored:
    """See StoragePolicy. A bucket's empty places go to the row of its last layers."""
    n, batch, rows = workload.context_tokens, workload.batch_size, rows_of(kv)
    packed = packing(layers, rows)
    held = {(each.block_tokens, each.window_tokens): blocks_held(each.kind, each.block_tokens, n, 0) for each in packed.buckets}
    found = [parts(record, rows) for _, record in layers]
    sizes = [count * sum(held[part[:2]] * part.page_bytes for part in own) for (count, _), own in zip(layers, found, strict=True)]
    causes: Counter[str] = Counter()
    for (count, record), own in zip(layers, found, strict=True):
        for cause, size in _differences(record, own, held, n, kv):
            causes[cause] += batch * count * size
    for each in packed.buckets:
        key = (each.block_tokens, each.window_tokens)
        padding = held[key] * (each.groups * packed.block_bytes - each.page_bytes)
        sizes[max(number for number, own in enumerate(found) if any(part[:2] == key for part in own))] += padding
        causes["blocks as wide as the widest group"] += batch * padding
    stored = tuple((cause, size) for cause, size in causes.items() if size)
    smallest = min(each.block_tokens for each in packed.buckets)
    return Stored(tuple(batch * size for size in sizes), stored, batch * packed.ids(n), smallest)


def _differences(
    record: Compressed, own: tuple[Part, ...], held: dict[tuple[int, int], int], n: int, kv: KvTypes
) -> Iterator[tuple[str, int]]:
    """(cause, bytes) of one layer and sequence: they sum to its pages - needed."""
    states = 0
    for part in own:
        blocks = held[part[:2]]
        yield "page alignment", blocks * (part.page_bytes - part.rows * part.row_bytes)
        if not part.width:
            states += blocks * part.rows * part.row_bytes
            continue
        kept = record.visible_tokens(n) if part.window_tokens else record.entries(n)
        spare = "windows kept" if part.window_tokens and kept < n else "page rounding"
        yield spare, (blocks * part.rows - kept) * part.row_bytes
        yield part.why, kept * (part.row_bytes - kv.key.bytes_for(part.width))
    yield "compressor states", states - record.open_bytes(n, kv)
