"""Zamba and Zamba2: a Mamba mixer in every layer; hybrid layers run a shared attention block before it.

The block sees the hidden state beside the embedding, so its inputs are 2 H wide. Its weights are shared between layers, its
caches are not. Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families import mixers
from kvcli.model.families.hybrid import read_period
from kvcli.model.families.mamba import read_rank
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

KINDS = ("linear_attention", "hybrid")
LISTS = ("layers_block_type", "layer_types")

_ZAMBA: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 3712,
    "intermediate_size": 14848,
    "num_hidden_layers": 76,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 4096,
}
_ZAMBA2: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 2560,
    "num_hidden_layers": 54,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}
#: Hybrid layers of Zamba2's class default, which has 54 layers.
_ZAMBA2_HYBRIDS = (6, 12, 18, 24, 30, 36, 42, 47, 51)


def read_zamba(fields: Fields) -> ModelParts:
    """Mamba with `n_mamba_heads` groups of channels; one shared block."""
    filled = mixers.prepare(fields, _ZAMBA, {"head_dim": "attention_head_dim"})
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    inner = filled.integer("mamba_expand", default=2) * hidden_size
    mixers.whole(filled, "n_mamba_heads", inner, filled.integer("n_mamba_heads", default=2))
    mamba = mixers.mamba1(
        hidden_size,
        inner,
        state=filled.integer("mamba_d_state", default=16),
        rank=read_rank(filled, "mamba_dt_rank", hidden_size),
        kernel=filled.integer("mamba_d_conv", default=4),
        conv_bias=filled.boolean("mamba_conv_bias", True),
        projection_bias=filled.boolean("mamba_proj_bias", False),
    )
    kinds = mixers.read_kinds(filled, count, KINDS, LISTS)
    if kinds is None:
        every = read_period(filled, "attn_layer_period", 6, "attn_layer_offset", 4)
        kinds = (["linear_attention"] * 2 + ["hybrid"] + [KINDS[every(index)] for index in range(count - 3)])[:count]
    record, inputs = _read_attention(filled, hidden_size)
    block = mixers.merge(
        mixers.attention(hidden_size, record, input_size=inputs),
        mixers.swiglu(hidden_size, filled.integer("intermediate_size")),
        mixers.norms(inputs, hidden_size),
    )
    return _parts(filled, hidden_size, kinds, mamba, record, (block,), LayerParameters())


def read_zamba2(fields: Fields) -> ModelParts:
    """Mamba-2; `num_mem_blocks` shared blocks taken in turn, and low-rank adapters of each use."""
    filled = mixers.prepare(fields, _ZAMBA2, {"head_dim": "attention_head_dim"})
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    bias = filled.boolean("add_bias_linear", False)
    heads = filled.integer("n_mamba_heads", default=8)
    inner = filled.integer("mamba_expand", default=2) * hidden_size
    head_dim = mixers.whole(filled, "n_mamba_heads", inner, heads)
    if filled.integer("mamba_headdim", default=head_dim) != head_dim:
        raise filled.bad("mamba_headdim", f"with {heads} heads it must give the inner width {inner:,}")
    mamba = mixers.mamba2(
        hidden_size,
        heads,
        head_dim,
        state=filled.integer("mamba_d_state", default=64),
        groups=filled.integer("mamba_ngroups", default=1),
        kernel=filled.integer("mamba_d_conv", default=4),
        conv_bias=True,  # whatever `use_conv_bias` says
        in_bias=bias,
        out_bias=bias,
    )
    kinds = mixers.read_kinds(filled, count, KINDS, LISTS)
    if kinds is None:
        if count != 54:
            raise filled.bad("num_hidden_layers", "only the 54 layers of the class default have a known pattern without a list")
        kinds = [KINDS[index in _ZAMBA2_HYBRIDS] for index in range(count)]
    record, inputs = _read_attention(filled, hidden_size)
    width = filled.integer("intermediate_size", default=4 * hidden_size)
    block = mixers.merge(
        mixers.attention(hidden_size, record, input_size=inputs),
        mixers.swiglu(hidden_size, width, bias),
        mixers.norms(inputs, hidden_size),
    )
    rank = filled.integer("adapter_rank", default=128)
    adapters = LayerParameters(mlp=rank * (hidden_size + 2 * width))
    if filled.boolean("use_shared_attention_adapter", False):
        adapters = adapters._replace(query=2 * inputs * rank, key_value=4 * inputs * rank)
    blocks = min(filled.integer("num_mem_blocks", default=1), kinds.count("hybrid"))
    return _parts(filled, hidden_size, kinds, mamba, record, (block,) * blocks, adapters)


def _read_attention(fields: Fields, hidden_size: int) -> tuple[Attention, int]:
    """The shared block's record, and the width of its inputs."""
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    mixers.whole(fields, "num_key_value_heads", heads, kv_heads)
    head_dim = fields.integer("attention_head_dim", default=2 * hidden_size // heads)
    return Attention(heads, kv_heads, head_dim, head_dim), fields.integer("attention_hidden_size", default=2 * hidden_size)


def _parts(
    fields: Fields,
    hidden_size: int,
    kinds: list[str],
    mamba: Layer,
    attention: Attention,
    blocks: tuple[LayerParameters, ...],
    adapters: LayerParameters,
) -> ModelParts:
    """Shared blocks count once among the parameters; their later uses count in the layers' FLOPs."""
    (state,), mixer = mamba
    norm = mixers.norms(hidden_size)
    hybrid = mixers.merge(mixer, norm, adapters, LayerParameters(mixer=hidden_size * hidden_size))
    layers: list[Layer] = []
    uses = 0
    for kind in kinds:
        if kind != "hybrid":
            layers.append(((state,), mixers.merge(mixer, norm)))
            continue
        again = blocks[0].matrices if uses >= len(blocks) else 0
        layers.append(((attention._replace(token_flops=2 * again), state), hybrid))
        uses += 1
    shared = blocks if uses else ()
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=16384 if fields.boolean("use_long_context", False) else fields.integer("max_position_embeddings"),
        layers=tuple(layers),
        tied=fields.boolean("tie_word_embeddings", True),
        shared=sum(block.matrices for block in shared),
        final=hidden_size + sum(block.norms + block.vectors for block in shared),
    )
