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
    by_window = {group.attention.window_tokens: group for group in spec.groups}
    kept = [by_window[window] for window in spec.windows[:layers]]
    return replace(
        spec,
        name=f"{spec.name} cut to {layers} of {depth} layers",
        groups=group_layers((group.attention, group.parameters) for group in kept),
        windows=spec.windows[:layers],
        tensors=None,
    )
