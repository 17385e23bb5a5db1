"""Blocks that recurrent and hybrid families are made of: their parameters, and the records of their states.

Counts are sums over the tensors of the layers in transformers 5.23; state shapes are those of its cache objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from kvcli import dtypes
from kvcli.errors import Notice, NotModelled
from kvcli.model.cache_records import Attention
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters
from kvcli.model.state_records import Recurrent

#: Stated where a file names no longest context, since a recurrent state has none (llama.cpp's converter writes the same).
NO_LIMIT = 2**20

#: Names of older files, as transformers renames them.
LEGACY_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}


def prepare(fields: Fields, defaults: Mapping[str, object], aliases: Mapping[str, str] | None = None) -> Fields:
    """The file with aliases renamed (they win, as in the library's classes) and class defaults for absent keys.

    Raises NotModelled for files that override keys layer by layer.
    """
    if fields.has("per_layer_config"):
        raise NotModelled(f"{fields.where}: per_layer_config is not read in this family", code="not_modelled")
    renamed = {new: fields.values[old] for old, new in (aliases or {}).items() if old in fields.values}
    return Fields({**defaults, **fields.values, **renamed}, fields.where, fields.outer)


def read_limit(fields: Fields, *keys: str) -> tuple[int, tuple[Notice, ...]]:
    """Trained positions; a file of a pure recurrent model has none."""
    for key in keys:
        if fields.has(key):
            return fields.integer(key), ()
    text = f"{fields.where} names no longest context, and a recurrent state has none: {NO_LIMIT:,} tokens are taken"
    return NO_LIMIT, (Notice("context_assumed", text),)


def read_kinds(fields: Fields, layers: int, known: tuple[str, ...], keys: tuple[str, ...] = ("layer_types",)) -> list[str] | None:
    """The first list of layer kinds that the file has, in today's names; an unknown name is an error."""
    for key in keys:
        names = fields.texts(key, layers)
        if names is None:
            continue
        kinds = [LEGACY_KINDS.get(name, name) for name in names]
        for kind, name in zip(kinds, names, strict=True):
            if kind not in known:
                raise fields.bad(key, f"kvcli does not know the layer type {name!r} in this family")
        return kinds
    return None


def read_state_dtype(fields: Fields, key: str) -> dtypes.DType:
    """The type of recurrent states: float32, as the classes keep them, unless the file says otherwise."""
    found = dtypes.known(fields.text(key, "float32"))
    if found not in dtypes.COMPUTE:
        raise fields.bad(key, "it must be float32, bfloat16 or float16")
    return found


def whole(fields: Fields, key: str, value: int, of: int) -> int:
    """`value` / `of`, which must be whole."""
    quotient, rest = divmod(value, of)
    if rest or not quotient:
        raise fields.bad(key, f"it must divide {value:,}")
    return quotient


def merge(*parts: LayerParameters) -> LayerParameters:
    """The sum of blocks, of which at most one has routed experts."""
    return LayerParameters(*(sum(counts) for counts in zip(*parts, strict=True)))


def norms(*widths: int) -> LayerParameters:
    return LayerParameters(norms=sum(widths))


def swiglu(hidden_size: int, width: int, bias: bool = False) -> LayerParameters:
    """Gate, up and down."""
    return LayerParameters(mlp=3 * hidden_size * width, vectors=(2 * width + hidden_size) * bias)


def read_experts(fields: Fields, inputs: int, width: int, matrices: int = 3, experts_key: str = "num_experts") -> LayerParameters:
    """E routed experts of two or three matrices, and a linear router over the hidden size."""
    experts = fields.integer(experts_key)
    taken = fields.integer("num_experts_per_tok", maximum=experts)
    return LayerParameters(
        router=experts * fields.integer("hidden_size"),
        expert=matrices * inputs * width,
        num_experts=experts,
        experts_per_token=taken,
    )


def attention(
    hidden_size: int,
    record: Attention,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: int = 0,
    query_factor: int = 1,
    input_size: int | None = None,
) -> LayerParameters:
    """q, k, v and o of softmax attention. `query_factor` 2: the query projection also makes an output gate."""
    inputs = hidden_size if input_size is None else input_size
    query = record.num_attention_heads * record.key_dim
    keys = record.num_key_value_heads * record.key_dim
    return LayerParameters(
        query=inputs * query * query_factor,
        key_value=2 * inputs * keys,
        attention_output=query * hidden_size,
        norms=qk_norm,
        vectors=(query * query_factor + 2 * keys) * qkv_bias + hidden_size * output_bias,
    )


def mamba1(
    hidden_size: int, inner: int, state: int, rank: int, kernel: int, conv_bias: bool, projection_bias: bool, inner_norms: bool = False
) -> Layer:
    """Mamba: a state of `state` elements a channel, in float32. `inner_norms` (Jamba) are those of the step size, B and C."""
    record = Recurrent("linear_attention", inner, kernel, inner * state, dtypes.FP32, heads=inner)
    return (record,), LayerParameters(
        mixer=2 * hidden_size * inner + inner * (rank + 2 * state) + rank * inner + inner * hidden_size,
        # convolution, A and D, the bias of the step size
        vectors=inner * (kernel + conv_bias + state + 2) + (2 * inner + hidden_size) * projection_bias,
        norms=(rank + 2 * state) * inner_norms,
    )


def mamba2(
    hidden_size: int,
    heads: int,
    head_dim: int,
    state: int,
    groups: int,
    kernel: int,
    conv_bias: bool,
    in_bias: bool,
    out_bias: bool,
    gated_norm: bool = True,
    state_dtype: dtypes.DType = dtypes.FP32,
) -> Layer:
    """Mamba-2: a state of `state` x `head_dim` elements a head; the convolution also runs over B and C of all groups."""
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    projected = inner + channels + heads
    record = _state("linear_attention", channels, kernel, inner * state, state_dtype, heads)
    return (record._replace(groups=groups, group_channels=channels - inner),), LayerParameters(
        mixer=hidden_size * projected + inner * hidden_size,
        # convolution; the bias of the step size, A and D; the gated norm, which has a part of each head
        vectors=channels * (kernel + conv_bias) + 3 * heads + projected * in_bias + hidden_size * out_bias + inner * gated_norm,
    )


def gated_delta(
    hidden_size: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int, state_dtype: dtypes.DType = dtypes.FP32
) -> Layer:
    """Gated DeltaNet: q, k, v and a gate, two numbers a value head, and a key x value state for each value head."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    elements = value_heads * key_dim * value_dim
    return (_state("linear_attention", channels, kernel, elements, state_dtype, gcd(key_heads, value_heads)),), LayerParameters(
        mixer=hidden_size * (2 * keys + 2 * values + 2 * value_heads) + values * hidden_size,
        vectors=channels * kernel + 2 * value_heads,  # convolution; A and the bias of the step size
        norms=value_dim,
    )


def short_conv(hidden_size: int, kernel: int, bias: bool) -> Layer:
    """LFM2's gated short convolution: three streams in, one out."""
    return (Recurrent("conv", hidden_size, kernel, heads=hidden_size),), LayerParameters(
        mixer=4 * hidden_size * hidden_size,
        vectors=hidden_size * kernel + 5 * hidden_size * bias,
    )


def _state(kind: str, channels: int, kernel: int, elements: int, dtype: dtypes.DType, heads: int) -> Recurrent:
    """transformers keeps float32 states whatever type the file asks engines to keep."""
    more = dtypes.FP32.bytes_for(elements) - dtype.bytes_for(elements)
    return Recurrent(kind, channels, kernel, elements, dtype, transformers_bytes=more, heads=heads)
