"""llama.cpp: buffers of whole cells, allocated at start whatever is in them later.

A cell holds one token of one layer. All sequences share one buffer (`--kv-unified`), or each has its own stream of cells.
Sources: llama.cpp's `llama-context.cpp` (padding of n_ctx), `llama-kv-cache.cpp`, `-iswa`, `-dsa`, `-msa`, `-dsv4` and
`llama-memory-recurrent.cpp`, as of autumn 2026; checked against buffer sizes that engines printed and against the library.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from kvcli import dtypes
from kvcli.dtypes import KvTypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Compressed, Latent
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Recurrent
from kvcli.plan.sharing.rules import SharingRule, by_equal_memory
from kvcli.plan.storage import llama_cpp_models as models
from kvcli.plan.storage.held import Held
from kvcli.plan.storage.llama_cpp_layout import Layout, beside, cells_of, compressed, recurrent
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored
from kvcli.plan.workload import Workload

#: kvcli's names of the types its cache can have (`-ctk`, `-ctv`) -> llama.cpp's
TYPES = {
    "fp32": "f32",
    "fp16": "f16",
    "bf16": "bf16",
    "q8_0": "q8_0",
    "q5_1": "q5_1",
    "q5_0": "q5_0",
    "q4_1": "q4_1",
    "q4_0": "q4_0",
    "iq4_nl": "iq4_nl",
}
#: what it takes without `-ctk` and `-ctv`
AUTO_KV = KvTypes(dtypes.FP16, dtypes.FP16)
#: LLAMA_MAX_SEQ
MOST_SLOTS = 256
#: the CLI's `-b`, which bounds `-ub`
LOGICAL_BATCH = 2048
#: builds whose rule this is; the older one knew neither window caches nor latent rows without values
VERSIONS = ("2026-11", "2025-05")

SHARING = SharingRule(stages=by_equal_memory, replicas=False, tables_on_host=True)
#: of the older builds
OLDER_SHARING = SHARING._replace(output_last=True)


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """`slots` None means one a sequence; `ubatch` is the most tokens of one physical batch.
    `shared_tokens` are those of the one buffer where it is unified; None means the context times the slots.

    `rollback` states beside the current one are kept where draft tokens may be undone.
    """

    slots: int | None = None
    unified: bool = False
    shared_tokens: int | None = None
    swa_full: bool = False
    ubatch: int = 512
    rollback: int = 0
    name: str = "llama.cpp"
    version: str = VERSIONS[0]
    obeys_file: bool = False
    types: tuple[str, ...] = tuple(TYPES)

    @property
    def sharing(self) -> SharingRule:
        return SHARING if self.version == VERSIONS[0] else OLDER_SHARING

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        """f16 whatever the model's dtype."""
        return AUTO_KV

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        """Raises BadInput for types and slots llama.cpp refuses, NotModelled for layers without a rule."""
        slots = self._slots(workload)
        records = [(group.count, record) for group in spec.groups for record in group.records]
        self._check_types(kv, [record for _, record in records])
        older = self.version != VERSIONS[0]
        layout = Layout(
            slots=slots,
            sequences=workload.batch_size,
            context_tokens=workload.context_tokens,
            # the older builds had one buffer for all sequences, padded for flash attention alone, which was off
            unified=self.unified or older,
            ubatch=self.ubatch,
            pad=32 if older and kv.value in dtypes.COMPUTE else 256,
            shared_tokens=self.shared_tokens,
        )
        windows = models.windows(spec, self.name) if not (self.swa_full or older) else {}
        causes: Counter[str] = Counter()
        rows = []
        for count, record in records:
            held = self._one(record, spec, layout, kv, windows)
            rows.append(count * held.total_bytes)
            for cause, size in held.causes:
                causes[cause] += count * size
        return Stored(
            tuple(rows),
            tuple((cause, size) for cause, size in causes.items() if size),
            notices=self._notices(workload, kv, layout),
        )

    def _one(self, record: CacheRecord, spec: ModelSpec, layout: Layout, kv: KvTypes, windows: dict[CacheRecord, int]) -> Held:
        """All slots, one layer."""
        older = self.version != VERSIONS[0]
        if isinstance(record, Attention):
            if not record.owns_cache:
                return Held(0, ())
            held = cells_of(layout, record.token_bytes(kv), record.visible_tokens(layout.context_tokens), windows.get(record))
            if record.index_dim:
                if older or spec.model_type not in models.INDEXED:
                    raise self._no_rule(spec, f"the index keys of {record.kind}")
                keys = cells_of(layout, record.index_bytes(kv), layout.context_tokens)
                # its cache of index keys has values of one head too, which nothing reads
                held += keys + beside(layout, kv.value.bytes_for(record.value_dim), "values beside index keys")
            return held
        if isinstance(record, Latent):
            if record.window_tokens or record.index_pool > 1 or record.index_dtype or (older and record.index_dim):
                raise self._no_rule(spec, record.kind)
            index = kv.key.bytes_for(record.index_dim) if record.index_dim else 0
            held = cells_of(layout, record.row_bytes(kv) + index, layout.context_tokens)
            if older and record.owns_cache:
                held += beside(layout, kv.value.bytes_for(record.rank), "values beside the latent")
            return held
        if older:
            raise self._no_rule(spec, record.kind)
        if isinstance(record, Compressed):
            return compressed(layout, record, kv, self.swa_full)
        if isinstance(record, Recurrent) and spec.model_type in models.RECURRENT and not record.plain_elements:
            return recurrent(layout, record, spec.dtype, self.rollback)
        raise self._no_rule(spec, record.kind)

    def _no_rule(self, spec: ModelSpec, what: str) -> NotModelled:
        which = f" of {self.version}" if self.version != VERSIONS[0] else ""
        return NotModelled(
            f"kvcli does not know how {self.name}{which} stores {what} layers of {spec.model_type}",
            hint="use --engine ideal",
            code="no_storage_rule",
        )

    def _slots(self, workload: Workload) -> int:
        slots = self.slots or workload.batch_size
        if slots < workload.batch_size:
            text = f"{slots} slots cannot hold {workload.batch_size} sequences together"
            raise BadInput(text, hint="raise --parallel or lower --batch", code="too_few_slots")
        if slots > MOST_SLOTS:
            text = f"llama.cpp has at most {MOST_SLOTS} slots, not {slots}"
            raise BadInput(text, hint="lower --parallel or --batch", code="too_many_slots")
        tokens = workload.batch_size * workload.context_tokens
        if self.shared_tokens and tokens > self.shared_tokens:
            text = f"a buffer of {self.shared_tokens:,} tokens cannot hold {tokens:,} together"
            raise BadInput(text, hint="raise -c or lower --batch", code="too_few_cells")
        return slots

    def _check_types(self, kv: KvTypes, records: list[CacheRecord]) -> None:
        for dtype in kv:
            if dtype.name not in self.types:
                raise BadInput(
                    f"{self.name} has no cache of type {dtype.name}",
                    hint="one of " + ", ".join(self.types),
                    code="unsupported_kv_dtype",
                )
        if kv.key != kv.value and any(isinstance(record, Latent | Compressed) for record in records):
            raise BadInput(
                f"{self.name} keeps latent rows in one type, and {kv.label} names two",
                hint=f"--kv-dtype {kv.key.name}",
                code="unsupported_kv_dtype",
            )

    def _notices(self, workload: Workload, kv: KvTypes, layout: Layout) -> tuple[Notice, ...]:
        flags = f"-c {layout.shared_tokens or workload.context_tokens * layout.slots} -np {layout.slots}"
        flags += " -kvu" if self.unified else ""
        flags += " --swa-full" if self.swa_full else ""
        flags += f" -b {self.ubatch}" if self.ubatch > LOGICAL_BATCH else ""
        flags += f" -ub {self.ubatch}" if self.ubatch != 512 else ""
        if kv != AUTO_KV:
            flags += f" -ctk {TYPES[kv.key.name]} -ctv {TYPES[kv.value.name]}"
        notices = [Notice("engine_flags", f"{self.name} {self.version} stores this with {flags}")]
        if kv.value not in dtypes.COMPUTE:
            text = f"{self.name} stores values in {kv.value.name} only with flash attention (-fa on)"
            notices.append(Notice("needs_flash_attention", text))
        return tuple(notices)


def version_of(options: EngineOptions) -> str:
    """The rule's version. Raises BadInput for one kvcli has no rule for."""
    if options.version is None:
        return VERSIONS[0]
    if options.version not in VERSIONS:
        raise BadInput(
            f"kvcli has no storage rule for llama.cpp {options.version[:40]!r}",
            hint="one of " + ", ".join(VERSIONS),
            code="unknown_engine_version",
        )
    return options.version


def policy(options: EngineOptions) -> StoragePolicy:
    version = version_of(options)
    if version != VERSIONS[0] and (options.kv_unified or options.swa_full):
        raise BadInput(
            f"llama.cpp of {version} has neither --kv-unified nor --swa-full: it stores so in any case",
            hint="leave them out",
            code="unknown_engine_option",
        )
    rule = LlamaCpp(
        slots=options.parallel,
        unified=options.kv_unified,
        shared_tokens=options.shared_tokens if options.kv_unified else None,
        swa_full=options.swa_full,
        rollback=options.drafted,
        version=version,
    )
    return rule if options.ubatch is None else replace(rule, ubatch=options.ubatch)
