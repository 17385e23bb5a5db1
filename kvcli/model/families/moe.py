"""Decoders with experts in (nearly) every layer: Mixtral and its kin; they differ in biases, norms, windows and shared experts.

Class defaults are those of the configuration classes of transformers 5.23.
"""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families.moe_blocks import (
    Block,
    Experts,
    combine,
    decoder,
    fill,
    gated_mlp,
    model_parts,
    read_experts,
    read_sliding,
    read_tied,
    refuse,
    routed,
)
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import LayerParameters

#: One number under two names, as the attribute maps of these classes have it.
COUNT = ("num_local_experts", "num_experts")


def _base(vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int | None, positions: int) -> dict[str, object]:
    """Defaults in the order of the classes."""
    values: dict[str, object] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
    }
    return values if kv_heads is None else {**values, "num_key_value_heads": kv_heads}


def _every_layer(fields: Fields, block: Block, sliding: list[bool] | None = None, final: int | None = None) -> ModelParts:
    """Experts of `intermediate_size` in every layer."""

    def feed_forward(keys: Fields, index: int) -> LayerParameters:
        return routed(hidden_size, read_experts(keys, COUNT, "intermediate_size"))

    hidden_size = fields.integer("hidden_size")
    return decoder(fields, feed_forward, block, read_tied(fields), sliding, final)


def _uniform_window(fields: Fields) -> list[bool]:
    """All layers, where the file has a window and no list of kinds."""
    layers = read_layer_count(fields)
    return read_sliding(fields, layers, [fields.has("sliding_window")] * layers)


def read_mixtral(fields: Fields) -> ModelParts:
    defaults = {**_base(32000, 4096, 14336, 32, 32, 8, 131072), "num_local_experts": 8, "num_experts_per_tok": 2}
    keys = fill(fields, defaults, COUNT)
    return _every_layer(keys, Block(), _uniform_window(keys))


def read_phimoe(fields: Fields) -> ModelParts:
    """LayerNorm with bias; the output matrix may have one too."""
    defaults = {**_base(32064, 4096, 6400, 32, 32, 8, 131072), "num_local_experts": 16, "num_experts_per_tok": 2}
    keys = fill(fields, defaults)
    bias = keys.boolean("attention_bias", False)
    head_bias = keys.integer("vocab_size") if keys.boolean("lm_head_bias", False) else 0
    block = Block(qkv_bias=bias, output_bias=bias, norms=4)
    return _every_layer(keys, block, _uniform_window(keys), final=2 * keys.integer("hidden_size") + head_bias)


def read_olmoe(fields: Fields) -> ModelParts:
    defaults = {**_base(50304, 2048, 2048, 16, 16, None, 4096), "num_experts": 64, "num_experts_per_tok": 8}
    return _olmo(fill(fields, defaults, COUNT))


def read_flex_olmo(fields: Fields) -> ModelParts:
    defaults = {**_base(100352, 4096, 11008, 32, 32, None, 4096), "num_experts": 7, "num_experts_per_tok": 5}
    return _olmo(fill(fields, defaults, COUNT))


def _olmo(keys: Fields) -> ModelParts:
    bias = keys.boolean("attention_bias", False)
    return _every_layer(keys, Block(qkv_bias=bias, output_bias=bias, qk_norm="full"))


def read_minimax_m2(fields: Fields) -> ModelParts:
    defaults = {**_base(200064, 3072, 1536, 62, 48, 8, 196608), "head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8}
    keys = fill(fields, defaults, COUNT)
    refuse(keys, "use_qk_norm", False)
    if 0 in (keys.integers("attn_type_list") or ()):
        raise keys.bad("attn_type_list", "0 marks lightning attention, which this family's class does not have")
    if keys.integer("shared_intermediate_size", default=0, minimum=0):
        raise keys.bad("shared_intermediate_size", "this family's class has no shared expert")
    return _every_layer(keys, Block(qk_norm="full"))


def read_gpt_oss(fields: Fields) -> ModelParts:
    """Even layers have a window; a sink is one learned logit a head, which takes no place in the cache. Experts have biases."""
    defaults = {**_base(201088, 2880, 2880, 36, 64, 8, 131072), "head_dim": 64, "sliding_window": 128}
    keys = fill(fields, {**defaults, "num_local_experts": 128, "num_experts_per_tok": 4}, COUNT)
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")

    def feed_forward(layer: Fields, index: int) -> LayerParameters:
        experts = read_experts(layer, COUNT, "intermediate_size")
        return routed(hidden_size, experts._replace(biases=2 * experts.width + hidden_size), router_vectors=experts.num_experts)

    bias = keys.boolean("attention_bias", True)
    sliding = read_sliding(keys, layers, [index % 2 == 0 for index in range(layers)])
    return decoder(keys, feed_forward, Block(qkv_bias=bias, output_bias=bias, sinks=True), read_tied(keys), sliding)


def read_granitemoe(fields: Fields) -> ModelParts:
    return _granite(fields, shared=False, windows=False)


def read_granitemoeshared(fields: Fields) -> ModelParts:
    return _granite(fields, shared=True, windows=False)


def read_granitemoe_swa(fields: Fields) -> ModelParts:
    return _granite(fields, shared=True, windows=True)


def _granite(fields: Fields, shared: bool, windows: bool) -> ModelParts:
    defaults = {**_base(32000, 4096, 11008, 32, 32, None, 2048), "num_local_experts": 8, "num_experts_per_tok": 2}
    keys = fill(fields, {**defaults, "sliding_window": 128} if windows else defaults)
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")

    def feed_forward(layer: Fields, index: int) -> LayerParameters:
        width = layer.integer("shared_intermediate_size", default=0, minimum=0) if shared else 0
        return combine(routed(hidden_size, read_experts(layer, ("num_local_experts",), "intermediate_size")), gated_mlp(hidden_size, width))

    bias = keys.boolean("attention_bias", False)
    sliding = read_sliding(keys, layers, [index % 4 != 0 for index in range(layers)]) if windows else None
    return decoder(keys, feed_forward, Block(qkv_bias=bias, output_bias=bias, sinks=windows), read_tied(keys), sliding)


def read_aria_text(fields: Fields) -> ModelParts:
    keys = fill(fields, {**_base(32000, 4096, 4096, 32, 32, None, 2048), "moe_num_experts": 8, "moe_topk": 2, "moe_num_shared_experts": 2})
    hidden_size = keys.integer("hidden_size")

    def feed_forward(layer: Fields, index: int) -> LayerParameters:
        experts = read_experts(layer, ("moe_num_experts",), "intermediate_size", ("moe_topk",))
        width = experts.width * layer.integer("moe_num_shared_experts", minimum=0)
        return combine(routed(hidden_size, experts), gated_mlp(hidden_size, width, layer.boolean("mlp_bias", False)))

    bias = keys.boolean("attention_bias", False)
    return decoder(keys, feed_forward, Block(qkv_bias=bias, output_bias=bias), read_tied(keys))


def read_hunyuan_v1_moe(fields: Fields) -> ModelParts:
    """One shared expert of the experts' width. The class has no cross-layer attention and one width for all experts."""
    keys = fill(fields, {**_base(290943, 4096, 11008, 32, 32, None, 2048), "num_experts": 1, "moe_topk": 1})
    layers = read_layer_count(keys)
    hidden_size = keys.integer("hidden_size")
    for flag, unknown in (("use_cla", True), ("use_qk_norm", False)):
        refuse(keys, flag, unknown)
    for key, wanted in (("moe_intermediate_size", keys.integer("intermediate_size")), ("num_shared_expert", 1)):
        if any(value != wanted for value in _per_layer(keys, key, layers, wanted)):
            raise keys.bad(key, f"this family's class has {wanted} in every layer")
    counts, chosen = _per_layer(keys, "num_experts", layers, 1), _per_layer(keys, "moe_topk", layers, 1)
    if len(set(counts)) > 1:
        raise keys.bad("num_experts", "kvcli knows one count for all layers")

    def feed_forward(layer: Fields, index: int) -> LayerParameters:
        if chosen[index] > counts[index]:
            raise keys.bad("moe_topk", f"there are {counts[index]} experts")
        experts = Experts(counts[index], chosen[index], layer.integer("intermediate_size"))
        return combine(routed(hidden_size, experts), gated_mlp(hidden_size, experts.width))

    bias = keys.boolean("attention_bias", False)
    return decoder(keys, feed_forward, Block(qkv_bias=bias, output_bias=bias, qk_norm="head"), read_tied(keys))


def _per_layer(fields: Fields, key: str, layers: int, default: int) -> list[int]:
    """A number for all layers, or a list with one for each."""
    if isinstance(fields.values.get(key), list):
        return fields.integers(key, layers) or []
    return [fields.integer(key, default=default)] * layers


def read_jetmoe(fields: Fields) -> ModelParts:
    """Attention has experts too: q and o of G x d for each of the k chosen, over one K and V. So there are A = k G query heads."""
    defaults: dict[str, object] = {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "num_hidden_layers": 12,
        "num_key_value_heads": 16,
        "intermediate_size": 5632,
        "max_position_embeddings": 4096,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    keys = fill(fields, defaults)
    if "kv_channels" not in keys.values:
        keys = fill(keys, {"head_dim": 128})
    hidden_size = keys.integer("hidden_size")
    head_dim = keys.integer("kv_channels") if keys.has("kv_channels") else keys.integer("head_dim")
    experts = read_experts(keys, ("num_local_experts",), "intermediate_size")
    kv_heads = keys.integer("num_key_value_heads")
    record = Attention(kv_heads * experts.experts_per_token, kv_heads, head_dim, head_dim)
    width = kv_heads * head_dim
    feed_forward = routed(hidden_size, experts, router_vectors=2 * hidden_size, router_rows=experts.num_experts)
    parameters = combine(
        feed_forward._replace(expert=feed_forward.expert + 2 * hidden_size * width),
        LayerParameters(key_value=2 * hidden_size * width, norms=2 * hidden_size),
    )
    return model_parts(keys, [((record,), parameters)] * read_layer_count(keys), read_tied(keys, default=True), hidden_size)


def read_dbrx(fields: Fields) -> ModelParts:
    """Its own key names, in three objects; LayerNorm without bias."""
    attention, feed_forward = fields.mapping("attn_config"), fields.mapping("ffn_config")
    if fields.boolean("tie_word_embeddings", False):
        raise fields.bad("tie_word_embeddings", "this family's class does not tie its matrices")
    renamed: dict[str, object] = {
        "hidden_size": fields.integer("d_model", default=2048),
        "num_attention_heads": fields.integer("n_heads", default=16),
        "num_hidden_layers": read_layer_count(fields, "n_layers", default=24),
        "num_key_value_heads": attention.integer("kv_n_heads", default=1),
        "max_position_embeddings": fields.integer("max_seq_len", default=2048),
        "vocab_size": fields.integer("vocab_size", default=32000),
        "intermediate_size": feed_forward.integer("ffn_hidden_size", default=3584),
        "num_local_experts": feed_forward.integer("moe_num_experts", default=4),
        "num_experts_per_tok": feed_forward.integer("moe_top_k", default=1),
    }
    return _every_layer(Fields(renamed, fields.where), Block())
