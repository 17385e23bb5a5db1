"""Checked access to the keys of a model file: a wrong value is named with its file, key and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvcli.errors import BadInput

#: Larger than any real hyper-parameter; keeps a damaged file from costing time or memory.
MAX_FIELD = 2**40


class Fields:
    """A mapping of hyper-parameters and the name of the file they come from.

    Null counts as absent, as in Hugging Face configs; every getter raises BadInput on a value it cannot use.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

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

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.bad(key, "it must be a finite number")
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

    def bad(self, key: str, why: str) -> BadInput:
        shown = repr(self.values.get(key))
        return BadInput(f"{self.where}: {key} is {shown if len(shown) <= 60 else shown[:57] + '...'}, but {why}", code="bad_field")
