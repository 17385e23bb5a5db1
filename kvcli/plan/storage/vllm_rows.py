"""What vLLM keeps for a token, or as a state, of each kind of layer: rows in bytes, and why they are longer than needed.

Sources: vLLM's model files and cache interface, 0.33: fp8_ds_mla (`flashmla_sparse`), per-token-head scales, `mamba_utils` for
the types of states, the key-only index cache of MiniMax-M3 (`minimax_m3/common/indexer`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcli import dtypes
from kvcli.dtypes import DType, KvTypes
from kvcli.errors import BadInput, NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Compressed, Latent
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Cross, Recurrent
from kvcli.plan.storage.vllm_groups import Kind

#: Tokens of a block of sparse MLA, and of MiniMax-M3; everything else has 16 (on GPUs), and hybrids what their states need.
SPARSE_BLOCK, INDEXED_BLOCK, PLAIN_BLOCK = 64, 128, 16
#: fp8_ds_mla: 512 fp8 elements, 4 float32 scales, 64 bf16 elements of rope. Its indexer: 128 fp8 elements and a float32 scale.
DS_MLA_ROW, DS_MLA_INDEX, DS_MLA_SHAPE = 656, 132, (512, 64, 128)
#: int8_per_token_head: float32 scales of a token's K and V in each head.
TOKEN_HEAD_SCALES = 8
#: model_types with index keys beside keys and values, and the width of a key; it is kept in bf16 whatever the cache's type.
INDEXED, INDEX_WIDTH = frozenset(("minimax_m3_vl_text",)), 128

#: Whether the recurrent state follows the model's dtype (True), or is kept as the file says, float32 otherwise.
STATE_FOLLOWS = {
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "qwen3_next"), True),
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2", "zamba2"), True),
    **dict.fromkeys(("kimi_linear", "nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"), False),
}


@dataclass(frozen=True, slots=True)
class Layers:
    """Equal layers in vLLM's eyes: their record, their number, their kind and the causes of longer rows, in bytes a token."""

    record: CacheRecord
    count: int
    kind: Kind
    longer: tuple[tuple[str, int], ...] = ()


def layers_of(spec: ModelSpec, kv: KvTypes, chunks: bool, drafted: int = 0) -> list[Layers | None]:
    """One entry a record, in the model's order; None where vLLM keeps nothing. `chunks`: chunked layers forget. Convolutions
    have a column more for each of `drafted` tokens.

    Raises BadInput for types it does not keep, NotModelled for layers without a rule.
    """
    _check(spec, kv)
    return [_one(spec, record, group.count, kv, chunks, drafted) for group in spec.groups for record in group.records]


def _one(spec: ModelSpec, record: CacheRecord, count: int, kv: KvTypes, chunks: bool, drafted: int) -> Layers | None:
    if isinstance(record, Attention):
        return _attention(spec, record, count, kv, chunks) if record.owns_cache else None
    if isinstance(record, Latent) and record.window_tokens is None and record.index_pool == 1:
        return _latent(spec, record, count, kv)
    if isinstance(record, Cross):
        row = record.num_key_value_heads * (kv.key.bytes_for(record.key_dim) + kv.value.bytes_for(record.value_dim))
        scales = record.num_key_value_heads * TOKEN_HEAD_SCALES if kv.key.name == "int8" else 0
        return Layers(record, count, Kind("cross", 0, row + scales), (("scales of each token and head", scales),))
    if isinstance(record, Recurrent) and spec.model_type in STATE_FOLLOWS:
        columns = compute_dtype(spec).bytes_for(record.conv_channels * drafted)
        return Layers(record, count, Kind("state", 0, state_bytes(spec, record) + columns), (("columns of drafted tokens", columns),))
    raise no_rule(spec, record)


def _attention(spec: ModelSpec, record: Attention, count: int, kv: KvTypes, chunks: bool) -> Layers:
    scales = record.num_key_value_heads * TOKEN_HEAD_SCALES if kv.key.name == "int8" else 0
    row = record.token_bytes(kv) + scales
    longer = (("scales of each token and head", scales),)
    if record.index_dim:
        if spec.model_type not in INDEXED or record.index_dim != INDEX_WIDTH or kv.key.name not in ("bf16", "fp8"):
            raise no_rule(spec, record)
        index = dtypes.BF16.bytes_for(record.index_dim)
        longer = (("index keys in bf16", index - record.index_bytes(kv)),)
        return Layers(record, count, Kind("full", 0, row + index), longer)
    if record.chunk_tokens is not None and chunks:
        return Layers(record, count, Kind("chunk", record.chunk_tokens, row), longer)
    if record.window_tokens is not None:
        return Layers(record, count, Kind("window", record.window_tokens, row), longer)
    return Layers(record, count, Kind("full", 0, row), longer)


def _latent(spec: ModelSpec, record: Latent, count: int, kv: KvTypes) -> Layers | None:
    row, index = record.row_bytes(kv), record.index_bytes(kv)
    longer: tuple[tuple[str, int], ...] = ()
    if sparse(spec):
        if (record.rank, record.rope_dim, record.index_dim or 128) != DS_MLA_SHAPE:
            raise no_rule(spec, record)
        kept = DS_MLA_ROW if row and kv.key.name == "fp8" else row
        indexed = DS_MLA_INDEX if index else 0
        longer = (("fp8_ds_mla rows", kept - row), ("fp8 index keys with a scale", indexed - index))
        row, index = kept, indexed
    return Layers(record, count, Kind("full", 0, row + index, latent=True), longer) if row + index else None


def block_tokens(spec: ModelSpec, asked: int | None) -> int:
    """Tokens of a block, before states make it longer. Raises BadInput where index keys do not fit the one asked for."""
    if any(getattr(record, "index_dim", 0) and isinstance(record, Attention) for group in spec.groups for record in group.records):
        if (asked or INDEXED_BLOCK) % INDEXED_BLOCK:
            text = f"vllm keeps {spec.name} in blocks of a multiple of {INDEXED_BLOCK} tokens, not of {asked}"
            raise BadInput(text, hint="leave --block-size out", code="bad_block_size")
        return asked or INDEXED_BLOCK
    return asked or (SPARSE_BLOCK if sparse(spec) else PLAIN_BLOCK)


def compute_dtype(spec: ModelSpec) -> DType:
    """Files in float32 are run in 16 bits."""
    return dtypes.BF16 if spec.dtype == dtypes.FP32 else spec.dtype


def state_bytes(spec: ModelSpec, record: Recurrent) -> int:
    """K - 1 convolution columns in the model's dtype, and the recurrent state in the one vLLM keeps."""
    dtype = compute_dtype(spec)
    kept = dtype if STATE_FOLLOWS[spec.model_type] else record.state_dtype
    return record._replace(state_dtype=kept).state_bytes(dtype, 0)


def no_rule(spec: ModelSpec, record: CacheRecord) -> NotModelled:
    text = f"kvcli has no rule of vllm for the {record.kind} layers of {spec.model_type}"
    return NotModelled(text, hint="use --engine ideal", code="no_storage_rule")


def sparse(spec: ModelSpec) -> bool:
    return any(isinstance(record, Latent) and record.index_topk for group in spec.groups for record in group.records)


def compressed(spec: ModelSpec) -> bool:
    return any(isinstance(record, Compressed) for group in spec.groups for record in group.records)


def latent_hybrid(spec: ModelSpec) -> bool:
    """Whether latent rows lie beside states."""
    kinds = {type(record) for group in spec.groups for record in group.records}
    return {Latent, Recurrent} <= kinds


def _check(spec: ModelSpec, kv: KvTypes) -> None:
    latent = any(isinstance(record, Latent) for group in spec.groups for record in group.records)
    known = ("fp16", "bf16", "fp8") if latent else ("fp16", "bf16", "fp8", "int8", "nvfp4")
    if kv.key != kv.value or kv.key.name not in known:
        what = "one type for K and V" if kv.key != kv.value else "one of " + ", ".join(known)
        model = "latent rows" if latent else "the cache"
        raise BadInput(f"vllm keeps {model} in {what}, not in {kv.label}", hint="--kv-dtype fp8", code="unsupported_kv_dtype")
