"""Bytes of weights in a mix of GGUF types, from a config: exact by llama.cpp's rule, or a range where the rule leaves something open.

A range has three causes: whether the file was made with an importance matrix, which version of llama.cpp made it, or a family whose
tensors kvcli does not know. Its low end bounds what a step reads, its high end what must fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from kvcli.dtypes import DType
from kvcli.model.gguf.layout import stored_tensors
from kvcli.model.gguf.mixer_layout import Stored
from kvcli.model.spec import ModelSpec
from kvcli.plan.mixes.bounds import Class, classes
from kvcli.plan.mixes.facts import Facts, readings
from kvcli.plan.mixes.names import Mix
from kvcli.plan.mixes.rule import Rule


class MixedTensor(NamedTuple):
    """One tensor, or the matrices of one kind in a layer of an unknown family (`dtype` is then a bound).

    `layer` None: outside the layers. `num_experts` 0: not stacked by routed expert. A step reads rows of a `lookup`.
    """

    layer: int | None
    name: str
    dtype: DType
    elements: int
    resident_bytes: int
    num_experts: int = 0
    experts_per_token: int = 0
    lookup: bool = False

    @property
    def read_bytes(self) -> int:
        """Of one token's step: k experts of E, nothing of a table."""
        return self._read(self.resident_bytes)

    @property
    def read_elements(self) -> int:
        return self._read(self.elements)

    @property
    def expert_bytes(self) -> int:
        """One routed expert's part."""
        return self.resident_bytes // self.num_experts if self.num_experts else 0

    def _read(self, amount: int) -> int:
        if self.lookup:
            return 0
        return amount * self.experts_per_token // self.num_experts if self.num_experts else amount


class Mixed(NamedTuple):
    """All tensors under the cheapest and the dearest reading of the rule, which are one where `why` is empty."""

    low: tuple[MixedTensor, ...]
    high: tuple[MixedTensor, ...]
    why: str = ""

    @property
    def resident_bytes(self) -> int:
        return total_bytes(self.high)

    @property
    def resident_low_bytes(self) -> int:
        return total_bytes(self.low)

    @property
    def read_bytes_per_step(self) -> int:
        """A floor's numerator, so of the low end."""
        return sum(tensor.read_bytes for tensor in self.low)

    @property
    def resident_elements(self) -> tuple[tuple[str, int], ...]:
        """Elements by type at the high end, most first."""
        return _by_type((tensor.dtype, tensor.elements) for tensor in self.high)

    @property
    def read_elements(self) -> tuple[tuple[str, int], ...]:
        """Elements by type that a step reads at the low end, most first."""
        return _by_type((tensor.dtype, tensor.read_elements) for tensor in self.low)


def total_bytes(tensors: Iterable[MixedTensor]) -> int:
    return sum(tensor.resident_bytes for tensor in tensors)


def _by_type(parts: Iterable[tuple[DType, int]]) -> tuple[tuple[str, int], ...]:
    sums: Counter[str] = Counter()
    for dtype, elements in parts:
        sums[dtype.name] += elements
    return tuple((name, elements) for name, elements in sums.most_common() if elements)


def mixed_tensors(spec: ModelSpec, mix: Mix) -> Mixed:
    """Raises BadInput where a type's blocks do not fit a tensor's rows, as llama.cpp refuses the file."""
    stored = stored_tensors(spec)
    if stored is None:
        found = classes(spec, mix.name)
        low, high = tuple(_bound(each, each.types.low) for each in found), tuple(_bound(each, each.types.high) for each in found)
        return Mixed(low, high, f"kvcli does not know which tensors a GGUF file of {spec.model_type} has")
    fused = any("attn_qkv." in tensor.name for tensor in stored)
    facts, why = readings(spec, mix.name, fused)
    tables = [_tensors(spec, mix.name, each, stored) for each in facts]
    low, high = min(tables, key=total_bytes), max(tables, key=total_bytes)
    return Mixed(low, high, why if total_bytes(low) != total_bytes(high) else "")


def _bound(found: Class, dtype: DType) -> MixedTensor:
    """Rounded up to whole bytes at the high end and down at the low one: a class is not one tensor of whole blocks."""
    size, rest = divmod(found.elements * dtype.block_bytes, dtype.block_elements)
    size += bool(rest) and dtype == found.types.high
    return MixedTensor(found.layer, found.name, dtype, found.elements, size, found.num_experts, found.experts_per_token, found.lookup)


def _tensors(spec: ModelSpec, mix: str, facts: Facts, stored: tuple[Stored, ...]) -> tuple[MixedTensor, ...]:
    rule = Rule(mix, facts, stored)
    return tuple(_mixed(spec, tensor, rule.type_of(tensor)) for tensor in stored)


def _mixed(spec: ModelSpec, tensor: Stored, dtype: DType) -> MixedTensor:
    p = spec.groups[spec.order[tensor.layer]].parameters if tensor.layer is not None else None
    experts, per_token = (p.num_experts, p.experts_per_token) if p is not None and tensor.experts else (0, 0)
    size = tensor.rows * tensor.depth * dtype.bytes_for(tensor.columns)
    return MixedTensor(tensor.layer, tensor.name, dtype, tensor.elements, size, experts, per_token, tensor.lookup)
