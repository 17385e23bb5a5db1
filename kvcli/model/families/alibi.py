"""BLOOM, MPT and Falcon: fused projections, ALiBi in most of them, tables tied by default."""

from __future__ import annotations

from kvcli.model.families.gpt import H, L, P, parts, pick, read_widths, repeated
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer

#: ALiBi needs no table: what the class names as the longest context where the file does not say
BLOOM_POSITIONS = 2048


def read_bloom(fields: Fields) -> ModelParts:
    """BLOOM: a norm behind the input table too. `n_embed` is an older name of the hidden size and wins."""
    block = read_widths(fields, ("n_embed", 64), ("n_head", 8))._replace(qkv_bias=True, output_bias=True, mlp_bias=True)
    norm = 2 * block.hidden_size
    layers = repeated(fields, block, block.parameters(2 * norm), "n_layer", 2)
    positions = fields.integer(pick(fields, "seq_length", P), BLOOM_POSITIONS)
    return parts(fields, block, 250880, positions, layers, tied=True, final=2 * norm)


def read_mpt(fields: Fields) -> ModelParts:
    """MPT without any bias. Variants that transformers' class does not build (learned positions, fewer KV heads) are refused."""
    attention = fields.mapping("attn_config")
    block = read_widths(fields, ("d_model", 2048), ("n_heads", 16))
    if not attention.boolean("alibi", True):
        raise attention.bad("alibi", "kvcli reads MPT models with ALiBi only")
    if attention.boolean("qk_ln", False):
        raise attention.bad("qk_ln", "kvcli reads MPT models without q/k norms only")
    if attention.integer("kv_n_heads", block.num_attention_heads) != block.num_attention_heads:
        raise attention.bad("kv_n_heads", f"kvcli reads MPT models with a KV head for each of {block.num_attention_heads} heads only")
    if not fields.boolean("no_bias", True):
        raise fields.bad("no_bias", "kvcli reads MPT models without biases only")
    if fields.number("expansion_ratio", 4) != 4:
        raise fields.bad("expansion_ratio", "transformers' MPT layers are always 4 times as wide")
    layers = repeated(fields, block, block.parameters(2 * block.hidden_size), "n_layers", 24)
    positions = fields.integer(pick(fields, "max_seq_len", P), 2048)
    return parts(fields, block, 50368, positions, layers, tied=True, final=block.hidden_size)


def read_falcon(fields: Fields) -> ModelParts:
    """Falcon. Under the new decoder `num_kv_heads` counts and `multi_query` does not.

    transformers repeats the new decoder's keys and values to all query heads before it caches them.
    """
    return _falcon(fields, "num_kv_heads", fields.boolean("new_decoder_architecture", False))


def read_refined_web(fields: Fields) -> ModelParts:
    """Falcon-40B's file before transformers had the class: `n_head_kv`, and the new decoder where it is there."""
    return _falcon(fields, "n_head_kv", fields.has("n_head_kv"))


def _falcon(fields: Fields, kv_key: str, new_decoder: bool) -> ModelParts:
    block = read_widths(fields, (pick(fields, "n_embed", H), 4544), (pick(fields, "num_attention_heads", "n_head"), 71))
    heads, hidden_size = block.num_attention_heads, block.hidden_size
    kv_heads = fields.integer(kv_key, heads)
    if not new_decoder:
        kv_heads = 1 if fields.boolean("multi_query", True) else heads
    elif heads % kv_heads:
        raise fields.bad(kv_key, f"it must divide the {heads} attention heads")
    bias = fields.boolean("bias", False)
    block = block._replace(
        intermediate_size=fields.integer("ffn_hidden_size", 4 * hidden_size),
        num_key_value_heads=kv_heads,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )
    record = block.attention()._replace(transformers_heads=heads if new_decoder else 0)
    layer: Layer = ((record,), block.parameters(_falcon_norms(fields, new_decoder) * 2 * hidden_size))
    layers = (layer,) * read_layer_count(fields, pick(fields, L, "n_layer"), 32)
    return parts(fields, block, 65024, fields.integer(P, 2048), layers, tied=True, final=2 * hidden_size)


def _falcon_norms(fields: Fields, new_decoder: bool) -> int:
    """Norms of a layer: two, or one where attention and MLP are parallel behind the same norm."""
    if not fields.boolean("parallel_attn", True):
        return 2
    return 2 if fields.integer("num_ln_in_parallel_attn", 2 if new_decoder else 1) == 2 else 1
