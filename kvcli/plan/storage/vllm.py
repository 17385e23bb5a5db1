"""vLLM 0.33: whole pages of a pool, layer by layer, and the group rule where layers differ.

Sources: the engine's own start-up lines (block counts, "needed" figures) and its cache interface: a page is
block x heads x (key row + value row); MLA keeps one row without values; states are one page a layer and sequence.
What is stored here is the steady state between decode steps, without the pool's null block; what a request needs to be
admitted, which is more for windows and states, goes into a notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kvcli.dtypes import PLAIN, KvTypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Compressed, Latent
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Cross
from kvcli.plan.sharing.rules import SharingRule, ceil_div, more_in_middle
from kvcli.plan.storage import vllm_packed as packed
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored
from kvcli.plan.storage.vllm_groups import LATENT_ALIGNMENT, Kind, Layout, PoolUnit, blocks_admitted, blocks_held, lay_out
from kvcli.plan.storage.vllm_rows import Layers, block_tokens, compressed, compute_dtype, latent_hybrid, layers_of, sparse
from kvcli.plan.workload import Workload
from kvcli.units import format_bytes

#: Tokens of a batch where --max-num-batched-tokens says nothing.
IN_FLIGHT = 8192
#: tables are padded to 64 words, which the ranks must divide (VocabParallelEmbedding)
SHARING = SharingRule(
    tensor=True,
    stages=more_in_middle,
    mixed_stages=False,
    experts="all",
    context=True,
    vocab_multiple=64,
    one_pool=True,
    whole_blocks=True,
    even_tokens=True,
)


@dataclass(frozen=True, slots=True)
class Vllm:
    """`block_tokens` None: vLLM's own choice. `in_flight_tokens` are those of one batch (max_num_batched_tokens).

    With `drafted` tokens a sequence has so many slots and states more, and convolutions so many columns.
    """

    block_tokens: int | None = None
    in_flight_tokens: int | None = None
    drafted: int = 0
    name: str = "vllm"
    version: str = "0.33"
    obeys_file: bool = True
    sharing: SharingRule = SHARING

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        """What it takes where no type is asked for: the model's, float32 files as bf16, and fp8_ds_mla for sparse MLA."""
        if sparse(spec) or compressed(spec):
            return KvTypes(PLAIN["fp8"], PLAIN["fp8"])
        return KvTypes(*(2 * (compute_dtype(spec),)))

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        """See StoragePolicy. `blocks` are block ids of all sequences, summed over groups."""
        if compressed(spec):
            stored = packed.store(self._packed(spec, kv), workload, kv)
            one = stored.total_bytes // workload.batch_size
            notices = self._notices(one, lambda batches: self.admission_bytes(spec, workload, kv, batches))
            return stored._replace(notices=(*_ds_mla_notice(spec, kv), *notices))
        layers = self._layers(spec, kv)
        layout = self._layout(spec, layers)
        n, batch = workload.context_tokens, workload.batch_size
        rows: list[int] = []
        causes: Counter[str] = Counter()
        last = {each.kind: number for number, each in enumerate(layers) if each}
        counts = _counts(layers)
        for number, each in enumerate(layers):
            if each is None:
                rows.append(0)
                continue
            pages = layout.pages[each.kind]
            encoder = encoder_tokens(each.record, workload)
            held = blocks_held(each.kind, pages.block_tokens, n, encoder)
            drafting = blocks_held(each.kind, pages.block_tokens, n, encoder, self.drafted) - held
            layer = batch * (held + drafting) * pages.page_bytes
            causes["slots and states of drafted tokens"] += batch * each.count * drafting * pages.page_bytes
            padding = layer * layout.padding_layers(each.kind, counts[each.kind]) if last[each.kind] == number else 0
            rows.append(layer * each.count + padding)
            causes["padding layers"] += padding
            for cause, size in self._differences(each, layout, held, spec, workload, kv):
                causes[cause] += batch * each.count * size
        ids = None
        if layout.block_tokens is not None:
            ids = batch * _block_ids(layout, {kind: self._held(layout, kind, layers, workload) for kind in layout.pages})
        why = tuple((cause, size) for cause, size in causes.items() if size)
        notices = self._notices(sum(rows) // batch, lambda batches: self._unit(layers, layout, workload, batches).request_bytes)
        return Stored(tuple(rows), why, ids, layout.block_tokens, (*_ds_mla_notice(spec, kv), *_aligned_notice(spec), *notices))

    def admission_bytes(self, spec: ModelSpec, workload: Workload, kv: KvTypes, batches: int = 1) -> int:
        """What must be free to admit one such sequence with `batches` batches in flight."""
        return self.pool_unit(spec, workload, kv, batches).request_bytes

    def pool_unit(self, spec: ModelSpec, workload: Workload, kv: KvTypes, batches: int = 1) -> PoolUnit:
        """How its pool is counted: bytes of a block id, and the ids that one such sequence takes to be admitted."""
        if compressed(spec):
            packing = packed.packing(self._packed(spec, kv), packed.rows_of(kv))
            ids = packing.ids_admitted(workload.context_tokens, batches * (self.in_flight_tokens or IN_FLIGHT))
            smallest = min(each.block_tokens for each in packing.buckets)
            return PoolUnit(packing.block_bytes, ids, sum(each.groups for each in packing.buckets), smallest)
        layers = self._layers(spec, kv)
        return self._unit(layers, self._layout(spec, layers), workload, batches)

    def _unit(self, layers: list[Layers | None], layout: Layout, workload: Workload, batches: int) -> PoolUnit:
        in_flight = batches * (self.in_flight_tokens or IN_FLIGHT)
        asked = {}
        for kind, pages in layout.pages.items():
            encoder = max(encoder_tokens(each.record, workload) for each in layers if each and each.kind == kind)
            asked[kind] = blocks_admitted(kind, pages.block_tokens, workload.context_tokens, encoder, in_flight, self.drafted)
        if layout.group_size:
            width = layout.group_size * max(pages.page_bytes for pages in layout.pages.values())
        else:
            width = sum(count * layout.pages[kind].page_bytes for kind, count in _counts(layers).items())
        groups = sum(pages.groups for pages in layout.pages.values()) if layout.group_size else 1
        return PoolUnit(width, _block_ids(layout, asked), groups, layout.block_tokens)

    def _packed(self, spec: ModelSpec, kv: KvTypes) -> list[tuple[int, Compressed]]:
        if self.version == "0.9":
            raise NotModelled(f"vllm 0.9 did not know the layers of {spec.name}", hint="leave --engine-version out", code="no_storage_rule")
        if self.drafted:
            text = f"kvcli has no rule what vllm keeps of {spec.name} for drafted tokens"
            raise NotModelled(text, hint="leave --speculative out", code="no_storage_rule")
        return packed.compressed_layers(spec, kv, self.block_tokens)

    def _notices(self, one: int, admission: Callable[[int], int]) -> tuple[Notice, ...]:
        """`one` are the stored bytes of a sequence, `admission` those it needs with that many batches in flight."""
        asked, doubled = admission(1), admission(2)
        if asked <= one:
            return ()
        text = (
            f"stored is what vllm holds between decode steps; to admit one such sequence it wants {format_bytes(asked)}, "
            f"or {format_bytes(doubled)} with two batches in flight, at {self.in_flight_tokens or IN_FLIGHT:,} tokens a batch"
        )
        return (Notice("vllm_admission", text),)

    def _held(self, layout: Layout, kind: Kind, layers: list[Layers | None], workload: Workload) -> int:
        encoder = max(encoder_tokens(each.record, workload) for each in layers if each and each.kind == kind)
        return blocks_held(kind, layout.pages[kind].block_tokens, workload.context_tokens, encoder, self.drafted)

    def _layout(self, spec: ModelSpec, layers: list[Layers | None]) -> Layout:
        counts = _counts(layers)
        if self.version == "0.9" and (len(set(counts.values())) > 1 or any(kind.rule == "state" for kind in counts)):
            raise NotModelled(f"kvcli has no rule of vllm 0.9 for the layers of {spec.name}", hint="leave --engine-version out")
        return lay_out(counts, block_tokens(spec, self.block_tokens))

    def _layers(self, spec: ModelSpec, kv: KvTypes) -> list[Layers | None]:
        return layers_of(spec, kv, chunks=self.version != "0.9", drafted=self.drafted)  # 0.9 keeps chunked layers whole

    def _differences(
        self, each: Layers, layout: Layout, held: int, spec: ModelSpec, workload: Workload, kv: KvTypes
    ) -> list[tuple[str, int]]:
        """(cause, bytes) of one layer and sequence, without padding layers: they sum to its pages - needed - state."""
        record, kind, pages = each.record, each.kind, layout.pages[each.kind]
        n = workload.context_tokens
        state = record.state_bytes(spec.dtype, workload.encoder_tokens)
        if kind.rule == "state":
            longer = sum(size for _, size in each.longer)
            dtype = kind.row_bytes - longer - state
            return [("hybrid page size", pages.page_bytes - kind.row_bytes), ("state dtype", dtype), *each.longer]
        filled = pages.block_tokens * kind.row_bytes
        found = [("hybrid page size", held * (pages.page_bytes - filled))]
        if kind.rule == "cross":
            tokens, dtype_rows = encoder_tokens(record, workload), state
        else:
            tokens = record.visible_tokens(n) if isinstance(record, Attention | Latent) else n
            dtype_rows = record.needed_bytes(n, kv)
        spare = (held * pages.block_tokens - tokens) * kind.row_bytes
        if isinstance(record, Attention) and record.kind in ("sliding_attention", "chunked_attention") and tokens < n:
            found.append(("windows kept", spare))
        else:
            plain = block_tokens(spec, self.block_tokens)
            rounding = min(spare, (ceil_div(tokens, plain) * plain - tokens) * kind.row_bytes)
            found += [("page rounding", rounding), ("hybrid page size", spare - rounding)]
        found += [(cause, size * tokens) for cause, size in each.longer]
        rest = tokens * (kind.row_bytes - sum(size for _, size in each.longer)) - dtype_rows
        return [*found, ("type of cross-attention rows", rest)]


def _counts(layers: list[Layers | None]) -> Counter[Kind]:
    counts: Counter[Kind] = Counter()
    for each in layers:
        if each:
            counts[each.kind] += each.count
    return counts


def _block_ids(layout: Layout, held: dict[Kind, int]) -> int:
    """Ids of one sequence: one group's where all layers share a block, else of every group."""
    if not layout.group_size:
        return max(held.values(), default=0)  # a stage may own no cache
    return sum(layout.pages[kind].groups * blocks for kind, blocks in held.items())


def encoder_tokens(record: CacheRecord, workload: Workload) -> int:
    return (workload.encoder_tokens or record.default_tokens) if isinstance(record, Cross) else 0


def _ds_mla_notice(spec: ModelSpec, kv: KvTypes) -> tuple[Notice, ...]:
    if kv.key.name != "fp8" or not (sparse(spec) or compressed(spec)):
        return ()
    what = "DeepSeek-V4" if compressed(spec) else "sparse MLA"
    others = "plain ones, which FlashInfer reads" if compressed(spec) else "others"
    text = f"vllm keeps {what} in fp8_ds_mla rows of its own accord; --kv-dtype bf16 is how to ask for {others}"
    return (Notice("vllm_fp8_ds_mla", text),)


def _aligned_notice(spec: ModelSpec) -> tuple[Notice, ...]:
    if not latent_hybrid(spec):
        return ()
    text = f"blocks are aligned to {LATENT_ALIGNMENT} tokens as FlashMLA wants; FlashInfer's MLA aligns them to 32"
    return (Notice("vllm_block_alignment", text),)


#: Versions with a rule of their own, by their first two numbers.
VERSIONS = ("0.33", "0.9")


def policy(options: EngineOptions) -> StoragePolicy:
    """Raises BadInput for a version without a known rule."""
    version = options.version or VERSIONS[0]
    short = ".".join(version.strip().lower().removeprefix("v").split(".")[:2])
    if short not in VERSIONS:
        raise BadInput(
            f"kvcli does not know what vllm {version[:20]} stores",
            hint="--engine-version is one of " + ", ".join(VERSIONS),
            code="unknown_engine_version",
        )
    return Vllm(options.block_size, options.max_num_batched_tokens, options.drafted, version=short)
