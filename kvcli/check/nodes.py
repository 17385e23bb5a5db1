"""Text with places: what a file says and where, so that a verdict can point at the line at fault."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Place(NamedTuple):
    """A position in a file. `file` is the path as it was given, with forward slashes; `line` and `column` count from 1."""

    file: str
    line: int
    column: int = 1

    @property
    def label(self) -> str:
        return f"{self.file}:{self.line}"


class Word(NamedTuple):
    """A piece of text and its place. Not `literal`: part of it is only known where it runs, and `text` shows it as it was written."""

    text: str
    place: Place
    literal: bool = True


class Scalar(NamedTuple):
    """A YAML scalar. `text` is its value as text, whatever its type; `type` is what YAML 1.1 resolves it to (quoted: str)."""

    text: str
    place: Place
    type: Literal["str", "int", "float", "bool", "null"] = "str"


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
        return Word(node.text, node.place) if isinstance(node, Scalar) else None


Node = Scalar | Sequence | Mapping
