"""ollama: it starts llama.cpp's server with a context of num_ctx x OLLAMA_NUM_PARALLEL tokens and as many slots.

One type for keys and values (OLLAMA_KV_CACHE_TYPE), both batches 512 tokens (num_batch), streams of their own, window caches
small: none of it but the type and the slots is an option. Sources: ollama's FAQ and `llm/llama_server.go`, `server/sched.go`
of 2026. Its older engine and MLX store otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcli.dtypes import KvTypes
from kvcli.errors import BadInput, Notice
from kvcli.model.spec import ModelSpec
from kvcli.plan.sharing.rules import SharingRule
from kvcli.plan.storage.llama_cpp import TYPES, LlamaCpp
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored
from kvcli.plan.workload import Workload

VERSIONS = ("2026-09",)
#: model_types its scheduler gives one slot, whatever OLLAMA_NUM_PARALLEL says
ONE_SLOT = frozenset(
    [
        *("lfm2", "lfm2_moe", "mllama_text_model", "nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
        *("qwen3_vl_moe_text", "qwen3_vl_text"),
    ]
)

SHARING = SharingRule(replicas=False, tables_on_host=True)


@dataclass(frozen=True, slots=True)
class Ollama:
    """`server` is the rule of the server it starts."""

    server: LlamaCpp
    name: str = "ollama"
    version: str = VERSIONS[0]
    obeys_file: bool = False
    sharing: SharingRule = SHARING

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        return self.server.auto_kv(spec)

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        """Raises BadInput and NotModelled as llama.cpp's rule does, and BadInput for what ollama does not let one ask for."""
        if kv.key != kv.value:
            text = f"ollama has one type for keys and values, and {kv.label} names two"
            raise BadInput(text, hint="one of " + ", ".join(self.server.types), code="unsupported_kv_dtype")
        slots = self.server.slots or workload.batch_size
        if slots > 1 and spec.model_type in ONE_SLOT:
            text = f"ollama holds one sequence of {spec.model_type} models at a time, not {slots}"
            raise BadInput(text, hint="use --batch 1, or --engine llama.cpp", code="too_many_slots")
        stored = self.server.store(spec, workload, kv)
        settings = f"num_ctx {workload.context_tokens} and OLLAMA_NUM_PARALLEL={slots}"
        settings += "" if kv == self.auto_kv(spec) else f" and OLLAMA_KV_CACHE_TYPE={TYPES[kv.key.name]}"
        text = f"ollama {self.version} stores this with {settings}: -c {workload.context_tokens * slots} -np {slots} of llama.cpp"
        others = tuple(notice for notice in stored.notices if notice.code != "engine_flags")
        return stored._replace(notices=(Notice("engine_flags", text), *others))


def policy(options: EngineOptions) -> StoragePolicy:
    if options.version not in (None, *VERSIONS):
        raise BadInput(
            f"kvcli has no storage rule for ollama {str(options.version)[:40]!r}",
            hint="one of " + ", ".join(VERSIONS),
            code="unknown_engine_version",
        )
    for given, option in ((options.ubatch, "--ubatch"), (options.kv_unified, "--kv-unified"), (options.swa_full, "--swa-full")):
        if given:
            raise BadInput(f"ollama does not let one set {option}", hint="use --engine llama.cpp", code="unknown_engine_option")
    return Ollama(LlamaCpp(slots=options.parallel, rollback=options.drafted, name="ollama", types=("fp16", "q8_0", "q4_0")))
