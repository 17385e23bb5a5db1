"""Text with places: what a file says and where, so that a verdict can point at the line at fault."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Literal, NamedTuple


class Place(NamedTuple):
    """A position in a file. `file` is the path as it was given, with forward slashes; `line` and `column` count from 1."""

    file: str
    line: int
    column: int = 1

    @property
    def label(self) -> str:
        return f"{self.file}:{self.line}"


#: where pieces of a text stand: (offset into the text, its place), ascending; () where the text stands in one piece at its place
Spots = tuple[tuple[int, Place], ...]


def place_at(spots: Spots, place: Place, offset: int) -> Place:
    """The place of the character at `offset`. Columns count from the start of the piece, so quotes and escapes before it shift them."""
    index = bisect_right(spots, offset, key=lambda spot: spot[0]) - 1
    start, found = spots[index] if index >= 0 else (0, place)
    return Place(found.file, found.line, found.column + offset - start)


def spots_between(spots: Spots, start: int, end: int) -> Spots:
    """The spots strictly between two offsets."""
    first = bisect_right(spots, start, key=lambda spot: spot[0])
    return spots[first : bisect_left(spots, end, lo=first, key=lambda spot: spot[0])]


class Word(NamedTuple):
    """A piece of text and its place. Not `literal`: part of it is only known where it runs, and `text` shows it as it was written.

    `spots`: places inside a text of several lines (a script in a block scalar).
    """

    text: str
    place: Place
    literal: bool = True
    spots: Spots = ()


class Scalar(NamedTuple):
    """A YAML scalar. `text` is its value as text, whatever its type; `type` is what YAML 1.1 resolves it to (quoted: str)."""

    text: str
    place: Place
    type: Literal["str", "int", "float", "bool", "null"] = "str"
    spots: Spots = ()

    @property
    def word(self) -> Word:
        return Word(self.text, self.place, True, self.spots)


class Sequence(NamedTuple):
    items: tuple[Node, ...]
    place: Place


class Mapping(NamedTuple):
    """Pairs in the order of the file, merge keys resolved, keys unique."""

    pairs: tuple[tuple[Scalar, Node], ...]
    place: Place

    def get(self, key: str) -> Node | None:
        """The value of `key`, None where it is missing or null."""
        for name, value in self.pairs:
            if name.text == key:
                return None if isinstance(value, Scalar) and value.type == "null" else value
        return None

    def at(self, *path: str) -> Node | None:
        """The value under nested keys, None where any of them is missing, null, or no mapping."""
        node: Node | None = self
        for key in path:
            if not isinstance(node, Mapping):
                return None
            node = node.get(key)
        return node

    def text(self, *path: str) -> Word | None:
        """The scalar under nested keys as a word; None where there is none."""
        node = self.at(*path)
        return node.word if isinstance(node, Scalar) else None


Node = Scalar | Sequence | Mapping
