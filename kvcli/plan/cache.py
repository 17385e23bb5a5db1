"""The cache of a plan: what it needs, what the engine stores of it, and what a step reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvcli.dtypes import DType, KvTypes
from kvcli.errors import Notice
from kvcli.ledger import Formula, Number
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Compressed, Latent
from kvcli.model.state_records import Cross, Recurrent
from kvcli.plan.workload import Workload


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One group of identical layers. Bytes are totals over its `count` layers and all sequences."""

    kind: str
    count: int
    window_tokens: int | None
    bytes_per_token: int
    needed_bytes: int
    state_bytes: int
    stored_bytes: int
    formula: Formula


class CachePlan(NamedTuple):
    """The cache of all sequences. `bytes_per_token` is what the newest token of one sequence added.

    `stored_bytes` are over all devices, copies included; `stored_bytes_per_device` of the one that stores most. `causes` say why
    the engine stores something else than is needed, in bytes that sum to the difference.
    """

    kv: KvTypes
    engine: str
    engine_version: str
    rows: tuple[CacheRow, ...]
    bytes_per_token: int
    needed_bytes: int
    state_bytes: int
    stored_bytes: int
    stored_bytes_per_device: int
    read_bytes_per_step: int
    written_bytes_per_step: int
    causes: tuple[tuple[str, int], ...] = ()
    blocks: int | None = None
    block_tokens: int | None = None
    notices: tuple[Notice, ...] = ()


#: Factors of an equation, down to elements and bits: `--explain` prints them to be redone by hand.
_Terms = tuple[tuple[str, Number], ...]


def row_formula(record: CacheRecord, layers: int, workload: Workload, kv: KvTypes, dtype: DType) -> Formula:
    """Of `layers` equal layers and all sequences; `dtype` is the model's own, of states. Raises ValueError for a kind without one."""
    common = (("layers", layers), ("batch_size", workload.batch_size), ("context_tokens", workload.context_tokens))
    tokens = workload.context_tokens
    if isinstance(record, Attention):
        name, terms = _attention(record, tokens, kv)
    elif isinstance(record, Latent):
        name, terms = _latent(record, tokens, kv)
    elif isinstance(record, Compressed):
        name, terms = _compressed(record, tokens, kv)
    elif isinstance(record, Recurrent):
        name, terms = _recurrent(record, dtype)
    elif isinstance(record, Cross):
        name, terms = _cross(record, workload.encoder_tokens, dtype)
    else:
        raise ValueError(f"no equation for {record.kind}")
    return Formula(name, (*common, *terms))


def _attention(record: Attention, tokens: int, kv: KvTypes) -> tuple[str, _Terms]:
    terms = (
        ("num_key_value_heads", record.num_key_value_heads),
        ("key_dim", record.key_dim),
        ("value_dim", record.value_dim),
        ("visible_tokens", record.visible_tokens(tokens) if record.owns_cache else 0),
        ("key_bits", kv.key.bits_per_element),
        ("value_bits", kv.value.bits_per_element),
        ("bytes_per_token_and_layer", record.token_bytes(kv)),
    )
    if not record.index_dim:
        return "attention_cache", terms
    return "attention_index_cache", (*terms, ("index_keys", tokens if record.owns_cache else 0), ("index_dim", record.index_dim))


def _latent(record: Latent, tokens: int, kv: KvTypes) -> tuple[str, _Terms]:
    terms = (
        ("visible_tokens", record.visible_tokens(tokens) if record.owns_cache else 0),
        ("rank", record.rank),
        ("rope_dim", record.rope_dim),
        ("key_bits", kv.key.bits_per_element),
    )
    if not record.index_dim:
        return "latent_cache", terms
    bits = (record.index_dtype or kv.key).bits_per_element
    return "latent_index_cache", (*terms, ("index_rows", record.index_rows(tokens)), ("index_dim", record.index_dim), ("index_bits", bits))


def _compressed(record: Compressed, tokens: int, kv: KvTypes) -> tuple[str, _Terms]:
    return "compressed_cache", (
        ("visible_tokens", record.visible_tokens(tokens)),
        ("dim", record.dim),
        ("entries", record.entries(tokens)),
        ("open_rows", record.open_rows(tokens)),
        ("index_dim", record.index_dim),
        ("key_bits", kv.key.bits_per_element),
    )


def _recurrent(record: Recurrent, dtype: DType) -> tuple[str, _Terms]:
    return "recurrent_state", (
        ("conv_channels", record.conv_channels),
        ("conv_columns", max(0, record.conv_kernel - 1)),
        ("conv_bits", (record.conv_dtype or dtype).bits_per_element),
        ("state_elements", record.state_elements),
        ("state_bits", (record.state_dtype or dtype).bits_per_element),
        ("plain_elements", record.plain_elements),
        ("plain_bits", dtype.bits_per_element),
    )


def _cross(record: Cross, encoder_tokens: int, dtype: DType) -> tuple[str, _Terms]:
    return "cross_cache", (
        ("encoder_tokens", encoder_tokens or record.default_tokens),
        ("num_key_value_heads", record.num_key_value_heads),
        ("key_dim", record.key_dim),
        ("value_dim", record.value_dim),
        ("bits", dtype.bits_per_element),
    )
