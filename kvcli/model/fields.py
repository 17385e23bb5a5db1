"""Checked access to the keys of a model file: a wrong value is named with its file, key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcli.errors import BadInput

#: Larger than any real hyper-parameter; keeps a damaged file from costing time or memory.
MAX_FIELD = 2**40
MAX_NUMBER = 1e18


class Fields:
    """A mapping of hyper-parameters and the name of the file they come from.

    Null counts as absent, as in Hugging Face configs; every getter raises BadInput on a value it cannot use.
    """

    def __init__(self, values: Mapping[str, Any], where: str, outer: Fields | None = None, defaulted: frozenset[str] = frozenset()) -> None:
        self.values = values
        self.where = where
        #: the whole file, where these are the keys of an object nested in it
        self.outer = outer
        #: keys that the file lacks, whose values are the class's
        self.defaulted = defaulted

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_FIELD) -> int:
        """The whole number under `key`; without a default an absent key is an error."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise BadInput(f"{self.where} has no {key!r}", hint="the file may be incomplete", code="missing_field")
            return default
        if isinstance(value, float) and value.is_integer() and abs(value) < MAX_FIELD:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.bad(key, "it must be a whole number")
        if not minimum <= value <= maximum:
            raise self.bad(key, f"it must lie between {minimum:,} and {maximum:,}")
        return value

    def optional_integer(self, key: str, minimum: int = 1) -> int | None:
        return self.integer(key, minimum=minimum) if self.has(key) else None

    def number(self, key: str, default: float, minimum: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER < value < MAX_NUMBER:
            raise self.bad(key, "it must be a number of ordinary size")
        if minimum is not None and value < minimum:
            raise self.bad(key, f"it must be at least {minimum:g}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, "it must be true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.bad(key, "it must be text")
        return value

    def mapping(self, key: str) -> Fields:
        """The object under `key`, empty when absent."""
        value = self.values.get(key)
        if value is None:
            return Fields({}, self.where)
        if not isinstance(value, Mapping):
            raise self.bad(key, "it must be an object")
        return Fields(value, f"{self.where}: {key}")

    def texts(self, key: str, length: int) -> list[str] | None:
        """The first `length` entries of a list of names, or None; longer lists carry entries for other blocks."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.bad(key, "it must be a list of names")
        if len(value) < length:
            raise self.bad(key, f"it has {len(value)} entries for {length} layers")
        return value[:length]

    def integers(self, key: str, length: int | None = None, minimum: int = 0) -> list[int] | None:
        """A list of whole numbers, or None; with `length` its first entries, and a shorter list is an error."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(e, int) and not isinstance(e, bool) and minimum <= e <= MAX_FIELD for e in value
        ):
            raise self.bad(key, f"it must be a list of whole numbers from {minimum}")
        if length is not None and len(value) < length:
            raise self.bad(key, f"it has {len(value)} entries for {length} layers")
        return value if length is None else value[:length]

    def bad(self, key: str, why: str) -> BadInput:
        shown = repr(self.values.get(key))
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        by = " by the class default" if key in self.defaulted else ""
        return BadInput(f"{self.where}: {key} is {shown}{by}, but {why[:300]}", code="bad_field")
