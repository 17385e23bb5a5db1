"""TensorRT-LLM 1.x: blocks of 32 tokens in one pool, latent rows of MLA whole.

Its line "Allocated … GiB for max tokens in paged KV cache" is tokens x bytes of a token. What it does with windows, states and
encoder caches is not known here and refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcli.dtypes import KvTypes
from kvcli.errors import BadInput, NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Latent
from kvcli.model.spec import ModelSpec
from kvcli.plan.sharing.rules import SharingRule, more_in_first
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored, half_kv
from kvcli.plan.workload import Workload

SHARING = SharingRule(True, more_in_first, experts=True, data_attention=True)


@dataclass(frozen=True, slots=True)
class TensorRtLlm:
    block_tokens: int
    name: str = "trtllm"
    version: str = "1"
    obeys_file: bool = True
    sharing: SharingRule = SHARING

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        return half_kv(spec)

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        """See StoragePolicy."""
        if kv.key != kv.value or kv.key.name not in ("fp16", "bf16", "fp8"):
            raise BadInput(
                f"kvcli knows how trtllm keeps K and V both in fp16, bf16 or fp8, not in {kv.label}",
                hint="--kv-dtype fp8",
                code="unsupported_kv_dtype",
            )
        n, blocks = workload.context_tokens, -(-workload.context_tokens // self.block_tokens)
        rows, rounding = [], 0
        for group in spec.groups:
            for record in group.records:
                row = workload.batch_size * group.count * self._row(spec, record, n, kv)
                rows.append(blocks * self.block_tokens * row)
                rounding += (blocks * self.block_tokens - n) * row
        causes = (("page rounding", rounding),) if rounding else ()
        return Stored(tuple(rows), causes, workload.batch_size * blocks, self.block_tokens)

    def _row(self, spec: ModelSpec, record: CacheRecord, tokens: int, kv: KvTypes) -> int:
        """Bytes of a token in one layer."""
        if isinstance(record, Attention) and record.owns_cache and not record.index_dim:
            if record.visible_tokens(tokens) == tokens:
                return record.token_bytes(kv)
            text = f"kvcli has no rule of trtllm for {spec.name} beyond the window of its {record.kind} layers"
            raise NotModelled(text, hint="use --engine ideal", code="no_storage_rule")
        if isinstance(record, Latent) and record.owns_cache and record.window_tokens is None and not record.index_topk:
            return record.row_bytes(kv)
        text = f"kvcli has no rule of trtllm for the {record.kind} layers of {spec.model_type}"
        raise NotModelled(text, hint="use --engine ideal", code="no_storage_rule")


def policy(options: EngineOptions) -> StoragePolicy:
    """Raises BadInput for a version other than 1.x."""
    version = options.version or "1"
    if version.strip().lower().removeprefix("v").split(".")[0] != "1":
        raise BadInput(
            f"kvcli does not know what trtllm {version[:20]} stores", hint="--engine-version is 1", code="unknown_engine_version"
        )
    return TensorRtLlm(options.block_size or 32)
