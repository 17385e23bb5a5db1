"""`rope.*`: the properties that make rotary positions right, in float64 and for both pair layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kvcli.model.spec import Rope
from kvcli.runtime.rope import RotaryTable
from kvcli.verify.checks import Check

MAX_SHIFT = 512
OFFSETS = (0, 1, 2, 7, 64, 511)
TOLERANCE = 1e-11
BASIS = "float64 rounding of sums of head_dim products"

#: (x [T, head_dim], first position) -> rotated x
Rotate = Callable[[Tensor, int], Tensor]


def rope_checks(head_dim: int = 64, theta: float = 10000.0, rotate: Callable[[str], Rotate] | None = None) -> Iterator[Check]:
    """For each layout: scores depend on the offset alone, norms are kept, and each pair turns by its angle."""
    for layout in ("half", "interleaved"):
        turn = rotate(layout) if rotate else _table(layout, head_dim, theta)
        yield Check(f"rope.offset.{layout}", 0.0, _offset_deviation(turn, head_dim), "score", TOLERANCE, BASIS)
        yield Check(f"rope.norm.{layout}", 0.0, _norm_deviation(turn, head_dim), "norm", TOLERANCE, BASIS)
        yield Check(f"rope.angle.{layout}", 0.0, _angle_deviation(turn, layout, head_dim, theta), "cosine", TOLERANCE, BASIS)


def _table(layout: str, head_dim: int, theta: float) -> Rotate:
    rope = Rope(theta=theta, rotary_dim=head_dim, layout="half" if layout == "half" else "interleaved")
    return RotaryTable(rope, 2 * MAX_SHIFT, torch.float64, torch.device("cpu")).rotate


def _vectors(head_dim: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    query, key = (torch.randn((1, head_dim), dtype=torch.float64, generator=generator) for _ in range(2))
    return query / query.norm(), key / key.norm()


def _offset_deviation(turn: Rotate, head_dim: int) -> float:
    """Largest spread of one offset's scores over shifts up to 512."""
    query, key = _vectors(head_dim)
    worst = 0.0
    for offset in OFFSETS:
        scores = torch.stack([(turn(query, shift + offset) * turn(key, shift)).sum() for shift in range(MAX_SHIFT)])
        worst = max(worst, float(scores.max() - scores.min()))
    return worst


def _norm_deviation(turn: Rotate, head_dim: int) -> float:
    query, _ = _vectors(head_dim)
    rotated = torch.cat([turn(query, position) for position in range(MAX_SHIFT)])
    return float((rotated.norm(dim=-1) - query.norm()).abs().max())


def _angle_deviation(turn: Rotate, layout: str, head_dim: int, theta: float) -> float:
    """Each unit vector against the cosine and sine of position x theta^(-2i/d)."""
    worst = 0.0
    for pair in range(head_dim // 2):
        first, second = (pair, pair + head_dim // 2) if layout == "half" else (2 * pair, 2 * pair + 1)
        unit = torch.zeros((1, head_dim), dtype=torch.float64)
        unit[0, first] = 1
        for position in (1, 100, MAX_SHIFT):
            angle = torch.tensor(position * theta ** (-2 * pair / head_dim), dtype=torch.float64)
            turned = turn(unit, position)[0]
            worst = max(worst, float((turned[first] - angle.cos()).abs()), float((turned[second] - angle.sin()).abs()))
    return worst
