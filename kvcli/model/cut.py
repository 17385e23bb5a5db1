"""A model cut to its first layers: for timing and checking one layer of a shape that does not fit whole."""

from __future__ import annotations

from dataclasses import replace

from kvcli.errors import BadInput
from kvcli.model.layers import group_layers
from kvcli.model.spec import ModelSpec


def cut_layers(spec: ModelSpec, layers: int) -> ModelSpec:
    """The model with its first `layers` layers; its name says so. Raises BadInput beyond its depth."""
    depth = spec.num_hidden_layers
    if not 1 <= layers <= depth:
        raise BadInput(f"--layers {layers} is not between 1 and the {depth} layers of {spec.name}", code="bad_layers")
    if layers == depth:
        return spec
    kept = [spec.groups[number] for number in spec.order[:layers]]
    groups, order = group_layers((group.records, group.parameters) for group in kept)
    return replace(spec, name=f"{spec.name} cut to {layers} of {depth} layers", groups=groups, order=order, tensors=None)
