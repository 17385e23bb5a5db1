"""Ledgers: lists of lines that say what, how much, by which equation and from where.

`plan` writes the predicted ledger, a run or the allocator the observed one; `verify` joins them by item and `report`
prints them. A line holds the numbers of its equation, never its text: rendering is the report's work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

Number = int | float


class Basis(StrEnum):
    """Where an amount comes from."""

    FORMULA = "formula"
    HEADER = "header"
    MEASURED = "measured"
    ENGINE_RULE = "engine rule"
    USER = "user"
    CONSTANT = "constant"


class Unit(StrEnum):
    BYTES = "B"
    FLOPS = "FLOP"
    SECONDS = "s"


class Formula(NamedTuple):
    """The name of an equation and the numbers that went in, in the order they are read."""

    name: str
    terms: tuple[tuple[str, Number], ...] = ()

    def call(self) -> str:
        """`name(term=number, …)`: enough to redo it by hand."""
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.terms)})"


class Line(NamedTuple):
    """One amount. Bytes and FLOPs are integers, seconds are floats; `source` names a constant's origin."""

    item: str
    amount: Number
    unit: Unit
    formula: Formula
    basis: Basis = Basis.FORMULA
    source: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    lines: tuple[Line, ...]

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)
