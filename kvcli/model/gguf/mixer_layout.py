"""The tensors that mix tokens in one layer, as llama.cpp's converter writes them: attention, latent attention, and states.

Shapes follow from the layer's records and counts; names and fusions are the converter's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Latent
from kvcli.model.layers import LayerGroup, LayerParameters
from kvcli.model.state_records import Recurrent

#: gate, up and down apart; gate and up as one matrix; up and down alone
Mlp = Literal["gated", "joined", "plain"]


class Family(NamedTuple):
    """How the converter lays out a family. `correction`: routers have a bias for each expert that is not counted as a parameter.

    `prediction`: published files hold a block behind the layers that predicts further tokens, and the rule counts it as a layer.
    `gates`: how many matrices make a DeltaNet's two small gates; its attention has a gate as wide as its queries, in the same matrix.
    `ssm`: 1 or 2, for Mamba's two kinds of layer.
    """

    fused: bool = False
    mlp: Mlp = "gated"
    correction: bool = False
    prediction: bool = False
    gates: int = 0
    ssm: int = 0


class Stored(NamedTuple):
    """`depth` matrices of `rows` outputs x `columns` inputs in one tensor, of `layer` (None outside layers).

    `experts`: one of them for each routed expert. `lookup`: a step reads rows of it. `single`: fp32, whatever the other tensors are.
    """

    layer: int | None
    name: str
    rows: int
    columns: int
    depth: int = 1
    experts: bool = False
    lookup: bool = False
    single: bool = False

    @property
    def elements(self) -> int:
        return self.rows * self.columns * self.depth


def mixer_tensors(family: Family, hidden: int, group: LayerGroup) -> list[Stored] | None:
    """Of all records of a layer, without its number. None where a record's tensors are not known."""
    found: list[Stored] = []
    for record in group.records:
        tensors = _record(family, hidden, record, group.parameters)
        if tensors is None:
            return None
        found += tensors
    return found


def _record(family: Family, hidden: int, record: CacheRecord, p: LayerParameters) -> list[Stored] | None:
    if isinstance(record, Attention) and record.owns_cache and not record.index_dim:
        return _attention(family, hidden, record)
    if isinstance(record, Latent) and record.owns_cache and not record.index_dim:
        return _latent(record, hidden, p.query)
    if isinstance(record, Recurrent):
        if record.kind == "conv":
            # LFM2: an input of three gates and an output, both from rows as wide as the model
            return [Stored(None, "shortconv.in_proj", 3 * hidden, hidden), Stored(None, "shortconv.out_proj", hidden, hidden)]
        if family.gates:
            return _delta(family.gates, record, hidden, p)
        if family.ssm:
            return (_mamba if family.ssm == 1 else _mamba2)(record, hidden, p)
    return None


def _attention(family: Family, hidden: int, record: Attention) -> list[Stored]:
    heads, kv_heads = record.num_attention_heads, record.num_key_value_heads
    query, key, value = heads * record.key_dim * (2 if family.gates else 1), kv_heads * record.key_dim, kv_heads * record.value_dim
    output = Stored(None, "attn_output", hidden, heads * record.value_dim)
    if family.fused:
        return [Stored(None, "attn_qkv", query + key + value, hidden), output]
    three = (("attn_q", query), ("attn_k", key), ("attn_v", value))
    return [*(Stored(None, name, rows, hidden) for name, rows in three), output]


def _mamba(record: Recurrent, hidden: int, p: LayerParameters) -> list[Stored]:
    """Channels c and states n are the record's; matrices of 3 H c + 2 c (r + n) give the rank r of the time steps."""
    channels = record.conv_channels
    states = record.state_elements // channels
    rank = (p.mixer - 3 * hidden * channels) // (2 * channels) - states
    return [
        Stored(None, "ssm_in", 2 * channels, hidden),
        Stored(None, "ssm_x", rank + 2 * states, channels),
        Stored(None, "ssm_dt", channels, rank),
        Stored(None, "ssm_out", hidden, channels),
    ]


def _mamba2(record: Recurrent, hidden: int, p: LayerParameters) -> list[Stored]:
    """The convolution runs over the channels c and over B and C of the groups; matrices of H x (2 c + conv + h) give the heads h."""
    channels = record.conv_channels - record.group_channels
    heads = p.mixer // hidden - record.conv_channels - 2 * channels
    return [Stored(None, "ssm_in", channels + record.conv_channels + heads, hidden), Stored(None, "ssm_out", hidden, channels)]


def _delta(gates: int, record: Recurrent, hidden: int, p: LayerParameters) -> list[Stored]:
    """Gated DeltaNet: q, k and v as one, an output gate, two gates a value head, the output.

    Vectors are the convolution and two numbers a value head h; so matrices of H x (conv + 2 v + 2 h) give the values' width v.
    """
    value_heads = (p.vectors - record.conv_kernel * record.conv_channels) // 2
    width = (p.mixer // hidden - record.conv_channels - 2 * value_heads) // 2
    return [
        Stored(None, "attn_qkv", record.conv_channels, hidden),
        Stored(None, "attn_gate", width, hidden),
        *([Stored(None, "ssm_ba", 2 * value_heads, hidden)] if gates == 1 else []),
        *([Stored(None, name, value_heads, hidden) for name in ("ssm_alpha", "ssm_beta")] if gates == 2 else []),
        Stored(None, "ssm_out", hidden, width),
    ]


def _latent(record: Latent, hidden: int, query: int) -> list[Stored]:
    """MLA: queries at once or over a rank r, which their count H r + r A (nope + rope) gives; kv_b by head, its keys transposed."""
    heads = record.num_attention_heads
    width = heads * (record.nope_dim + record.rope_dim)
    rank = query // (hidden + width)
    in_two = [Stored(None, "attn_q_a", rank, hidden), Stored(None, "attn_q_b", width, rank)]
    return [
        *([Stored(None, "attn_q", width, hidden)] if query == hidden * width else in_two),
        Stored(None, "attn_kv_a_mqa", record.rank + record.rope_dim, hidden),
        Stored(None, "attn_k_b", record.rank, record.nope_dim, heads),
        Stored(None, "attn_v_b", record.value_dim, record.rank, heads),
        Stored(None, "attn_output", hidden, heads * record.value_dim),
    ]
