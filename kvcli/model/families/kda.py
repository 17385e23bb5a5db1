"""Kimi Delta Attention beside latent attention: Kimi-Linear and Ling-3 (`bailing_hybrid`).

Defaults for absent keys are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from kvcli import dtypes
from kvcli.model.families import mixers
from kvcli.model.families.hybrid import BOTH, hybrid_parts, join
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.latent_records import Latent
from kvcli.model.layers import Layer, LayerParameters
from kvcli.model.state_records import Recurrent

ALIASES = {
    "model_max_length": "max_position_embeddings",
    "num_experts": "num_local_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
_KIMI: dict[str, object] = {
    "vocab_size": 163840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "n_shared_experts": 1,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "num_experts_per_tok": 8,
    "num_local_experts": 256,
    "max_position_embeddings": 1048576,
}
_BAILING = {
    **_KIMI,
    "vocab_size": 157184,
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 42,
    "num_local_experts": 512,
    "max_position_embeddings": 262144,
    "head_dim": 128,
}


def read_kimi_linear(fields: Fields) -> ModelParts:
    """`linear_attn_config` holds the KDA dims and two lists of layer numbers, which start at 1."""
    filled = mixers.prepare(fields, _KIMI, ALIASES)
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    nested = filled.mapping("linear_attn_config")
    kinds = mixers.read_kinds(filled, count, BOTH) or _listed_kinds(nested, count)
    heads = nested.integer("num_heads", default=filled.integer("linear_num_heads", default=32))
    head_dim = nested.integer("head_dim", default=filled.integer("linear_head_dim", default=128))
    kernel = nested.integer("short_conv_kernel_size", default=filled.integer("linear_conv_kernel_dim", default=4))
    blocks = {
        # both gates are of low rank, the head dim
        "linear_attention": join(
            delta_layer(hidden_size, heads, head_dim, kernel, gates=2 * (hidden_size + heads * head_dim) * head_dim),
            LayerParameters(replicated=2 * hidden_size * head_dim),
        ),
        "full_attention": read_latent(filled, hidden_size),
    }
    return _parts(filled, hidden_size, kinds, blocks, dense_layers=1)


def read_bailing_hybrid(fields: Fields) -> ModelParts:
    """Latent attention every `layer_group_size` layers, gated by head; KDA with gates of full rank."""
    filled = mixers.prepare(fields, _BAILING, ALIASES)
    if filled.has("q_lora_rank"):
        raise filled.bad("q_lora_rank", "the model class has a full query projection")
    hidden_size, count = filled.integer("hidden_size"), read_layer_count(filled)
    kinds = mixers.read_kinds(filled, count, BOTH)
    if kinds is None:
        size = filled.integer("layer_group_size", default=6)
        kinds = [BOTH[(index + 1) % size == 0] for index in range(count)]
    # files saved by the library have these keys, and in them head_dim is the rope part of latent attention
    heads = filled.integer("linear_num_heads", default=filled.integer("num_attention_heads"))
    head_dim = filled.integer("linear_head_dim", default=filled.integer("head_dim"))
    kernel = filled.integer("linear_conv_kernel_dim", default=filled.integer("short_conv_kernel_size", default=4))
    latent = read_latent(filled, hidden_size)
    blocks = {
        "linear_attention": delta_layer(hidden_size, heads, head_dim, kernel, gates=2 * hidden_size * heads * head_dim),
        "full_attention": join(latent, LayerParameters(attention_output=hidden_size * filled.integer("num_attention_heads"))),
    }
    return _parts(filled, hidden_size, kinds, blocks, dense_layers=2)


def _listed_kinds(nested: Fields, count: int) -> list[str]:
    """Of the two lists; without them every fourth layer after the first is full."""
    full, linear = nested.integers("full_attn_layers", minimum=1), nested.integers("kda_layers", minimum=1)
    if full is None or linear is None:
        return [BOTH[index > 0 and index % 4 == 0] for index in range(count)]
    kinds: list[str] = []
    for number in range(1, count + 1):
        if (number in full) == (number in linear):
            raise nested.bad("full_attn_layers", f"layer {number} must be in it or in kda_layers, and not in both")
        kinds.append(BOTH[number in full])
    return kinds


def delta_layer(hidden_size: int, heads: int, head_dim: int, kernel: int, gates: int) -> Layer:
    """KDA: a decay for every key dim, a d x d state a head. `gates` are the matrices of the forget and the output gate."""
    width = heads * head_dim
    record = Recurrent("linear_attention", 3 * width, kernel, width * head_dim, dtypes.FP32, heads=heads)
    return (record,), LayerParameters(
        mixer=4 * hidden_size * width + hidden_size * heads + gates,
        vectors=3 * width * kernel + width + heads,  # convolution, decay bias, A
        norms=head_dim,
    )


def read_latent(fields: Fields, hidden_size: int) -> Layer:
    """Multi-head latent attention; `num_key_value_heads` of such files says nothing about its cache."""
    heads = fields.integer("num_attention_heads")
    rank, rope = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim", minimum=0)
    nope, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    bias = fields.boolean("attention_bias", False)
    query_rank = fields.optional_integer("q_lora_rank")
    query = heads * (nope + rope)
    return (Latent(heads, rank, rope, nope, value),), LayerParameters(
        query=hidden_size * query if query_rank is None else query_rank * (hidden_size + query),
        key_value=hidden_size * (rank + rope) + rank * heads * (nope + value),
        attention_output=heads * value * hidden_size,
        replicated=hidden_size * (rank + rope + (query_rank or 0)),
        norms=rank + (query_rank or 0),
        vectors=((query_rank or 0) + rank + rope + hidden_size) * bias,
    )


def _parts(fields: Fields, hidden_size: int, kinds: list[str], blocks: dict[str, Layer], dense_layers: int) -> ModelParts:
    """Dense MLPs in the first layers, then experts; `mlp_layer_types` where the file has it."""
    dense = mixers.swiglu(hidden_size, fields.integer("intermediate_size"))
    width = fields.integer("moe_intermediate_size")
    shared = mixers.swiglu(hidden_size, width * fields.integer("n_shared_experts", minimum=0))
    sparse = mixers.merge(mixers.read_experts(fields, hidden_size, width, experts_key="num_local_experts"), shared)
    names = mixers.read_kinds(fields, len(kinds), ("dense", "sparse"), ("mlp_layer_types",))
    if names is None:
        first = fields.integer("first_k_dense_replace", default=dense_layers, minimum=0)
        names = ["dense" if index < first else "sparse" for index in range(len(kinds))]
    mlps = {"dense": dense, "sparse": sparse}
    layers = (join(blocks[kind], mlps[name], mixers.norms(2 * hidden_size)) for kind, name in zip(kinds, names, strict=True))
    return hybrid_parts(fields, hidden_size, tuple(layers), ties=False)
