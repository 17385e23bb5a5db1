"""Nemotron-H and Nemotron-3: one block a layer (Mamba-2, attention, MLP or experts), all under the same norm.

Defaults for absent keys are those of the Hugging Face configuration class.
"""

from __future__ import annotations

from kvcli.model.families import mixers
from kvcli.model.families.hybrid import hybrid_parts, join, read_attention
from kvcli.model.families.parts import ModelParts
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
KINDS = tuple(PATTERN.values())

_ALIASES = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "num_local_experts": "n_routed_experts",
}
_DEFAULTS: dict[str, object] = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "intermediate_size": 21504,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}


def read_nemotron_h(fields: Fields) -> ModelParts:
    filled = mixers.prepare(fields, _DEFAULTS, _ALIASES)
    if not fields.has("head_dim") and filled.integer("attention_head_dim", default=128) != filled.integer("head_dim", default=128):
        raise filled.bad("attention_head_dim", "head_dim is absent, and transformers would take 128")
    hidden_size = filled.integer("hidden_size")
    kinds = _read_kinds(filled)
    readers = {"linear_attention": _mamba, "full_attention": _attention, "mlp": _mlp, "moe": _experts}
    blocks = {kind: readers[kind](filled, hidden_size) for kind in set(kinds)}
    layers = tuple(join(blocks[kind], mixers.norms(hidden_size)) for kind in kinds)
    return hybrid_parts(filled, hidden_size, layers, ties=False)


def _read_kinds(fields: Fields) -> list[str]:
    """The list of blocks, or the pattern string; their length is the number of layers, whatever `num_hidden_layers` says."""
    for key in ("layer_types", "layers_block_type"):
        names = fields.texts(key, 0)
        if names is not None:
            return mixers.read_kinds(fields, len(fields.values[key]), KINDS, (key,)) or []
    pattern = fields.text("hybrid_override_pattern", "ME*-")
    if not pattern or len(pattern) > 100_000:
        raise fields.bad("hybrid_override_pattern", "it must have one letter a layer")
    for letter in pattern:
        if letter not in PATTERN:
            raise fields.bad("hybrid_override_pattern", f"kvcli does not know the layer type {letter!r}")
    return [PATTERN[letter] for letter in pattern]


def _mamba(fields: Fields, hidden_size: int) -> Layer:
    bias = fields.boolean("use_bias", False)
    return mixers.mamba2(
        hidden_size,
        heads=fields.integer("mamba_num_heads", default=128),
        head_dim=fields.integer("mamba_head_dim", default=64),
        state=fields.integer("ssm_state_size", default=128),
        groups=fields.integer("n_groups", default=8),
        kernel=fields.integer("conv_kernel", default=4),
        conv_bias=fields.boolean("use_conv_bias", True),
        in_bias=bias,
        out_bias=bias,
        state_dtype=mixers.read_state_dtype(fields, "mamba_ssm_cache_dtype"),
    )


def _attention(fields: Fields, hidden_size: int) -> Layer:
    return read_attention(fields, hidden_size, biases=False)


def _mlp(fields: Fields, hidden_size: int) -> Layer:
    return (), _two_matrices(hidden_size, fields.integer("intermediate_size"), fields.boolean("mlp_bias", False))


def _experts(fields: Fields, hidden_size: int) -> Layer:
    """Routed experts, in a latent width where there is one (Super, Ultra), and one shared MLP."""
    bias = fields.boolean("mlp_bias", False)
    latent = fields.optional_integer("moe_latent_size")
    width = fields.integer("moe_intermediate_size", default=7688)
    routed = mixers.read_experts(fields, latent or hidden_size, width, matrices=2, experts_key="n_routed_experts")
    shared = _two_matrices(hidden_size, fields.integer("moe_shared_expert_intermediate_size", default=7688), bias)
    if latent is None:
        return (), mixers.merge(routed, shared)
    around = LayerParameters(mlp=2 * hidden_size * latent, vectors=(latent + hidden_size) * bias)
    return (), mixers.merge(routed, shared, around)


def _two_matrices(hidden_size: int, width: int, bias: bool) -> LayerParameters:
    """Up and down around a squared ReLU: no gate."""
    return LayerParameters(mlp=2 * hidden_size * width, vectors=(width + hidden_size) * bias)
