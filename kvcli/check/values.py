"""Values of YAML nodes in kvcli's units; every error begins with the file and the line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from kvcli.check.nodes import Mapping, Node, Place, Scalar, Sequence, Word, place_at, spots_between
from kvcli.errors import BadInput
from kvcli.units import parse_count, parse_seconds, parse_size

T = TypeVar("T")

TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")


def bad(place: Place, message: str, hint: str = "") -> BadInput:
    """The error of a file: `FILE:LINE: message`."""
    return BadInput(f"{place.label}: {message}", hint=hint, code="bad_file")


def mapping(node: Node, what: str) -> Mapping:
    if isinstance(node, Mapping):
        return node
    raise bad(node.place, f"{what} must be a mapping of keys to values")


def items(node: Node, what: str) -> tuple[Node, ...]:
    if isinstance(node, Sequence):
        return node.items
    raise bad(node.place, f"{what} must be a list")


def word(node: Node, what: str) -> Word:
    """A scalar that is not empty."""
    if isinstance(node, Scalar) and node.type != "null" and node.text.strip():
        text, blank = node.text.strip(), len(node.text) - len(node.text.lstrip())
        spots = spots_between(node.spots, blank - 1, blank + len(text))
        place = place_at(node.spots, node.place, blank) if node.spots else node.place
        return Word(text, place, True, tuple((offset - blank, each) for offset, each in spots))
    raise bad(node.place, f"{what} must be a text or a number")


def words(node: Node, what: str) -> tuple[Word, ...]:
    """A scalar, or a list of them."""
    return (word(node, what),) if isinstance(node, Scalar) else tuple(word(each, what) for each in items(node, what))


def near(word: str, known: Iterable[str]) -> str:
    """The one of `known` that `word` may be a slip for; empty where none is."""
    return next(iter(difflib.get_close_matches(word, list(known), 1)), "")


def only(node: Mapping, known: Iterable[str], what: str) -> None:
    """Raises BadInput for a key that nothing reads, naming the nearest that is read."""
    known = list(known)
    for key, _ in node.pairs:
        if key.text not in known:
            meant = near(key.text, known)
            hint = f"did you mean {meant!r}?" if meant else "known are " + ", ".join(known)
            raise bad(key.place, f"{what} has no key {key.text[:60]!r}", hint)


def _read(node: Node, what: str, reader: Callable[[str, str], T]) -> T:
    said = word(node, what)
    try:
        return reader(said.text, what)
    except BadInput as error:
        # the hint of an option, `ttft 20ms`, is one of a key here
        key = re.split("[ :.]", what)[-1]
        raise bad(said.place, error.message, error.hint.replace(f"{what} ", f"{key}: ")) from None


def count(node: Node, what: str) -> int:
    return _read(node, what, parse_count)


def count_or_zero(node: Node, what: str) -> int:
    return 0 if word(node, what).text == "0" else count(node, what)


def seconds(node: Node, what: str) -> float:
    return _read(node, what, parse_seconds)


def size(node: Node, what: str) -> int:
    return _read(node, what, parse_size)


def flag(node: Node, what: str) -> bool:
    said = word(node, what)
    if said.text.lower() in (*TRUE, *FALSE):
        return said.text.lower() in TRUE
    raise bad(said.place, f"{what} {said.text[:40]!r} is neither true nor false")


def number(node: Node, what: str) -> float:
    """A number that is not negative, in plain digits."""
    said = word(node, what)
    if re.fullmatch(r"\d{1,15}(\.\d{1,12})?", said.text):
        return float(said.text)
    raise bad(said.place, f"{what} {said.text[:40]!r} is not a number", "plain digits, as in 0.60")


def share(node: Node, what: str) -> float:
    """A share of 1: `90%` or `0.9`."""
    said = word(node, what)
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)\s*(%?)", said.text)
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value <= 1:
        raise bad(said.place, f"{what} {said.text[:40]!r} is not a share", "as in 90% or 0.9")
    return value
