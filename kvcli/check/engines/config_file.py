"""An engine's YAML file mounted from the manifests: plain values and the place of each key. Tags construct nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvcli.check.engines.settings import Draft
from kvcli.check.nodes import Place, Word

#: characters of a file and values in it past which it is not an engine's configuration
MOST_CHARACTERS, MOST_VALUES, MOST_DEPTH = 200_000, 5_000, 20


class Entry(NamedTuple):
    """A key of the file's top level. `value`: str, int, float, bool, None, list, or dict; `place` is the value's."""

    key: Word
    value: Any
    place: Place
    #: the place of each nested key, its path joined by dots
    places: Mapping[str, Place] = {}

    def inner(self) -> tuple[Entry, ...]:
        """The keys below this one; none where it holds no mapping."""
        if not isinstance(self.value, dict):
            return ()
        return tuple(Entry(Word(str(key), self.places[key]), value, self.places[key]) for key, value in self.value.items())


class _Unreadable(Exception):
    pass


def entries_of(path: Word, files: Mapping[str, tuple[Word, ...]], draft: Draft) -> tuple[Entry, ...]:
    """The top level of the YAML file at `path` in the container; empty with a Problem where it is not among `files` or no mapping."""
    lines = files.get(path.text) if path.literal else None
    if lines is None:
        text = f"the settings in {path.text[:80]} are not among these files, so kvcli does not know them"
        draft.problem("config_file_not_read", text, path.place)
        return ()
    try:
        return _entries(lines)
    except _Unreadable as why:
        draft.problem("config_file_not_read", f"{path.text[:80]} cannot be read: {why}", path.place)
        return ()


def _entries(lines: Sequence[Word]) -> tuple[Entry, ...]:
    import yaml

    text = "\n".join(line.text for line in lines)
    if len(text) > MOST_CHARACTERS:
        raise _Unreadable(f"it has more than {MOST_CHARACTERS:,} characters")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as why:
        mark = getattr(why, "problem_mark", None)
        raise _Unreadable(f"it is not YAML{f' at its line {mark.line + 1}' if mark else ''}") from None
    if root is None:
        return ()
    if not isinstance(root, yaml.MappingNode):
        raise _Unreadable("it is no mapping")
    reader = _Reader(lines)
    return tuple(reader.entry(key, value) for key, value in root.value)


class _Reader:
    """Nodes to plain values, counting: aliases are the same node many times over."""

    def __init__(self, lines: Sequence[Word]) -> None:
        self.lines, self.seen = lines, 0

    def place(self, node: Any) -> Place:
        line = min(node.start_mark.line, len(self.lines) - 1)
        place: Place = self.lines[line].place
        return place

    def entry(self, key: Any, value: Any) -> Entry:
        places: dict[str, Place] = {}
        plain = self.plain(value, places, "", 0)
        return Entry(Word(str(key.value)[:200], self.place(key)), plain, self.place(value), places)

    def plain(self, node: Any, places: dict[str, Place], path: str, depth: int) -> Any:
        import yaml

        self.seen += 1
        if self.seen > MOST_VALUES or depth > MOST_DEPTH:
            raise _Unreadable("it holds more values than a configuration")
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(each, places, path, depth + 1) for each in node.value]
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Unreadable("a key of it is no text")
            inner = f"{path}.{key.value}" if path else str(key.value)
            places[inner] = self.place(value)
            found[key.value] = self.plain(value, places, inner, depth + 1)
        return found


def _scalar(node: Any) -> Any:
    """As YAML 1.1 resolves it; what is no number after all stays text."""
    kind = node.tag.rpartition(":")[2]
    text = str(node.value)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on", "y")
    try:
        if kind == "int":
            return int(text.replace("_", ""), 0)
        if kind == "float":
            return float(text.replace("_", "").replace(".inf", "inf"))
    except ValueError:
        return text
    return text


def as_words(entries: Sequence[Entry], switches_off: frozenset[str]) -> list[Word]:
    """What vLLM and SGLang make of such a file: `--key value` before the words of the command line.

    A true is the option alone, a false its `--no-` name where it has one (`switches_off`), a list its values, a mapping JSON.
    """
    import json

    words: list[Word] = []
    for key, value, place, _ in entries:
        name = Word("--" + key.text, key.place)
        if value is None:
            continue
        if isinstance(value, bool):
            words += [name] if value else [Word("--no-" + key.text, place)] if "--no-" + key.text in switches_off else []
        elif isinstance(value, list):
            words += [name, *(Word(str(each), place) for each in value)] if value else []
        else:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            words += [name, Word(text, place)]
    return words
