"""What a family reader returns, and the checked reading of keys that many families share."""

from __future__ import annotations

from dataclasses import dataclass

from kvcli.errors import Notice, NotModelled
from kvcli.model.fields import Fields
from kvcli.model.layers import Layer, PredictionBlocks
from kvcli.model.spec import Decoder


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """A model's layers in order and the parameter counts around them; the meanings are those of ModelSpec.

    `head` None means an output matrix of vocab_size x hidden_size unless `tied`.
    """

    hidden_size: int
    vocab_size: int
    max_context_tokens: int
    layers: tuple[Layer, ...]
    tied: bool
    embedding: int | None = None
    head: int | None = None
    lookups: int = 0
    shared: int = 0
    final: int = 0
    encoder_parameters: int = 0
    tower_parameters: int = 0
    mtp: PredictionBlocks | None = None
    decoder: Decoder | None = None
    notices: tuple[Notice, ...] = ()


def read_heads(fields: Fields, hidden_size: int, heads_key: str = "num_attention_heads") -> tuple[int, int, int]:
    """Query heads, KV heads and head dim; absent KV heads mean one for each query head, absent head dim H / A."""
    heads = fields.integer(heads_key)
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.bad("num_key_value_heads", f"it must divide the {heads} attention heads")
    head_dim = fields.optional_integer("head_dim")
    if head_dim is None:
        head_dim, rest = divmod(hidden_size, heads)
        if rest:
            raise fields.bad(heads_key, f"it must divide the hidden size {hidden_size} where no head_dim is given")
    return heads, kv_heads, head_dim


def read_layer_count(fields: Fields, key: str = "num_hidden_layers", default: int | None = None) -> int:
    """Bounded: a damaged count must not cost memory."""
    return fields.integer(key, default=default, maximum=100_000)


def layer_kinds(fields: Fields, layers: int, known: tuple[str, ...]) -> list[str] | None:
    """`layer_types`, checked; None where the file has no such list. An unknown name is an error, never full attention."""
    names = fields.texts("layer_types", layers)
    for name in names or ():
        if name not in known:
            raise fields.bad("layer_types", f"kvcli does not know the layer type {name!r} in this family")
    return names


def read_windows(fields: Fields, layers: int, window: int | None, default: list[bool] | None = None) -> tuple[int | None, ...]:
    """Each layer's window: by `layer_types` where the file has them, else `window` on the layers marked in `default` (all).

    Raises BadInput for sliding layers in a file whose window is off or absent.
    """
    names = layer_kinds(fields, layers, ("full_attention", "sliding_attention"))
    if names is None:
        marked = default if default is not None else [True] * layers
        return tuple(window if sliding else None for sliding in marked)
    if window is None and "sliding_attention" in names:
        raise fields.bad("layer_types", "it has sliding layers while sliding_window is off or absent")
    return tuple(window if name == "sliding_attention" else None for name in names)


def with_defaults(fields: Fields, **defaults: object) -> Fields:
    """The same file with class defaults for absent keys; a key that is there, even as null, keeps its value."""
    absent = {key: value for key, value in defaults.items() if key not in fields.values}
    return Fields({**absent, **fields.values}, fields.where, fields.outer, fields.defaulted | set(absent))


def refuse_per_layer(fields: Fields) -> None:
    """transformers 5 can override any key for one layer; in these families no published file does."""
    if fields.values.get("per_layer_config"):
        raise NotModelled(f"{fields.where}: kvcli does not read per_layer_config in this family", code="per_layer_config")
