"""What a buffer holds, and why it is more or less than is needed."""

from __future__ import annotations

from typing import NamedTuple


class Held(NamedTuple):
    """Bytes of a buffer, and the causes of what is not needed of it, summing to the difference."""

    total_bytes: int
    causes: tuple[tuple[str, int], ...]

    def __add__(self, other: object) -> Held:
        if not isinstance(other, Held):
            return NotImplemented
        return Held(self.total_bytes + other.total_bytes, self.causes + other.causes)
