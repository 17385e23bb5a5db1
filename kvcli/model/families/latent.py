"""Models with plain multi-head latent attention: DeepSeek-V2 and V3, Kimi-K2, GLM-4.7-Flash, MiniCPM3, Youtu, Mistral-4, A.X-K1.

Their files give `num_key_value_heads` = heads and a `head_dim` of the rope part; neither means anything for the cache, which
is kv_lora_rank + qk_rope_head_dim elements a token and layer. Defaults are those of the configuration classes.
"""

from __future__ import annotations

from kvcli.model.families.latent_blocks import (
    after_dense,
    attention_parameters,
    filled,
    latent_parts,
    latent_record,
    mlp_parameters,
    moe_parameters,
    plus,
    prediction_blocks,
    read_experts,
    read_shape,
    refuse,
    sparse_layers,
)
from kvcli.model.families.parts import ModelParts, layer_kinds, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters

_V2: dict[str, object] = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1407,
}
_V3: dict[str, object] = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "max_position_embeddings": 4096,
}
_GLM4_LITE: dict[str, object] = {
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "n_shared_experts": 1,
    "n_routed_experts": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 768,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 202752,
}
_MISTRAL4: dict[str, object] = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "kv_lora_rank": 256,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 64,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 0,
    "max_position_embeddings": 1048576,
}
_AXK1: dict[str, object] = {
    **_V3,
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "n_routed_experts": 192,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 32768,
}
_MINICPM3: dict[str, object] = {
    "vocab_size": 73448,
    "hidden_size": 2560,
    "intermediate_size": 6400,
    "num_hidden_layers": 62,
    "num_attention_heads": 40,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
}
_YOUTU: dict[str, object] = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
_ROUTED = {"n_routed_experts": "num_local_experts"}


def read_deepseek_v2(fields: Fields) -> ModelParts:
    """`q_lora_rank` null (V2-Lite) means one query projection; an absent key means the class default."""
    f = filled(fields, _V2, {"n_routed_experts": "num_experts"})
    return _moe(f, _every_layer(f), mlp_bias=f.boolean("mlp_bias", False))


def read_deepseek_v3(fields: Fields) -> ModelParts:
    f = filled(fields, _V3, _ROUTED)
    return _moe(f, _every_layer(f), mtp=True)


def read_mistral4(fields: Fields) -> ModelParts:
    f = filled(fields, _MISTRAL4, _ROUTED)
    return _moe(f, _every_layer(f))


def read_glm4_moe_lite(fields: Fields) -> ModelParts:
    """Dense layers by `mlp_layer_types`, without it only the first. `head_dim` alone means the rotary part."""
    rotary = {} if fields.has("qk_rope_head_dim") else {"qk_rope_head_dim": "head_dim"}
    f = filled(fields, _GLM4_LITE, {**_ROUTED, **rotary})
    layers = read_layer_count(f)
    return _moe(f, sparse_layers(f, layers, [index > 0 for index in range(layers)]), mtp=True)


def read_axk1(fields: Fields) -> ModelParts:
    """A.X-K1 has one more norm, after the experts."""
    f = filled(fields, _AXK1, _ROUTED)
    return _moe(f, sparse_layers(f, read_layer_count(f), scheduled(f)), moe_norm=True)


def read_minicpm3(fields: Fields) -> ModelParts:
    """Dense layers; `v_head_dim` null or absent is H / A."""
    f = filled(fields, _MINICPM3)
    if not f.has("v_head_dim"):
        value, rest = divmod(f.integer("hidden_size"), f.integer("num_attention_heads"))
        if rest:
            raise f.bad("num_attention_heads", "it must divide the hidden size where no v_head_dim is given")
        f = Fields({**f.values, "v_head_dim": value}, f.where, f.outer)
    return _dense(f, mlp_bias=f.boolean("mlp_bias", False))


def read_youtu(fields: Fields) -> ModelParts:
    return _dense(filled(fields, _YOUTU))


def scheduled(fields: Fields) -> list[bool]:
    """Experts from `first_k_dense_replace` on, in every `moe_layer_freq`-th layer."""
    every = fields.integer("moe_layer_freq", default=1)
    return [sparse and index % every == 0 for index, sparse in enumerate(after_dense(fields, read_layer_count(fields)))]


def _every_layer(fields: Fields) -> list[bool]:
    if fields.integer("moe_layer_freq", default=1) != 1:
        raise fields.bad("moe_layer_freq", "transformers puts experts into every layer of this family")
    return after_dense(fields, read_layer_count(fields))


def _dense(f: Fields, mlp_bias: bool = False) -> ModelParts:
    return _build(f, [mlp_parameters(f.integer("hidden_size"), f.integer("intermediate_size"), mlp_bias)] * read_layer_count(f))


def _moe(f: Fields, sparse: list[bool], mlp_bias: bool = False, moe_norm: bool = False, mtp: bool = False) -> ModelParts:
    hidden = f.integer("hidden_size")
    dense = mlp_parameters(hidden, f.integer("intermediate_size"), mlp_bias)
    moe = moe_parameters(hidden, read_experts(f), mlp_bias)
    if moe_norm:
        moe = plus(moe, LayerParameters(norms=hidden))
    return _build(f, [moe if one else dense for one in sparse], moe if mtp else None)


def _build(f: Fields, blocks: list[LayerParameters], mtp: LayerParameters | None = None) -> ModelParts:
    refuse(f, "sliding_window", "attention_chunk_size")
    layer_kinds(f, len(blocks), ("full_attention",))
    hidden, shape = f.integer("hidden_size"), read_shape(f)
    around = plus(attention_parameters(hidden, shape), LayerParameters(norms=2 * hidden))
    layers = tuple(((latent_record(shape),), plus(around, block)) for block in blocks)
    block = ((latent_record(shape),), plus(around, mtp)) if mtp is not None else None
    return latent_parts(f, layers, None if block is None else prediction_blocks(f, hidden, block))
