"""A model's tensors as llama.cpp's converter writes them: names, rows, columns, and what stays in single precision.

For families whose conversion is known; shapes follow from the layer records, and must add up to the layer's counts. Names, fusions and
splits are those that the converter makes (attention fused or in three, MLA's kv_b split by head, experts stacked), which differ from
Hugging Face's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcli.model.cache_records import Attention
from kvcli.model.latent_records import Latent
from kvcli.model.layers import LayerGroup, LayerParameters
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Recurrent

#: gate, up and down apart; gate and up as one matrix; up and down alone
Mlp = Literal["gated", "joined", "plain"]


class Family(NamedTuple):
    """How the converter lays out a family. `correction`: routers have a bias for each expert that is not counted as a parameter.

    `prediction`: published files hold a block behind the layers that predicts further tokens, and the rule counts it as a layer.
    `gates`: how many matrices make a DeltaNet's two small gates; its attention has a gate as wide as its queries, in the same matrix.
    """

    fused: bool = False
    mlp: Mlp = "gated"
    correction: bool = False
    prediction: bool = False
    gates: int = 0


_GATED = (
    *("llama", "mistral", "ministral3", "qwen2", "qwen3", "granite", "gemma", "gemma2", "gemma3_text", "smollm3"),
    *("olmo", "olmo2", "olmo3", "seed_oss", "exaone4", "cohere", "cohere2", "internlm3", "ernie4_5"),
    *("mimo", "stablelm", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "phimoe", "olmoe", "granitemoe", "ernie4_5_moe", "deepseek_v2", "llama4_text", "lfm2"),
)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(_GATED, Family()),
    **dict.fromkeys(("deepseek_v3", "kimi_k2", "dots1", "minimax_m2", "lfm2_moe"), Family(correction=True)),
    "glm4_moe": Family(correction=True, prediction=True),
    **dict.fromkeys(("glm", "glm4"), Family(mlp="joined")),
    **dict.fromkeys(("nemotron", "starcoder2", "phi", "arcee", "jais2"), Family(mlp="plain")),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neox", "bloom", "mpt", "falcon"), Family(fused=True, mlp="plain")),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), Family(prediction=True, gates=2)),
    "qwen3_next": Family(prediction=True, gates=1),
    "phi3": Family(fused=True, mlp="joined"),
}


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


def stored_tensors(spec: ModelSpec) -> tuple[Stored, ...] | None:
    """All tensors in the order in which llama.cpp sorts them: outside the layers, then layer by layer, by name.

    None where the family's conversion is not known, or where its shapes do not add up to the counts.
    """
    family = FAMILIES.get(spec.model_type)
    if family is None or spec.shared or spec.encoder_parameters or spec.embedding != spec.vocab_size * spec.hidden_size:
        return None
    if spec.head not in (0, spec.embedding):
        return None
    tensors = _outside(spec)
    groups = [_layer(family, spec.hidden_size, group) for group in spec.groups]
    for layer, number in enumerate(spec.order):
        parts = groups[number]
        if parts is None:
            return None
        tensors += [
            part._replace(layer=layer, name=f"blk.{layer}.{part.name}.weight") for part in sorted(parts, key=lambda part: part.name)
        ]
    return tuple(tensors)


def _outside(spec: ModelSpec) -> list[Stored]:
    """Tables, head and final norm. Rotary factors are no parameters, but the file has them."""
    tensors = [Stored(None, "token_embd.weight", spec.vocab_size, spec.hidden_size, lookup=not spec.tied)]
    if not spec.tied:
        tensors.append(Stored(None, "output.weight", spec.vocab_size, spec.hidden_size))
    if spec.lookups:
        tensors.append(Stored(None, "position_embd.weight", 1, spec.lookups, lookup=True, single=True))
    if spec.final:
        tensors.append(Stored(None, "output_norm.weight", 1, spec.final, single=True))
    scaling = spec.decoder and spec.decoder.rope and spec.decoder.rope.scaling
    if scaling and spec.decoder and spec.decoder.rope:
        tables = {"llama3": 1, "longrope": 2}.get(scaling.kind, 0)
        if tables:
            tensors.append(Stored(None, "rope_factors.weight", tables, spec.decoder.rope.rotary_dim // 2, single=True))
    return tensors


def _layer(family: Family, hidden: int, group: LayerGroup) -> list[Stored] | None:
    """The tensors of one layer without its number; norms, biases and routers as one in single precision."""
    p = group.parameters
    per_width = {"gated": 3, "joined": 3, "plain": 2}[family.mlp] * hidden
    attention = _attention(family, hidden, group)
    # some readers count the gate of a shared expert, one row, with its matrices
    row = hidden if p.num_experts and p.mlp % per_width == hidden else 0
    if attention is None or p.mlp % per_width != row or p.expert % per_width:
        return None
    suffix = "_shexp" if p.num_experts else ""
    matrices = attention + _mlp(family.mlp, suffix, hidden, p.mlp // per_width)
    experts = [part._replace(depth=p.num_experts, experts=True) for part in _mlp(family.mlp, "_exps", hidden, p.expert // per_width)]
    outside, routed = (sum(part.elements for part in parts) for parts in (matrices, experts))
    if outside != p.every_token_matrices - p.router - row or routed != p.expert * p.num_experts:
        return None
    plain = p.norms + p.vectors + p.router + row + (p.num_experts if family.correction else 0)
    single = [Stored(None, "norms_biases_router", 1, plain, single=True)] if plain else []
    if p.expert_vectors:
        single.append(Stored(None, "biases_exps", 1, p.expert_vectors, p.num_experts, experts=True, single=True))
    return matrices + experts + single


def _mlp(kind: Mlp, suffix: str, hidden: int, width: int) -> list[Stored]:
    if not width:
        return []
    down = Stored(None, f"ffn_down{suffix}", hidden, width)
    if kind == "joined":
        return [down, Stored(None, f"ffn_up{suffix}", 2 * width, hidden)]
    up = Stored(None, f"ffn_up{suffix}", width, hidden)
    return [down, up] if kind == "plain" else [down, up, up._replace(name=f"ffn_gate{suffix}")]


def _attention(family: Family, hidden: int, group: LayerGroup) -> list[Stored] | None:
    if len(group.records) != 1:
        return None
    (record,) = group.records
    if isinstance(record, Attention) and record.owns_cache and not record.index_dim:
        heads, kv_heads = record.num_attention_heads, record.num_key_value_heads
        query, key, value = heads * record.key_dim * (2 if family.gates else 1), kv_heads * record.key_dim, kv_heads * record.value_dim
        output = Stored(None, "attn_output", hidden, heads * record.value_dim)
        if family.fused:
            return [Stored(None, "attn_qkv", query + key + value, hidden), output]
        three = (("attn_q", query), ("attn_k", key), ("attn_v", value))
        return [*(Stored(None, name, rows, hidden) for name, rows in three), output]
    if isinstance(record, Latent) and record.owns_cache and not record.index_dim:
        return _latent(record, hidden, group.parameters.query)
    if isinstance(record, Recurrent) and family.gates:
        return _delta(family.gates, record, hidden, group.parameters)
    if isinstance(record, Recurrent) and record.kind == "conv":
        # LFM2: an input of three gates and an output, both from rows as wide as the model
        return [Stored(None, "shortconv.in_proj", 3 * hidden, hidden), Stored(None, "shortconv.out_proj", hidden, hidden)]
    return None


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
