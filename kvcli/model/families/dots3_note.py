"""dots3-note: latent attention of two shapes, whole-context layers with an indexer and window layers without one."""

from __future__ import annotations

from kvcli.dtypes import PLAIN
from kvcli.model.families.latent_blocks import (
    Indexer,
    attention_parameters,
    indexed,
    indexer_parameters,
    latent_parts,
    latent_record,
    mlp_parameters,
    moe_parameters,
    plus,
    read_experts,
    read_shape,
    sparse_layers,
)
from kvcli.model.families.parts import ModelParts, layer_kinds, read_layer_count, with_defaults
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, LayerParameters

_DEFAULTS: dict[str, object] = {
    "vocab_size": 152064,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 46,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "kv_lora_rank": 512,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 524288,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "shared_experts_intermediate_size": 1536,
}
#: Window layers of published files, each under a key that begins with `swa_`.
_WINDOW: dict[str, int] = {"num_attention_heads": 64, "q_lora_rank": 1024, "kv_lora_rank": 1024, "qk_nope_head_dim": 192, "v_head_dim": 128}
_OVERRIDES = (*_WINDOW, "qk_rope_head_dim", "num_key_value_heads", "head_dim")
_KINDS = ("indexed_attention", "sliding_attention", "full_attention")


def read_dots3_note(fields: Fields) -> ModelParts:
    """Published files have the decoder's keys at the top level, re-saved ones in `text_config`."""
    if not fields.has("text_config"):
        return read_dots3_note_text(fields)
    inner = fields.mapping("text_config")
    tied = {key: fields.values[key] for key in ("tie_word_embeddings",) if key in fields.values}
    return read_dots3_note_text(Fields({**tied, **inner.values}, inner.where, outer=fields))


def read_dots3_note_text(fields: Fields) -> ModelParts:
    renamed = {"n_routed_experts": fields.values["num_local_experts"]} if "num_local_experts" in fields.values else {}
    f = with_defaults(Fields({**renamed, **fields.values}, fields.where, fields.outer), **_DEFAULTS)
    layers, hidden = read_layer_count(f), f.integer("hidden_size")
    window = f.integer("sliding_window", default=f.integer("sliding_window_size", default=512))
    experts = read_experts(f)
    shared = f.integer("moe_shared_expert_intermediate_size", default=f.integer("shared_experts_intermediate_size"))
    moe = moe_parameters(hidden, experts._replace(shared_width=shared * f.integer("n_shared_experts")))
    dense = mlp_parameters(hidden, f.integer("intermediate_size"))
    kinds = _kinds(f, layers)
    built: list[Layer] = []
    for fields_of_layer, kind, sparse in zip(_per_layer(f, kinds), kinds, sparse_layers(f, layers, _schedule(f, layers)), strict=True):
        built.append(_layer(fields_of_layer, hidden, kind, window, moe if sparse else dense))
    return latent_parts(f, tuple(built))


def _layer(f: Fields, hidden: int, kind: str, window: int, feed_forward: LayerParameters) -> Layer:
    """A head's output is gated by one number, and the rotary key has a norm of its own."""
    shape = read_shape(f)
    if shape.q_lora_rank is None:
        raise f.bad("q_lora_rank", "queries of this family go through it")
    own = LayerParameters(attention_output=hidden * shape.num_attention_heads, norms=shape.qk_rope_head_dim + 2 * hidden)
    parameters = plus(attention_parameters(hidden, shape), own, feed_forward)
    record = latent_record(shape, window if kind == "sliding_attention" else None)
    if kind != "indexed_attention":
        return (record,), parameters
    index = Indexer(f.integer("index_n_heads"), f.integer("index_head_dim"), f.integer("index_topk"), shape.q_lora_rank)
    # the model class rotates index keys in float32 and keeps them so
    return (indexed(record, index, dtype=PLAIN["fp32"]),), plus(parameters, indexer_parameters(hidden, index))


def _kinds(f: Fields, layers: int) -> list[str]:
    """`layer_types`; older files call indexed layers full attention, which `use_dsa` false makes true."""
    dsa = f.boolean("use_dsa", True) if f.has("use_dsa") or "per_layer_config" not in f.values else None
    names = layer_kinds(f, layers, _KINDS)
    if names is None:
        windows = f.boolean("use_sliding_window", True)
        whole = "full_attention" if dsa is False else "indexed_attention"
        names = [whole if not windows or n < 2 or n % 4 == 1 else "sliding_attention" for n in range(layers)]
    if dsa is None:
        return names
    old, new = ("full_attention", "indexed_attention") if dsa else ("indexed_attention", "full_attention")
    return [new if name == old else name for name in names]


def _schedule(f: Fields, layers: int) -> list[bool]:
    dense = f.integer("first_k_dense_replace", default=1, minimum=0)
    if isinstance(f.values.get("moe_layer_freq"), list):
        listed = f.integers("moe_layer_freq", layers) or []
        return [n >= dense and bool(flag) for n, flag in enumerate(listed)]
    every = f.integer("moe_layer_freq", default=1)
    return [n >= dense and n % every == 0 for n in range(layers)]


def _per_layer(f: Fields, kinds: list[str]) -> list[Fields]:
    """Each layer's keys: `per_layer_config` where the file has it, else the `swa_` keys for window layers."""
    if "per_layer_config" in f.values:
        changes = {_number(f, key): value for key, value in f.mapping("per_layer_config").values.items()}
    else:
        swa = {key: f.values.get(f"swa_{key}", default) for key, default in _WINDOW.items()}
        rope = f.integer("swa_head_dim", default=256) - f.integer("swa_qk_nope_head_dim", default=_WINDOW["qk_nope_head_dim"])
        swa["qk_rope_head_dim"] = f.values.get("swa_qk_rope_head_dim", rope)
        changes = {number: swa for number, kind in enumerate(kinds) if kind == "sliding_attention"}
    return [_changed(f, changes.get(number)) for number in range(len(kinds))]


def _number(f: Fields, key: str) -> int:
    if not str(key).isdecimal():
        raise f.bad("per_layer_config", f"{str(key)[:20]!r} is not a layer number")
    return int(key)


def _changed(f: Fields, changes: object) -> Fields:
    if changes is None:
        return f
    if not isinstance(changes, dict) or not set(changes) <= set(_OVERRIDES):
        raise f.bad("per_layer_config", "kvcli reads only the dimensions of attention there")
    return Fields({**f.values, **changes}, f.where, f.outer)
