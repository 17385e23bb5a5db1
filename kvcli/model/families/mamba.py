"""Mamba and Mamba-2 alone: a norm and a mixer a layer, no attention, no MLP.

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli.model.families import mixers
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer

_DEFAULTS: dict[str, object] = {"vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "conv_kernel": 4}
_DEFAULTS_2: dict[str, object] = {
    "num_heads": 128,
    "head_dim": 64,
    "vocab_size": 32768,
    "hidden_size": 4096,
    "state_size": 128,
    "num_hidden_layers": 64,
    "conv_kernel": 4,
    "n_groups": 8,
}


def read_mamba(fields: Fields) -> ModelParts:
    """Mamba and Falcon-Mamba, whose extra norms have no weights. A width in the file wins over `expand`."""
    filled = mixers.prepare(fields, _DEFAULTS)
    hidden_size = filled.integer("hidden_size")
    bias = filled.boolean("use_bias", False)
    mixer = mixers.mamba1(
        hidden_size,
        inner=filled.integer("intermediate_size", default=int(filled.number("expand", 2.0) * hidden_size)),
        state=filled.integer("state_size"),
        rank=read_rank(filled, "time_step_rank", hidden_size),
        kernel=filled.integer("conv_kernel"),
        conv_bias=filled.boolean("use_conv_bias", True),
        projection_bias=bias,
    )
    return _parts(filled, hidden_size, mixer, tied=True)


def read_mamba2(fields: Fields) -> ModelParts:
    filled = mixers.prepare(fields, _DEFAULTS_2)
    hidden_size = filled.integer("hidden_size")
    heads, head_dim = filled.integer("num_heads"), filled.integer("head_dim")
    inner = int(filled.number("expand", 2.0) * hidden_size)
    if heads * head_dim != inner:
        raise filled.bad("num_heads", f"with head_dim {head_dim} it must give the inner width {inner:,}")
    bias = filled.boolean("use_bias", False)
    mixer = mixers.mamba2(
        hidden_size,
        heads,
        head_dim,
        state=filled.integer("state_size"),
        groups=filled.integer("n_groups"),
        kernel=filled.integer("conv_kernel"),
        conv_bias=filled.boolean("use_conv_bias", True),
        in_bias=bias,
        out_bias=bias,
    )
    return _parts(filled, hidden_size, mixer, tied=False)


def read_rank(fields: Fields, key: str, hidden_size: int) -> int:
    """The rank of the step size: "auto" is H / 16, rounded up."""
    if fields.values.get(key, "auto") in ("auto", None):
        return -(-hidden_size // 16)
    return fields.integer(key)


def _parts(fields: Fields, hidden_size: int, mixer: Layer, tied: bool) -> ModelParts:
    records, parameters = mixer
    layer = (records, mixers.merge(parameters, mixers.norms(hidden_size)))
    limit, notices = mixers.read_limit(fields, "max_position_embeddings")
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=limit,
        layers=(layer,) * read_layer_count(fields),
        tied=fields.boolean("tie_word_embeddings", tied),
        final=hidden_size,
        notices=notices,
    )
