"""One comparison of a predicted and an observed amount, and the list of them that verify answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Number = int | float


@dataclass(frozen=True, slots=True)
class Check:
    """`matches` if observed is within `tolerance` of predicted. `note` says what a mismatch points at."""

    name: str
    predicted: Number
    observed: Number
    unit: str
    tolerance: Number
    tolerance_basis: str
    note: str = ""

    @property
    def matches(self) -> bool:
        # written so that a NaN does not match
        return abs(self.observed - self.predicted) <= self.tolerance

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "predicted": self.predicted,
            "observed": _finite(self.observed),
            "unit": self.unit,
            "tolerance": self.tolerance,
            "tolerance_basis": self.tolerance_basis,
            "matches": self.matches,
            **({"note": self.note} if self.note else {}),
        }


def _finite(value: Number) -> Number | str:
    """JSON has no NaN; a check that observed one says so in words."""
    return value if abs(value) < float("inf") else str(value)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A check that cannot run here, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    checks: tuple[Check, ...]
    skipped: tuple[Skipped, ...]

    @property
    def matches(self) -> bool:
        return all(check.matches for check in self.checks)

    def document(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "checks": [check.document() for check in self.checks],
            "skipped": [{"name": skipped.name, "reason": skipped.reason} for skipped in self.skipped],
            "matches": self.matches,
        }
