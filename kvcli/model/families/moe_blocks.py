"""Blocks of mixture-of-experts decoders: what one layer's attention, experts and dense MLP hold, and how they are read.

Counts are sums over the tensors that transformers 5.23 builds; routing biases that it keeps as buffers are no parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvcli.model.cache_records import Attention
from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

#: Older spelling of a layer kind, as transformers renames it.
LEGACY_KINDS = {"attention": "full_attention"}


class Block(NamedTuple):
    """What a family's layers have beside the four attention matrices and the feed-forward part.

    `qk_norm`: "head" is one weight a head dimension, "full" one for each output of q and k. `gate` multiplies the attention's
    output by a projection of the layer's input, with one number a head or an element. `norms` counts vectors of hidden_size.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = ""
    gate: str = ""
    gate_bias: bool = False
    sinks: bool = False
    norms: int = 2


class Experts(NamedTuple):
    """Routed experts of one layer: `width` is the inner width, `biases` the vectors of one expert."""

    num_experts: int
    experts_per_token: int
    width: int
    biases: int = 0


def combine(*blocks: LayerParameters) -> LayerParameters:
    """The sum, field by field; at most one block has experts."""
    return LayerParameters(*(sum(values) for values in zip(*blocks, strict=True)))


def attention_block(hidden_size: int, record: Attention, block: Block) -> LayerParameters:
    """q H x A dk, k H x G dk, v H x G dv, o A dv x H; a layer without a cache of its own has neither k nor v."""
    heads, kv_heads = record.num_attention_heads, record.num_key_value_heads if record.owns_cache else 0
    query, key, value = heads * record.key_dim, kv_heads * record.key_dim, kv_heads * record.value_dim
    gate = {"": 0, "head": heads, "element": heads * record.value_dim}[block.gate]
    norms = {"": 0, "head": record.key_dim * (2 if record.owns_cache else 1), "full": query + key}[block.qk_norm]
    vectors = (query + key + value) * block.qkv_bias + hidden_size * block.output_bias + heads * (block.sinks + block.gate_bias)
    return LayerParameters(
        query=hidden_size * (query + gate),
        key_value=hidden_size * (key + value),
        attention_output=heads * record.value_dim * hidden_size,
        norms=norms + block.norms * hidden_size,
        vectors=vectors,
    )


def gated_mlp(hidden_size: int, width: int, bias: bool = False) -> LayerParameters:
    """SwiGLU: gate, up and down; also a shared expert."""
    return LayerParameters(mlp=3 * hidden_size * width, vectors=(2 * width + hidden_size) * bias)


def routed(hidden_size: int, experts: Experts, router_vectors: int = 0, router_rows: int = 0) -> LayerParameters:
    """The router E x H and E gated experts. `router_rows` are further rows of its size (a shared expert's gate)."""
    return LayerParameters(
        router=(experts.num_experts + router_rows) * hidden_size,
        vectors=router_vectors,
        expert=3 * hidden_size * experts.width,
        expert_vectors=experts.biases,
        num_experts=experts.num_experts,
        experts_per_token=experts.experts_per_token,
    )


def one_of(fields: Fields, keys: Sequence[str], default: int | None = None, minimum: int = 1) -> int:
    """One number under several spellings. Raises BadInput when they disagree."""
    found = {key: fields.integer(key, minimum=minimum) for key in keys if fields.has(key)}
    if len(set(found.values())) > 1:
        raise fields.bad(keys[0], f"{keys[1]} says another number")
    return next(iter(found.values())) if found else fields.integer(keys[0], default=default, minimum=minimum)


def read_experts(fields: Fields, count: Sequence[str], width: str, per_token: Sequence[str] = ("num_experts_per_tok",)) -> Experts:
    """The keys of a class whose defaults are already filled in. Raises BadInput for more experts a token than there are."""
    experts = Experts(one_of(fields, count), one_of(fields, per_token), fields.integer(width))
    if experts.experts_per_token > experts.num_experts:
        raise fields.bad(per_token[0] if fields.has(per_token[0]) else per_token[-1], f"there are {experts.num_experts} experts")
    return experts


def fill(fields: Fields, defaults: dict[str, object], *aliases: tuple[str, ...]) -> Fields:
    """Class defaults for absent keys; of keys that are spellings of one (`aliases`), none is filled where one is there."""
    taken = {key for names in aliases if any(name in fields.values for name in names) for key in names}
    absent = {key: value for key, value in defaults.items() if key not in fields.values and key not in taken}
    return Fields({**absent, **fields.values}, fields.where, fields.outer)


def refuse(fields: Fields, key: str, *values: object) -> None:
    """Raises BadInput for a variant that transformers' class does not build (it would ignore the key)."""
    if fields.has(key) and any(fields.values[key] == value for value in values):
        raise fields.bad(key, "kvcli does not know this variant of the family")


def read_tied(fields: Fields, default: bool = False, wrapper_default: bool = False) -> bool:
    """Of a multimodal file transformers obeys the outer flag only, or the default of the outer class."""
    if fields.outer is not None:
        return fields.outer.boolean("tie_word_embeddings", wrapper_default)
    return fields.boolean("tie_word_embeddings", default)


def read_kinds(fields: Fields, key: str, layers: int, known: tuple[str, ...]) -> list[str] | None:
    """A list of layer kinds; an unknown name is an error."""
    names = fields.texts(key, layers)
    if names is None:
        return None
    kinds = [LEGACY_KINDS.get(name, name) for name in names]
    for kind in kinds:
        if kind not in known:
            raise fields.bad(key, f"kvcli does not know the layer type {kind!r} in this family")
    return kinds


def read_sliding(fields: Fields, layers: int, default: Sequence[bool]) -> list[bool]:
    """Which layers have a window: by `layer_types`, else by the rule of the class."""
    kinds = read_kinds(fields, "layer_types", layers, ("full_attention", "sliding_attention"))
    return list(default) if kinds is None else [kind == "sliding_attention" for kind in kinds]


def read_sparse(fields: Fields, layers: int, default: Sequence[bool]) -> list[bool]:
    """Which layers have experts: by `mlp_layer_types`, else by the rule of the class."""
    kinds = read_kinds(fields, "mlp_layer_types", layers, ("dense", "sparse"))
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    first = fields.integer("first_k_dense_replace", default=-1, minimum=0)
    if first >= 0 and list(default) != [index >= first for index in range(layers)]:
        raise fields.bad("first_k_dense_replace", "this family's class has its dense layers elsewhere unless mlp_layer_types says so")
    return list(default)


def layer_fields(fields: Fields, layers: int) -> list[Fields]:
    """Each layer's keys: those of the file, under the overrides of `per_layer_config` ({"05": {"head_dim": 512}, …})."""
    overrides = fields.mapping("per_layer_config")
    result = [fields] * layers
    for key in overrides.values:
        changed = overrides.mapping(key)
        if not str(key).isdecimal() or int(key) >= layers:
            raise fields.bad("per_layer_config", f"{str(key)[:20]!r} is no layer of {layers}")
        if changed.has("skip"):
            raise fields.bad("per_layer_config", "kvcli does not model skipped blocks")
        result[int(key)] = Fields({**fields.values, **changed.values}, changed.where, fields.outer)
    return result


def read_window(fields: Fields, sliding: bool) -> int | None:
    """Raises BadInput for a sliding layer in a file whose window is off or absent."""
    if not sliding:
        return None
    window = fields.optional_integer("sliding_window")
    if window is None:
        raise fields.bad("sliding_window", "the file has sliding layers")
    return window


def read_attention(fields: Fields, hidden_size: int, sliding: bool = False) -> Attention:
    """Without a head_dim it is H // A, rounded down where A does not divide H (GLM-4.5's class defaults)."""
    heads = fields.integer("num_attention_heads")
    whole = fields if fields.has("head_dim") else Fields({**fields.values, "head_dim": max(1, hidden_size // heads)}, fields.where)
    _, kv_heads, head_dim = read_heads(whole, hidden_size)
    return Attention(heads, kv_heads, head_dim, head_dim, window_tokens=read_window(fields, sliding))


def decoder(
    fields: Fields,
    feed_forward: Callable[[Fields, int], LayerParameters],
    block: Block,
    tied: bool,
    sliding: Sequence[bool] | None = None,
    final: int | None = None,
) -> ModelParts:
    """A model whose layers are grouped-query attention and `feed_forward` of (the layer's keys, its index)."""
    hidden_size = fields.integer("hidden_size")
    count = read_layer_count(fields)
    layers: list[Layer] = []
    for index, keys in enumerate(layer_fields(fields, count)):
        record = read_attention(keys, hidden_size, sliding is not None and sliding[index])
        layers.append(((record,), combine(attention_block(hidden_size, record, block), feed_forward(keys, index))))
    return model_parts(fields, layers, tied, hidden_size if final is None else final)


def model_parts(fields: Fields, layers: Sequence[Layer], tied: bool, final: int, lookups: int = 0, shared: int = 0) -> ModelParts:
    """The keys around the layers, in Hugging Face's usual names."""
    return ModelParts(
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=fields.integer("max_position_embeddings"),
        layers=tuple(layers),
        tied=tied,
        final=final,
        lookups=lookups,
        shared=shared,
    )
