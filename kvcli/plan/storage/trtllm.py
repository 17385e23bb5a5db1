"""TensorRT-LLM 1.x (PyTorch backend): blocks of 32 tokens in one pool, latent rows of MLA whole, a slot of states a sequence.

Its line "Allocated … GiB for max tokens in paged KV cache" is tokens x bytes of a token. Its first cache manager gives every layer
one window, the longest sequence, unless `max_attention_window` names others, so windows and chunks forget nothing. Sparse MLA has
a pool of index keys, 128 fp8 elements and a float32 scale. States have K - 1 convolution columns; both parts follow the model's
dtype where the file has no key for the second. Which type they have where it does changed during 1.x, and is refused, as are
encoder caches. Sources: `resource_manager`, `sparse/dsa` (cache manager), `mamba_cache_manager`, `config_utils`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kvcli.dtypes import FP32, KvTypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Latent
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Recurrent
from kvcli.plan.sharing.rules import SharingRule, more_in_first
from kvcli.plan.storage.policy import EngineOptions, StoragePolicy, Stored, half_kv
from kvcli.plan.workload import Workload

SHARING = SharingRule(True, more_in_first, experts="inside", whole_blocks=True)

#: Index keys of sparse MLA: a byte an element and a float32 scale for each 128.
INDEX_BLOCK = 128
#: Hybrids without a key for the type of their states, and those with one.
PLAIN_STATES = frozenset(("qwen3_next",))
TYPED_STATES = frozenset(("nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"))


@dataclass(frozen=True, slots=True)
class TensorRtLlm:
    block_tokens: int
    drafted: int = 0
    name: str = "trtllm"
    version: str = "1"
    obeys_file: bool = True
    sharing: SharingRule = SHARING

    def auto_kv(self, spec: ModelSpec) -> KvTypes:
        return half_kv(spec)

    def store(self, spec: ModelSpec, workload: Workload, kv: KvTypes) -> Stored:
        """See StoragePolicy. `blocks` are those of the pool of keys and values, None where there is none."""
        if kv.key != kv.value or kv.key.name not in ("fp16", "bf16", "fp8"):
            raise BadInput(
                f"kvcli knows how trtllm keeps K and V both in fp16, bf16 or fp8, not in {kv.label}",
                hint="--kv-dtype fp8",
                code="unsupported_kv_dtype",
            )
        n, blocks = workload.context_tokens, -(-workload.context_tokens // self.block_tokens)
        drafting = -(-(n + self.drafted) // self.block_tokens) - blocks
        rows: list[int] = []
        causes: Counter[str] = Counter()
        notices: tuple[Notice, ...] = ()
        paged = False
        for group in spec.groups:
            for record in group.records:
                layers = workload.batch_size * group.count
                if isinstance(record, Recurrent):
                    if self.drafted:
                        raise NotModelled("kvcli has no rule of trtllm for states under speculative decoding", hint="use --engine ideal")
                    kept = _state_bytes(spec, record)
                    rows.append(layers * kept)
                    causes["state dtype"] += layers * (kept - record.state_bytes(spec.dtype, 0))
                    continue
                row, longer = _row(spec, record, kv)
                visible = record.visible_tokens(n) if isinstance(record, Attention) else n
                rows.append(layers * (blocks + drafting) * self.block_tokens * row)
                causes["slots of drafted tokens"] += layers * drafting * self.block_tokens * row
                causes["page rounding"] += layers * (blocks * self.block_tokens - n) * row
                causes["windows kept in full"] += layers * (n - visible) * row
                causes["fp8 index keys with a scale"] += layers * n * longer
                paged = True
                if visible < n:
                    text = f"trtllm keeps all tokens of the {record.kind} layers unless max_attention_window says otherwise"
                    notices = (Notice("trtllm_windows_kept", text),)
        stored = tuple((cause, size) for cause, size in causes.items() if size)
        tokens = self.block_tokens if paged else None
        return Stored(tuple(rows), stored, workload.batch_size * (blocks + drafting) if paged else None, tokens, notices)


def _row(spec: ModelSpec, record: CacheRecord, kv: KvTypes) -> tuple[int, int]:
    """Bytes of a token in one layer, and how many of them are not needed."""
    if isinstance(record, Attention) and record.owns_cache and not record.index_dim:
        return record.token_bytes(kv), 0
    plain = isinstance(record, Latent) and record.owns_cache and record.window_tokens is None and record.index_pool == 1
    if isinstance(record, Latent) and plain and not record.index_dim % INDEX_BLOCK:
        index = record.index_dim + FP32.bytes_for(record.index_dim // INDEX_BLOCK)
        return record.row_bytes(kv) + index, index - record.index_bytes(kv)
    raise _no_rule(spec, record)


def _state_bytes(spec: ModelSpec, record: Recurrent) -> int:
    """A slot of one layer."""
    if spec.model_type in TYPED_STATES:
        text = f"the type in which trtllm keeps the states of {spec.model_type} changed between its releases"
        raise NotModelled(text, hint="use --engine ideal", code="no_storage_rule")
    if spec.model_type not in PLAIN_STATES:
        raise _no_rule(spec, record)
    return record._replace(state_dtype=None).state_bytes(spec.dtype, 0)


def _no_rule(spec: ModelSpec, record: CacheRecord) -> NotModelled:
    text = f"kvcli has no rule of trtllm for the {record.kind} layers of {spec.model_type}"
    return NotModelled(text, hint="use --engine ideal", code="no_storage_rule")


def policy(options: EngineOptions) -> StoragePolicy:
    """Raises BadInput for a version other than 1.x."""
    version = options.version or "1"
    if version.strip().lower().removeprefix("v").split(".")[0] != "1":
        raise BadInput(
            f"kvcli does not know what trtllm {version[:20]} stores", hint="--engine-version is 1", code="unknown_engine_version"
        )
    return TensorRtLlm(options.block_size or 32, options.drafted)
