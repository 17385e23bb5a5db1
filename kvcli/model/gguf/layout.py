"""A model's tensors as llama.cpp's converter writes them: names, rows, columns, and what stays in single precision.

For families whose conversion is known; shapes follow from the layer records, and must add up to the layer's counts. Names, fusions and
splits are those that the converter makes (attention fused or in three, MLA's kv_b split by head, experts stacked), which differ from
Hugging Face's.
"""

from __future__ import annotations

from kvcli.model.gguf.mixer_layout import Family, Mlp, Stored, mixer_tensors
from kvcli.model.layers import LayerGroup
from kvcli.model.spec import ModelSpec

_GATED = (
    *("llama", "mistral", "ministral3", "qwen2", "qwen3", "granite", "gemma", "gemma2", "gemma3_text", "smollm3"),
    *("olmo", "olmo2", "olmo3", "seed_oss", "exaone4", "cohere", "cohere2", "internlm3", "ernie4_5"),
    *("mimo", "stablelm", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"),
    *(
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "qwen3_vl_moe_text",
        "phimoe",
        "olmoe",
        "granitemoe",
        "ernie4_5_moe",
        "deepseek_v2",
        "llama4_text",
        "lfm2",
    ),
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
    **dict.fromkeys(("mamba", "falcon_mamba"), Family(ssm=1)),
    **dict.fromkeys(("mamba2", "granitemoehybrid", "falcon_h1"), Family(ssm=2)),
    "nemotron_h": Family(mlp="plain", correction=True, ssm=2),
    "phi3": Family(fused=True, mlp="joined"),
}


#: tables with more rows than the tokenizer has tokens, which the converter cuts off
_ROWS_KEPT = {("gemma3_text", 262_208): 262_144}


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
    rows = _ROWS_KEPT.get((spec.model_type, spec.vocab_size), spec.vocab_size)
    tensors = [Stored(None, "token_embd.weight", rows, spec.hidden_size, lookup=not spec.tied)]
    if not spec.tied:
        tensors.append(Stored(None, "output.weight", rows, spec.hidden_size))
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
    attention = mixer_tensors(family, hidden, group)
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
