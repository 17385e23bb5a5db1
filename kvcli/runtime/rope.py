"""Rotary positions: each pair of dimensions turns by position x frequency, so that scores depend on offsets only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvcli.errors import NotModelled
from kvcli.model.spec import Rope, RopeScaling


class RotaryTable:
    """Cosines and sines for positions 0 … positions - 1. `cos`, `sin`: [positions, rotary_dim / 2]."""

    def __init__(self, rope: Rope, positions: int, dtype: torch.dtype, device: torch.device, factors: Tensor | None = None) -> None:
        angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies(rope, factors)[None, :]
        self.rope = rope
        self.cos = angles.cos().to(device=device, dtype=dtype)
        self.sin = angles.sin().to(device=device, dtype=dtype)

    def rotate(self, x: Tensor, first_position: int) -> Tensor:
        """Rotates `x` [..., T, head_dim], whose tokens stand at `first_position` and after it."""
        tokens, dim = x.shape[-2], self.rope.rotary_dim
        cos, sin = self.cos[first_position : first_position + tokens], self.sin[first_position : first_position + tokens]
        turned, rest = (x[..., :dim], x[..., dim:]) if dim < x.shape[-1] else (x, None)
        if self.rope.layout == "half":
            first, second = turned.chunk(2, dim=-1)
            out = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        else:
            first, second = turned[..., 0::2], turned[..., 1::2]
            out = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
        return out if rest is None else torch.cat((out, rest), dim=-1)


def frequencies(rope: Rope, factors: Tensor | None = None) -> Tensor:
    """Radians a token of each pair: theta^(-2i/d), changed by the scaling. [rotary_dim / 2], float64.

    `factors` [rotary_dim / 2] divide the frequencies where a GGUF file brings them. Raises NotModelled for scalings the
    built-in transformer does not compute.
    """
    pairs = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float64)
    inverse = rope.theta ** (-pairs / rope.rotary_dim)
    if factors is not None:
        return inverse / factors.to(torch.float64).cpu()
    check_scaling(rope, has_factors=False)
    if rope.scaling is None:
        return inverse
    if rope.scaling.kind == "linear":
        return inverse / rope.scaling.factor
    return _llama3(inverse, rope.scaling)


def check_scaling(rope: Rope, has_factors: bool) -> None:
    """Raises NotModelled for a scaling the built-in transformer does not compute; `factors` need the file that has them."""
    kind = rope.scaling.kind if rope.scaling else "none"
    if kind not in ("none", "linear", "llama3") and not (kind == "factors" and has_factors):
        raise NotModelled(
            f"the built-in transformer does not compute the rope scaling {kind!r}",
            hint="kvcli plan works on this model; choose another one to run",
            code="rope_scaling_not_modelled",
        )


def _llama3(inverse: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama-3.1's rule: long wavelengths are divided by the factor, short ones kept, those between interpolated."""
    turns = scaling.original_max_position_embeddings * inverse / (2 * math.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * inverse / scaling.factor + smooth * inverse
