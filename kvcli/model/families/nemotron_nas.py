"""Nemotron-NAS (Llama-3.3-Nemotron-Super, Ultra): Llama blocks of which a search removed, narrowed or replaced parts.

Each entry of `block_configs` says what its layer kept: attention with A / `n_heads_in_group` KV heads, an MLP of `ffn_mult`,
a single H x H matrix in place of either, or nothing. Rules are those of the published modelling notes of these checkpoints.
"""

from __future__ import annotations

from kvcli.model.cache_records import Attention
from kvcli.model.families.parts import ModelParts, read_layer_count
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

#: Widths of the MLP are rounded up to multiples of this.
ROUNDING = 256


def read_nemotron_nas(fields: Fields) -> ModelParts:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim, rest = divmod(hidden, heads)
    if rest:
        raise fields.bad("num_attention_heads", f"it must divide the hidden size {hidden}")
    layers = read_layer_count(fields)
    blocks = fields.values.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) < layers or not all(isinstance(block, dict) for block in blocks):
        raise fields.bad("block_configs", f"it must describe each of {layers} layers")
    named = [Fields(block, f"{fields.where}: block_configs[{index}]") for index, block in enumerate(blocks[:layers])]
    return ModelParts(
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=fields.integer("max_position_embeddings"),
        layers=tuple(_layer(block, hidden, heads, head_dim) for block in named),
        tied=fields.boolean("tie_word_embeddings", False),
        final=hidden,
    )


def _layer(block: Fields, hidden: int, heads: int, head_dim: int) -> Layer:
    attention, ffn = block.mapping("attention"), block.mapping("ffn")
    records: tuple[Attention, ...] = ()
    parameters = LayerParameters()
    if attention.boolean("replace_with_linear", False):
        parameters = parameters._replace(attention_output=hidden * hidden, norms=hidden)
    elif not attention.boolean("no_op", False):
        group = attention.integer("n_heads_in_group")
        kv_heads, rest = divmod(heads, group)
        if rest:
            raise attention.bad("n_heads_in_group", f"it must divide the {heads} attention heads")
        records = (Attention(heads, kv_heads, head_dim, head_dim),)
        parameters = LayerParameters(
            query=hidden * hidden, key_value=2 * hidden * kv_heads * head_dim, attention_output=hidden * hidden, norms=hidden
        )
    if ffn.boolean("replace_with_linear", False):
        parameters = parameters._replace(mlp=hidden * hidden, norms=parameters.norms + hidden)
    elif not ffn.boolean("no_op", False):
        width = int(2 * ffn.number("ffn_mult", 0.0, minimum=0) * hidden / 3)
        width = -(-width // ROUNDING) * ROUNDING
        if not 0 < width < 2**40:
            raise ffn.bad("ffn_mult", "it gives no usable width")
        parameters = parameters._replace(mlp=3 * hidden * width, norms=parameters.norms + hidden)
    return records, parameters
