"""Partial offload: which layers llama.cpp keeps on the device, and which weights and caches stay in host memory."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.model.layers import Layer, group_layers
from kvcli.model.spec import ModelSpec
from kvcli.model.weight_parts import ByUse, WeightParts


class Offload(NamedTuple):
    """`layers` is `-ngl` (None: all), `moe_layers` the first layers whose routed experts stay on the host (`--n-cpu-moe`)."""

    layers: int | None = None
    moe_layers: int = 0


class Placement(NamedTuple):
    """Layers from `first` on are on the device, and the output matrix if `output` says so. Tables are looked up on the host.

    Several devices divide `slots`: the layers on them, prediction blocks of the file and the output.
    """

    first: int
    output: bool
    moe_layers: int
    slots: int


def place(spec: ModelSpec, offload: Offload, output_last: bool) -> Placement:
    """llama.cpp's rule (`load_tensors`): -ngl counts the output as one layer, and takes it first, then layers from the last back;
    older builds took it after all layers (`output_last`). Prediction blocks of a file are its last layers.

    Raises BadInput for experts of a model that has none.
    """
    layers = len(spec.order)
    if offload.moe_layers and not any(group.parameters.num_experts for group in spec.groups):
        text = f"--n-cpu-moe {offload.moe_layers}: {spec.name} has no routed experts"
        raise BadInput(text, hint="leave --n-cpu-moe out", code="no_experts")
    all_layers = layers + (len(spec.tensors.mtp_parts.layers) if spec.tensors and spec.tensors.mtp_parts else 0)
    slots = all_layers + 1 if offload.layers is None else min(offload.layers, all_layers + 1)
    if output_last:
        return Placement(min(layers, max(all_layers - slots, 0)), slots > all_layers, offload.moe_layers, slots)
    return Placement(min(layers, all_layers + 1 - slots), slots > 0, offload.moe_layers, slots)


def split_points(inside: int, placement: Placement, devices: int) -> tuple[int, ...]:
    """Layers of each of several devices with equally much free: slot i of n goes to device floor(i x devices / n)."""
    counts = [0] * devices
    for layer in range(inside):
        counts[layer * devices // placement.slots] += 1
    return tuple(counts)


def output_device(placement: Placement, spec: ModelSpec, devices: int) -> int:
    """Which device has the output, -1 where it stays on the host: the last slot's."""
    return (placement.slots - 1) * devices // placement.slots if placement.output else -1


def on_device(spec: ModelSpec, placement: Placement) -> ModelSpec:
    """The part of a model that the device must compute; the host may compute its own."""
    layers: list[Layer] = []
    for number in range(placement.first, len(spec.order)):
        group = spec.groups[spec.order[number]]
        parameters = group.parameters._replace(experts_per_token=0) if number < placement.moe_layers else group.parameters
        layers.append((group.records, parameters))
    groups, order = group_layers(layers)
    return replace(spec, groups=groups, order=order, head_matrix=spec.head_matrix if placement.output else 0)


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
