"""Partial offload: which layers llama.cpp keeps on the device, and which weights and caches stay in host memory."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.model.spec import ModelSpec
from kvcli.model.weight_parts import ByUse, WeightParts

#: builds that put the output on the device before any layer; older ones put it there after all layers
OUTPUT_FIRST = "2026-11"


class Offload(NamedTuple):
    """`layers` is `-ngl` (None: all), `moe_layers` the first layers whose routed experts stay on the host (`--n-cpu-moe`)."""

    layers: int | None = None
    moe_layers: int = 0


class Placement(NamedTuple):
    """Layers from `first` on are on the device, and the output matrix if `output` says so. Tables are looked up on the host."""

    first: int
    output: bool
    moe_layers: int


def place(spec: ModelSpec, offload: Offload, version: str) -> Placement:
    """llama.cpp's rule (`load_tensors`): -ngl counts the output as one layer, and takes it first, then layers from the last back.

    Raises BadInput for experts of a model that has none.
    """
    layers = len(spec.order)
    if offload.moe_layers and not any(group.parameters.num_experts for group in spec.groups):
        text = f"--n-cpu-moe {offload.moe_layers}: {spec.name} has no routed experts"
        raise BadInput(text, hint="leave --n-cpu-moe out", code="no_experts")
    on_device = layers + 1 if offload.layers is None else min(offload.layers, layers + 1)
    if version == OUTPUT_FIRST:
        return Placement(min(layers, layers + 1 - on_device), on_device > 0, offload.moe_layers)
    return Placement(max(layers - on_device, 0), on_device > layers, offload.moe_layers)


def without_host_experts(parts: WeightParts, placement: Placement) -> WeightParts:
    """The weights of layers less the experts that stay on the host."""
    layers = (use._replace(experts=0) if number < placement.moe_layers else use for number, use in enumerate(parts.layers))
    return parts._replace(layers=tuple(layers))


def host_weights(parts: WeightParts, placement: Placement) -> int:
    """Bytes on the host: the layers before the first on the device, experts kept there, tables, and the output unless offloaded."""
    around = parts.table + parts.word_tables + parts.lookups
    around += 0 if placement.output else parts.head + parts.rest
    return around + sum(_on_host(use, number, placement) for number, use in enumerate(parts.layers))


def _on_host(use: ByUse, number: int, placement: Placement) -> int:
    if number < placement.first:
        return use.total
    return use.experts if number < placement.moe_layers else 0
