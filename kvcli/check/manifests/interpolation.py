"""`$VAR` and `${VAR...}` as docker compose documents them, and env files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from kvcli.check.manifests.fileset import text_word
from kvcli.check.nodes import Place, Word, place_at, spots_between
from kvcli.check.yaml_reader import read_text

MAX_DEPTH = 20
#: a longer text is not filled in, and not literal
MAX_CHARACTERS = 100_000
_COMMENT = re.compile(r"(^|\s)#.*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-+?]")


def interpolate(word: Word, variables: Mapping[str, Word]) -> Word:
    """The word with variables filled in. One that nothing defines and that has no default stays as written, and is not literal.

    What was a reference to a variable of a file has the place of the value there.
    """
    if "$" not in word.text:
        return word
    if len(word.text) > MAX_CHARACTERS:
        return word._replace(literal=False)
    text, at, literal, filled = word.text, 0, word.literal, False
    pieces: list[str] = []
    spots: list[tuple[int, Place]] = []
    length = 0
    while at < len(text):
        if length > MAX_CHARACTERS:
            return word._replace(literal=False)  # variables that double each other
        dollar = text.find("$", at)
        dollar = len(text) if dollar < 0 else dollar
        spots.append((length, place_at(word.spots, word.place, at)))
        spots += [(length + offset - at, place) for offset, place in spots_between(word.spots, at, dollar)]
        pieces.append(text[at:dollar])
        length += dollar - at
        if dollar == len(text):
            break
        here = place_at(word.spots, word.place, dollar)
        piece, end, known, source = _reference(text, dollar, variables, 0)
        if source is not None and dollar == 0 and end == len(text) and known:
            return source
        filled = filled or (source is not None and known)
        spots.append((length, source.place if source is not None and known else here))
        pieces.append(piece)
        length += len(piece)
        literal = literal and known
        at = end
    return Word("".join(pieces), word.place, literal, tuple(spots) if word.spots or filled else ())


def _reference(text: str, dollar: int, variables: Mapping[str, Word], depth: int) -> tuple[str, int, bool, Word | None]:
    """What the reference at `dollar` becomes, the offset after it, whether it is known, and the value's word where it is one."""
    follow = text[dollar + 1 : dollar + 2]
    if follow == "$":
        return "$", dollar + 2, True, None
    braced = follow == "{"
    match = _NAME.match(text, dollar + 1 + braced)
    if match is None or depth > MAX_DEPTH:
        return "$", dollar + 1, not braced, None
    name, end = match.group(), match.end()
    value = variables.get(name)
    if not braced:
        if value is None:
            return text[dollar:end], end, False, None
        return value.text, end, value.literal, value
    close = _closing(text, dollar + 1)
    if close < 0:
        return text[dollar:], len(text), False, None
    raw = text[dollar : close + 1]
    if end == close:
        return (raw, close + 1, False, None) if value is None else (value.text, close + 1, value.literal, value)
    operator = _OPERATOR.match(text, end)
    if operator is None:
        return raw, close + 1, False, None
    if value is not None and not value.literal:
        return raw, close + 1, False, None
    is_set = value is not None and (bool(value.text) or operator.group()[0] != ":")
    kind = operator.group()[-1]
    filled, known = _filled(text[operator.end() : close], variables, depth)
    if kind == "+":
        return (filled, close + 1, known, None) if is_set else ("", close + 1, True, None)
    if is_set and value is not None:
        return value.text, close + 1, True, value
    if kind == "?":
        return raw, close + 1, False, None
    return filled, close + 1, known, None


def _filled(text: str, variables: Mapping[str, Word], depth: int) -> tuple[str, bool]:
    pieces: list[str] = []
    at, known = 0, True
    while at < len(text):
        dollar = text.find("$", at)
        if dollar < 0:
            pieces.append(text[at:])
            break
        pieces.append(text[at:dollar])
        piece, at, one, _ = _reference(text, dollar, variables, depth + 1)
        pieces.append(piece)
        known = known and one
    return "".join(pieces), known


def _closing(text: str, brace: int) -> int:
    """The offset of the brace that closes the one at `brace`, counting `${` inside; -1 where there is none."""
    level = 0
    for index in range(brace, len(text)):
        if text[index] == "{" and text[index - 1] == "$":
            level += 1
        elif text[index] == "}":
            level -= 1
            if not level:
                return index
    return -1


def read_env_file(path: Path, variables: Mapping[str, Word]) -> dict[str, Word]:
    """NAME=value lines, with comments, `export`, and quotes; single quotes keep `$` as it is. Raises BadInput as `read_text` does."""
    result: dict[str, Word] = {}
    seen = dict(variables)
    whole = text_word(read_text(path), path.as_posix())
    offset = 0
    for line in whole.text.split("\n"):
        match = re.match(r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*", line)
        if match is not None:
            value = line[match.end() :].rstrip()
            quote = value[:1] if value[:1] in ("'", '"') else ""
            closing = value.find(quote, 1) if quote else -1
            value = value[1:closing] if closing > 0 else _COMMENT.sub("", value).rstrip()
            word = Word(value, place_at(whole.spots, whole.place, offset + match.end()))
            word = word if quote == "'" else interpolate(word, seen)._replace(place=word.place)
            result[match.group(1)] = seen[match.group(1)] = word
        offset += len(line) + 1
    return result
