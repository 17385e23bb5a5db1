"""Parts that models with multi-head latent attention share: attention, indexer, experts, MTP blocks, and their config keys.

The counts are those of the modules transformers 5.23 builds; the latent cache and its indexer are those of DeepSeek-V2 and
DeepSeek-V3.2 (arXiv 2405.04434, 2512.02556).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli.dtypes import DType
from kvcli.errors import NotModelled
from kvcli.model.families.parts import ModelParts, with_defaults
from kvcli.model.fields import Fields
from kvcli.model.latent_records import Latent
from kvcli.model.layers import Layer, LayerParameters, PredictionBlocks


class LatentShape(NamedTuple):
    """One attention block. `q_lora_rank` None: queries are projected at once. `bias`: on the A projections and the output."""

    num_attention_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None
    bias: bool


class Indexer(NamedTuple):
    """`source` is the width its queries are projected from."""

    heads: int
    dim: int
    topk: int
    source: int


class Experts(NamedTuple):
    """`width` of one routed expert, `shared_width` of all shared ones together."""

    width: int
    routed: int
    per_token: int
    shared_width: int


def filled(fields: Fields, defaults: dict[str, object], aliases: dict[str, str] | None = None) -> Fields:
    """The file with class defaults; `aliases` are other spellings of a key (`attribute_map`), used where the key is absent;
    a file in which the two differ is refused, as is one with per-layer overrides, which these models do not have.
    """
    for new, old in (aliases or {}).items():
        if {new, old} <= fields.values.keys() and fields.values[new] != fields.values[old]:
            raise fields.bad(old, f"{new}, which means the same, is {str(fields.values[new])[:20]}")
    renamed = {new: fields.values[old] for new, old in (aliases or {}).items() if old in fields.values and new not in fields.values}
    full = with_defaults(Fields({**renamed, **fields.values}, fields.where, fields.outer), **defaults)
    if full.values.get("per_layer_config"):
        raise NotModelled(f"{fields.where}: kvcli reads no per_layer_config in this family", code="unknown_variant")
    return full


def refuse(fields: Fields, *keys: str) -> None:
    """Raises BadInput where one of `keys` is set: transformers builds no such variant."""
    for key in keys:
        if fields.values.get(key):
            raise fields.bad(key, "kvcli knows no model of this family with it")


def read_shape(fields: Fields) -> LatentShape:
    return LatentShape(
        num_attention_heads=fields.integer("num_attention_heads"),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
        q_lora_rank=fields.optional_integer("q_lora_rank"),
        bias=fields.boolean("attention_bias", False),
    )


def read_experts(fields: Fields) -> Experts:
    width = fields.integer("moe_intermediate_size")
    routed = fields.integer("n_routed_experts")
    per_token = fields.integer("num_experts_per_tok", maximum=routed)
    return Experts(width, routed, per_token, width * fields.integer("n_shared_experts", minimum=0))


def plus(*parts: LayerParameters) -> LayerParameters:
    """One layer from its blocks; only one of them may have routed experts."""
    return LayerParameters(*map(sum, zip(*parts, strict=True)))


def attention_parameters(hidden: int, s: LatentShape) -> LayerParameters:
    """q: H x A(nope + rope), or through q_lora_rank with a norm; kv: H x (rank + rope), a norm, rank x A(nope + v); o: A v x H."""
    width = s.num_attention_heads * (s.qk_nope_head_dim + s.qk_rope_head_dim)
    latent = s.kv_lora_rank + s.qk_rope_head_dim
    rank = s.q_lora_rank
    return LayerParameters(
        query=hidden * width if rank is None else rank * (hidden + width),
        key_value=hidden * latent + s.kv_lora_rank * s.num_attention_heads * (s.qk_nope_head_dim + s.v_head_dim),
        attention_output=s.num_attention_heads * s.v_head_dim * hidden,
        replicated=hidden * (latent + (rank or 0)),
        norms=s.kv_lora_rank + (rank or 0),
        vectors=(rank or 0) + latent + hidden if s.bias else 0,
    )


def indexer_parameters(hidden: int, i: Indexer) -> LayerParameters:
    """Queries from `source`, a weight for each head, one key, and a LayerNorm on it."""
    query, key = i.source * i.heads * i.dim + hidden * i.heads, hidden * i.dim
    return LayerParameters(query=query, key_value=key, norms=2 * i.dim, replicated=query + key)


def mlp_parameters(hidden: int, width: int, bias: bool = False) -> LayerParameters:
    return LayerParameters(mlp=3 * hidden * width, vectors=2 * width + hidden if bias else 0)


def moe_parameters(hidden: int, e: Experts, bias: bool = False) -> LayerParameters:
    """Router, routed and shared experts; correction biases are buffers in transformers. `bias` is on the shared experts."""
    return plus(
        mlp_parameters(hidden, e.shared_width, bias),
        LayerParameters(router=hidden * e.routed, expert=3 * hidden * e.width, num_experts=e.routed, experts_per_token=e.per_token),
    )


def latent_record(s: LatentShape, window: int | None = None) -> Latent:
    return Latent(s.num_attention_heads, s.kv_lora_rank, s.qk_rope_head_dim, s.qk_nope_head_dim, s.v_head_dim, window_tokens=window)


def indexed(record: Latent, i: Indexer, owns_index: bool = True, dtype: DType | None = None) -> Latent:
    """Every layer reads only the chosen rows; a layer that reuses another one's choice has no index keys of its own."""
    if not owns_index:
        return record._replace(index_topk=i.topk)
    return record._replace(index_dim=i.dim, index_heads=i.heads, index_topk=i.topk, index_dtype=dtype)


def sparse_layers(fields: Fields, layers: int, default: list[bool]) -> list[bool]:
    """Which layers have routed experts: `mlp_layer_types` where the file has it."""
    return named_layers(fields, "mlp_layer_types", layers, {"sparse": True, "dense": False}) or default


def named_layers(fields: Fields, key: str, layers: int, meanings: dict[str, bool]) -> list[bool] | None:
    names = fields.texts(key, layers)
    for name in names or ():
        if name not in meanings:
            raise fields.bad(key, f"kvcli does not know {name!r} there")
    return None if names is None else [meanings[name] for name in names]


def after_dense(fields: Fields, layers: int) -> list[bool]:
    """The older rule: dense up to `first_k_dense_replace`."""
    dense = fields.integer("first_k_dense_replace", minimum=0)
    return [index >= dense for index in range(layers)]


def prediction_blocks(fields: Fields, hidden: int, layer: Layer) -> PredictionBlocks | None:
    """Prediction blocks that the file names, each a decoder layer, a 2H x H projection and three norms.

    This is the rule of transformers' own MTP module: embedding and output head are the main model's, although checkpoints
    hold copies of both with each block (DeepSeek-V3: 11.6 B here; its files hold 1.9 B more, 684.5 B with the 671.0 B of the model).
    A file without a count has none.
    """
    key = "num_nextn_predict_layers" if fields.has("num_nextn_predict_layers") else "num_mtp_layers"
    count = fields.integer(key, default=0, minimum=0, maximum=1000)
    tables = 2 * fields.integer("vocab_size") * hidden
    return PredictionBlocks(count, layer, 2 * hidden * hidden, 3 * hidden, tables) if count else None


def latent_parts(fields: Fields, layers: tuple[Layer, ...], mtp: PredictionBlocks | None = None) -> ModelParts:
    """A decoder with one RMSNorm after its layers."""
    hidden = fields.integer("hidden_size")
    return ModelParts(
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        max_context_tokens=fields.integer("max_position_embeddings"),
        layers=layers,
        tied=fields.boolean("tie_word_embeddings", False),
        final=hidden,
        mtp=mtp,
    )
