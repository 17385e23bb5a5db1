"""The metadata of a GGUF file as the readers of architectures look at it: by key after the architecture's prefix, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kvcli.errors import BadInput, NotModelled
from kvcli.model.gguf.header import ArrayRef, GgufHeader, TensorInfo

MAX_BLOCKS = 100_000
_BLOCK = re.compile(r"blk\.(\d{1,6})\.")


class Meta:
    """One file's metadata and tensors. `layers` counts decoder layers: blocks without those that predict further tokens.

    Raises BadInput for a file without an input table, without a count of blocks, or with a count that its tensors deny.
    """

    def __init__(self, header: GgufHeader, architecture: str, tensors: Sequence[TensorInfo]) -> None:
        self.header = header
        self.architecture = architecture
        self.where = str(header.path)
        self.tensors = {tensor.name: tensor for tensor in tensors}
        embedding = self.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise BadInput(f"{self.where} has no token_embd.weight", hint="it may be a vocabulary or adapter file", code="no_weights")
        self.vocab_size = embedding.shape[1]
        blocks = self.scalar("block_count")
        if blocks is None:
            raise BadInput(f"{self.where} has no {architecture}.block_count (num_hidden_layers)", code="missing_field")
        following = self.scalar("nextn_predict_layers")
        self.mtp_layers = 0 if following is None else self.count("nextn_predict_layers", following, 0)
        self.layers = self.count("block_count", blocks, 1) - self.mtp_layers
        if self.layers < 1:
            raise self.bad("block_count", blocks, f"of it {self.mtp_layers} blocks predict further tokens")
        stored = {int(found[1]) for name in self.tensors if (found := _BLOCK.match(name))}
        if self.layers - 1 not in stored:
            raise self.bad("block_count", blocks, f"the file has no tensors of block {self.layers - 1}")

    def count(self, key: str, value: object, minimum: int) -> int:
        """`value` as a number of blocks or layers, at least `minimum`."""
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= MAX_BLOCKS:
            raise self.bad(key, value, f"it must be a whole number from {minimum} to {MAX_BLOCKS:,}")
        return value

    def bad(self, key: str, value: object, why: str) -> BadInput:
        return BadInput(f"{self.where}: {self.architecture}.{key} is {repr(value)[:60]}, but {why}", code="bad_field")

    def raw(self, key: str) -> Any:
        value = self.header.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, ArrayRef) or (isinstance(value, tuple) and any(isinstance(item, tuple | ArrayRef) for item in value)):
            raise self.bad(key, "a long array", "it must be one number or one a layer")
        return value

    def scalar(self, key: str) -> Any:
        """One value; an array with the same in all layers is one too. Raises NotModelled where layers differ."""
        value = self.raw(key)
        if isinstance(value, tuple):
            if len(set(value)) != 1:
                raise NotModelled(f"{self.where}: {self.architecture}.{key} differs from layer to layer", code="per_layer_heads")
            return value[0]
        return value

    def by_layer(self, key: str) -> list[Any] | None:
        """One value for each layer, None without the key. Raises BadInput for an array that is too short."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, tuple):
            return [value] * self.layers
        if len(value) < self.layers:
            raise self.bad(key, f"{len(value)} numbers", f"there are {self.layers} layers")
        return list(value[: self.layers])

    def layer_tensor(self, name: str) -> TensorInfo | None:
        """The tensor of that name in the first layer that has it, such as `ffn_down_exps.weight`."""
        for layer in range(self.layers):
            found = self.tensors.get(f"blk.{layer}.{name}")
            if found is not None:
                return found
        return None

    def has(self, name: str) -> bool:
        return self.layer_tensor(name) is not None

    def dim(self, name: str, number: int) -> int | None:
        """A dimension of a layer's tensor, fastest first."""
        found = self.layer_tensor(name)
        return found.shape[number] if found is not None and len(found.shape) > number else None


def expert_keys(meta: Meta, count: str = "num_experts", width: str = "moe_intermediate_size") -> dict[str, Any]:
    """Counts from the metadata; the width of an expert from its key, else from the tensors."""
    inner = meta.scalar("expert_feed_forward_length") or meta.dim("ffn_down_exps.weight", 0)
    found = {count: meta.scalar("expert_count"), "num_experts_per_tok": meta.scalar("expert_used_count"), width: inner}
    return {key: value for key, value in found.items() if value is not None}


def layer_kinds(meta: Meta, sliding: str = "sliding_attention") -> dict[str, Any]:
    """`attention.sliding_window_pattern`: a flag for each layer that slides; a number n where one layer in n is full."""
    pattern = meta.raw("attention.sliding_window_pattern")
    if pattern is None:
        return {}
    if isinstance(pattern, tuple):
        flags = meta.by_layer("attention.sliding_window_pattern") or []
        return {"layer_types": [sliding if slides else "full_attention" for slides in flags]}
    period = meta.count("attention.sliding_window_pattern", pattern, 1)
    return {"layer_types": ["full_attention" if (layer + 1) % period == 0 else sliding for layer in range(meta.layers)]}
