"""Qwen4-Exp: Gated DeltaNet beside attention with an indexer, residual streams, experts, and hashed n-gram tables.

An n-gram table is looked up by the hash of the last tokens, so a step reads a few of its rows. Counts are those of the modules
transformers 5.23 builds.
"""

from __future__ import annotations

from dataclasses import replace

from kvcli.model.cache_records import Attention
from kvcli.model.families import mixers
from kvcli.model.families.latent_blocks import Experts, filled, latent_parts, moe_parameters, plus, refuse
from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters
from kvcli.model.state_records import Recurrent

_DEFAULTS: dict[str, object] = {
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
}
_LINEAR, _INDEXED = "linear_attention", "indexed_attention"
#: Positions that the first indexed layer's cache holds in transformers: three numbers of 8 bytes a token.
_POSITIONS = 24
#: More hashed tables than this are no real model, and their prime sizes would take long to find.
_MOST_TABLES = 2048


def read_qwen4_exp(fields: Fields) -> ModelParts:
    """Layers by `layer_types`, else every fourth with attention; published lists call these full attention."""
    f = filled(fields, _DEFAULTS)
    refuse(f, "sliding_window", "attention_chunk_size")
    hidden, streams = f.integer("hidden_size"), f.integer("hc_count", minimum=2)
    width, low = streams * hidden, f.integer("hc_lowrank")
    mixing = LayerParameters(mixer=2 * width * low, norms=width)
    around = plus(mixing, mixing, LayerParameters(mixer=2 * width * streams), _experts(f, hidden))
    kinds, tables = _kinds(f), _tables(f)
    linear, rows = _linear(f, hidden), 0
    first = kinds.index(_INDEXED) if _INDEXED in kinds else -1
    layers: list[Layer] = []
    for number, kind in enumerate(kinds):
        records, own = linear if kind == _LINEAR else _indexed(f, hidden, holds_positions=number == first)
        if number in tables:
            if kind != _LINEAR:
                raise f.bad("ple_layer_ids", f"layer {number + 1} is no linear-attention layer")
            more, table = _ngrams(f, hidden, width)
            records, own, rows = (*records, *more), plus(own, table), rows + tables[number]
        layers.append((records, plus(around, own)))
    dim = _ngram_dim(f, hidden) if tables else 0
    # the streams are joined by one more mixer, which has the last norm
    return replace(latent_parts(f, tuple(layers)), lookups=rows * dim, shared=2 * width * low, final=width)


def _experts(f: Fields, hidden: int) -> LayerParameters:
    """The shared expert is behind a gate of one number."""
    routed = f.integer("num_experts")
    per_token = f.integer("num_experts_per_tok", maximum=routed)
    experts = Experts(f.integer("moe_intermediate_size"), routed, per_token, f.integer("shared_expert_intermediate_size"))
    return plus(moe_parameters(hidden, experts), LayerParameters(mlp=hidden))


def _linear(f: Fields, hidden: int) -> Layer:
    return mixers.gated_delta(
        hidden,
        f.integer("linear_num_key_heads"),
        f.integer("linear_num_value_heads"),
        f.integer("linear_key_head_dim"),
        f.integer("linear_value_head_dim"),
        f.integer("linear_conv_kernel_dim"),
    )


def _indexed(f: Fields, hidden: int, holds_positions: bool) -> Layer:
    """Gated attention that reads `indexer_budget` tokens and those of the last, incomplete block."""
    heads, kv_heads, dim = read_heads(f, hidden)
    index_heads, index_dim, ratio = (f.integer(f"indexer_{key}") for key in ("n_heads", "head_dim", "compress_ratio"))
    if f.integer("indexer_kv_heads") != 1:
        raise f.bad("indexer_kv_heads", "the model class has one")
    budget = f.integer("indexer_budget")
    if budget % ratio:
        raise f.bad("indexer_budget", f"it must be a multiple of the {ratio} tokens of a block")
    record = Attention(
        heads,
        kv_heads,
        dim,
        dim,
        index_dim=index_dim,
        index_heads=index_heads,
        index_ratio=ratio,
        read_tokens=budget + ratio - 1,
        transformers_token_bytes=_POSITIONS if holds_positions else 0,
    )
    bias = f.boolean("attention_bias", False)
    attention = mixers.attention(hidden, record, bias, bias, qk_norm=2 * dim, query_factor=2)
    scores, key = hidden * index_heads * index_dim, hidden * index_dim
    index = LayerParameters(query=scores, key_value=key, norms=2 * index_dim, replicated=scores + key)
    return (record,), plus(attention, index)


def _ngrams(f: Fields, hidden: int, width: int) -> Layer:
    """Key and value from the looked-up rows, three norms, and a dilated convolution over the streams.

    The state is (kernel - 1) x dilation columns; transformers also keeps the last tokens' ids.
    """
    kernel, size = f.integer("ple_conv_kernel_size"), f.integer("ngram_size", minimum=2)
    embedded = f.integer("ple_embed_dim", default=hidden)
    state = Recurrent("conv", plain_elements=width * (kernel - 1) * size, transformers_bytes=8 * (size - 1))
    return (state,), LayerParameters(mixer=embedded * (width + hidden), norms=3 * width, vectors=width * kernel)


def _ngram_dim(f: Fields, hidden: int) -> int:
    dim, rest = divmod(f.integer("ple_embed_dim", default=hidden), _heads(f))
    if rest or not dim:
        raise f.bad("ple_embed_dim", f"it must be a multiple of the {_heads(f)} hashed tables")
    return dim


def _heads(f: Fields) -> int:
    return (f.integer("ngram_size", minimum=2, maximum=_MOST_TABLES) - 1) * f.integer("heads_per_ngram", maximum=_MOST_TABLES)


def _tables(f: Fields) -> dict[int, int]:
    """Rows of the tables of each layer that has them, by index: a prime number for each hashed head, padded together."""
    numbers = sorted(set(f.integers("ple_layer_ids", minimum=1) or []))
    heads, padded = _heads(f), f.integer("make_ngram_vocab_size_divisible_by")
    if numbers and (numbers[-1] > read_layer_count(f) or len(numbers) * heads > _MOST_TABLES):
        raise f.bad("ple_layer_ids", "it must hold numbers of layers, counted from 1")
    size = f.integer("ngram_vocab_size_base", minimum=2, maximum=2**31) - 1
    rows = {}
    for number in numbers:
        total = 0
        for _ in range(heads):
            size = _next_prime(size)
            total += size
        rows[number - 1] = -(-total // padded) * padded
    return rows


def _next_prime(value: int) -> int:
    value += 1
    while not _is_prime(value):
        value += 1
    return value


def _is_prime(value: int) -> bool:
    """Miller's test, which is exact with these bases below 3.2e9."""
    bases = (2, 3, 5, 7)
    if value < 11:
        return value in bases
    odd, twos = value - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        power = pow(base, odd, value)
        if power in (1, value - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % value
            if power == value - 1:
                break
        else:
            return False
    return True


def _kinds(f: Fields) -> list[str]:
    layers = read_layer_count(f)
    names = f.texts("layer_types", layers)
    if names is None:
        every = f.integer("full_attention_interval", default=4)
        return [_LINEAR if (number + 1) % every else _INDEXED for number in range(layers)]
    kinds = [_INDEXED if name == "full_attention" else name for name in names]
    for kind in kinds:
        if kind not in (_LINEAR, _INDEXED):
            raise f.bad("layer_types", f"kvcli does not know the layer type {kind!r} in this family")
    return kinds
