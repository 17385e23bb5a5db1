"""Other recurrences: RecurrentGemma (RG-LRU), RWKV-4, xLSTM, MiniMax-Text-01 (lightning attention).

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli import dtypes
from kvcli.model.cache_records import Attention
from kvcli.model.families import mixers
from kvcli.model.families.hybrid import BOTH, hybrid_parts, join
from kvcli.model.families.parts import ModelParts, read_heads, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters
from kvcli.model.state_records import Recurrent

_RECURRENT_GEMMA: dict[str, object] = {
    "num_hidden_layers": 26,
    "vocab_size": 256000,
    "hidden_size": 2560,
    "intermediate_size": 7680,
    "num_attention_heads": 10,
    "attention_window_size": 2048,
    "conv1d_width": 4,
}
_RWKV: dict[str, object] = {"vocab_size": 50277, "hidden_size": 4096, "num_hidden_layers": 32}
_XLSTM = {**_RWKV, "vocab_size": 50304}
_MINIMAX: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}


def read_recurrent_gemma(fields: Fields) -> ModelParts:
    """Griffin: RG-LRU layers and windows of attention; the class keeps K - 1 convolution columns, as needed.

    No file says how long its contexts are: the window is taken, beyond which only the state reaches back.
    """
    filled = mixers.prepare(fields, _RECURRENT_GEMMA, {"sliding_window": "attention_window_size"})
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    pattern = filled.values.get("block_types") or ["recurrent", "recurrent", "attention"]
    if not isinstance(pattern, list | tuple) or any(name not in ("recurrent", "attention") for name in pattern):
        raise filled.bad("block_types", "its entries must be recurrent or attention")
    heads, kv_heads, head_dim = read_heads(filled, hidden_size)
    record = Attention(heads, kv_heads, head_dim, head_dim, filled.integer("attention_window_size"))
    attention = mixers.attention(hidden_size, record, filled.boolean("attention_bias", False), output_bias=True)
    width = filled.integer("lru_width", default=hidden_size)
    block, kernel = mixers.whole(filled, "num_attention_heads", width, heads), filled.integer("conv1d_width")
    lru = LayerParameters(
        mixer=3 * hidden_size * width + 2 * heads * block * block,
        # the biases of x and y, the convolution, the decay, the biases of both gates; the output's bias
        vectors=width * (2 + kernel + 1 + 1 + 2) + hidden_size,
    )
    state = Recurrent("linear_attention", width, kernel, width, dtypes.FP32, transformers_columns=kernel - 1)
    blocks: dict[str, Layer] = {"recurrent": ((state,), lru), "attention": ((record,), attention)}
    rest = mixers.merge(mixers.swiglu(hidden_size, filled.integer("intermediate_size") // 2, True), mixers.norms(2 * hidden_size))
    limit, notices = mixers.read_limit(filled, "max_position_embeddings")
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=filled.integer("vocab_size"),
        max_context_tokens=limit,
        layers=tuple(join(blocks[pattern[index % len(pattern)]], rest) for index in range(count)),
        tied=filled.boolean("tie_word_embeddings", True),
        final=hidden_size,
        notices=notices,
    )


def read_rwkv(fields: Fields) -> ModelParts:
    """RWKV-4: the last input of both blocks, and a numerator, a denominator and a maximum in float32."""
    filled = mixers.prepare(fields, _RWKV, {"max_position_embeddings": "context_length"})
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    inner = filled.integer("attention_hidden_size", default=hidden_size)
    if inner != hidden_size:
        raise filled.bad("attention_hidden_size", "the class keeps states of the hidden size alone")
    width = filled.integer("intermediate_size", default=4 * hidden_size)
    record = Recurrent("linear_attention", state_elements=3 * inner, state_dtype=dtypes.FP32, plain_elements=2 * hidden_size)
    parameters = LayerParameters(
        mixer=4 * hidden_size * inner,
        mlp=2 * hidden_size * width + hidden_size * hidden_size,
        vectors=2 * inner + 5 * hidden_size,
        norms=4 * hidden_size,
    )
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=filled.integer("vocab_size"),
        max_context_tokens=filled.integer("context_length", default=1024),
        layers=(((record,), parameters),) * count,
        tied=filled.boolean("tie_word_embeddings", False),
        final=4 * hidden_size,  # of the first layer's extra norm and of the last norm
    )


def read_xlstm(fields: Fields) -> ModelParts:
    """xLSTM: a matrix state, a normaliser and a stabiliser a head, kept in the model's type; one counter a model."""
    filled = mixers.prepare(fields, _XLSTM)
    hidden_size = filled.integer("hidden_size", default=filled.integer("embedding_dim", default=4096))
    only_blocks = fields.has("num_blocks") and not fields.has("num_hidden_layers")
    count = read_layer_count(fields, "num_blocks") if only_blocks else read_layer_count(filled, default=32)
    heads, bias = filled.integer("num_heads", default=8), filled.boolean("use_bias", False)
    key_width = int(hidden_size * filled.number("qk_dim_factor", 0.5))
    value_width = int(hidden_size * filled.number("v_dim_factor", 1.0))
    key_dim, value_dim = (mixers.whole(filled, "num_heads", -(-width // 64) * 64, heads) for width in (key_width, value_width))
    if (heads * key_dim, heads * value_dim) != (key_width, value_width):
        raise filled.bad("hidden_size", "the widths of keys and values must be multiples of 64")
    multiple = filled.integer("ffn_round_up_to_multiple_of", default=64)
    width = -(-int(hidden_size * filled.number("ffn_proj_factor", 2.667)) // multiple) * multiple
    record = Recurrent("linear_attention", state_elements=heads * (key_dim * value_dim + key_dim + 1), heads=heads)
    gates = 2 * heads * hidden_size
    parameters = LayerParameters(
        mixer=hidden_size * (2 * key_width + 2 * value_width) + gates + value_width * hidden_size,
        vectors=2 * heads + (2 * key_width + 2 * value_width + hidden_size) * bias,
        norms=(2 * hidden_size + value_width) * (1 + bias),
    )
    layer = join(((record,), parameters), mixers.swiglu(hidden_size, width, bias))
    counted = ((record._replace(transformers_bytes=8),), layer[1])  # a 64-bit position, whatever the batch
    limit, notices = mixers.read_limit(filled, "max_position_embeddings")
    return ModelParts(
        hidden_size=hidden_size,
        vocab_size=filled.integer("vocab_size"),
        max_context_tokens=limit,
        layers=(counted, *(layer,) * (count - 1)),
        tied=False,  # the class never ties
        final=hidden_size,
        notices=notices,
    )


def read_minimax(fields: Fields) -> ModelParts:
    """Lightning attention (a d x d state a head) beside full attention; experts in every layer.

    Original files mark full layers by 1 in `attn_type_list`. A window masks full layers while the cache keeps all tokens.
    """
    filled = mixers.prepare(fields, _MINIMAX, {"num_experts": "num_local_experts"})
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, BOTH)
    if kinds is None:
        marks = filled.integers("attn_type_list", count)
        if marks is not None and max(marks) > 1:
            raise filled.bad("attn_type_list", "its entries must be 0 or 1")
        kinds = [BOTH[mark] for mark in marks or [(index + 1) % 2 for index in range(count)]]
    if filled.integer("shared_intermediate_size", default=0, minimum=0):
        raise filled.bad("shared_intermediate_size", "the model class has no shared expert")
    heads, kv_heads, head_dim = read_heads(filled, hidden_size)
    record = Attention(heads, kv_heads, head_dim, head_dim, filled.optional_integer("sliding_window"), transformers_keeps=0)
    width = heads * head_dim
    lightning = LayerParameters(mixer=5 * hidden_size * width, norms=width)
    blocks: dict[str, Layer] = {
        "linear_attention": ((Recurrent("linear_attention", state_elements=width * head_dim, heads=heads),), lightning),
        "full_attention": ((record,), mixers.attention(hidden_size, record)),
    }
    experts = mixers.read_experts(filled, hidden_size, filled.integer("intermediate_size"), experts_key="num_local_experts")
    rest = mixers.merge(experts, mixers.norms(2 * hidden_size))
    return hybrid_parts(filled, hidden_size, tuple(join(blocks[kind], rest) for kind in kinds))
