"""YAML to nodes with places. Nothing is ever constructed: tags select nothing, and aliases are counted before they are followed.

The reader works on libyaml's events (PyYAML's own where libyaml is missing), so hostile text is refused at the event that shows it:
no recursion, no expansion. Scalars have the types of YAML 1.1, as Kubernetes and compose files are read; keys are always their text.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcli.check.nodes import Mapping, Node, Place, Scalar, Sequence, Spots, place_at
from kvcli.errors import BadInput

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 200_000
MAX_DEPTH = 100
#: lines of one scalar whose places are kept; text after them counts from the last
MAX_SPOTS = 20_000

_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = {"int": "int", "float": "float", "bool": "bool", "null": "null"}
#: tags that mean what the text means without them
_PLAIN_TAGS = {"!", *(_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge"))}
#: compose's own: the value alone, and nothing in place of what another file says
_OVERRIDE, _RESET = "!override", "!reset"
_BREAK = re.compile("[\n\x85\u2028\u2029]")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: what Helm, Go templates and Jinja write; `{{.Name}}` alone is KServe's and stays
TEMPLATE = re.compile(
    r"\{\{-?\s*(?:\$?\.(?:Values|Release|Chart|Files|Capabilities|Template)\b|/\*|\$|"
    r"(?:include|template|if|else|range|toYaml|with|end|define|tpl|default|printf|lookup|values?|quote)\b)|\{%-?\s"
)
#: what only Helm writes: chat templates in arguments are Jinja and stay
HELM = re.compile(r"\{\{-?\s*(?:\$?\.(?:Values|Release|Chart|Files|Capabilities)\b|(?:include|toYaml|tpl)\s)")

Where = Callable[[int, int], Place]


def read_text(path: Path) -> str:
    """The text of a regular UTF-8 file of at most MAX_BYTES, without its byte order mark, lines ended by \\n. Raises BadInput."""
    name = path.as_posix()
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise BadInput(f"{name}: {kind}, a file was expected", "name a YAML file or a script", "not_a_file")
        if status.st_size > MAX_BYTES:
            raise _too_large(name, status.st_size)
        with path.open("rb") as stream:
            # a file may grow while it is read, and some have no size at all
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"{name}: cannot be read: {reason}", "check the path", "unreadable_file") from error
    if len(data) > MAX_BYTES:
        raise _too_large(name, len(data))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{name}:{line}: not UTF-8 (byte {data[error.start]:#04x})", "save the file as UTF-8", "bad_yaml") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _too_large(name: str, size: int) -> BadInput:
    message = f"{name}:1: {size} bytes or more, at most {MAX_BYTES} are read"
    return BadInput(message, "split the file, or name only the manifests that start an engine", "bad_yaml")


def load_documents(text: str, file: str) -> tuple[Node, ...]:
    """The documents of `text` that are not empty. Raises BadInput (`bad_yaml`, `unrendered_template`), its message begins `FILE:LINE: `."""
    if len(text) > MAX_BYTES:
        raise _too_large(file, len(text))
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return _load(text, lambda line, column: Place(file, line + 1, column + 1))


def load_embedded(scalar: Scalar) -> tuple[Node, ...]:
    """The documents of YAML that stands inside a scalar (a ConfigMap's file, Ray's serveConfigV2), with places in the outer file."""
    starts = [0, *(match.end() for match in _BREAK.finditer(scalar.text))]
    last = len(starts) - 1
    return _load(scalar.text, lambda line, column: place_at(scalar.spots, scalar.place, starts[min(line, last)] + column))


def _load(text: str, where: Where) -> tuple[Node, ...]:
    import yaml

    bad = _UNPRINTABLE.search(text)
    if bad:
        place = where(text.count("\n", 0, bad.start()), 0)
        raise _bad(place, f"character {ord(bad.group()):#x} is not allowed in YAML")
    builder = _Builder(text, where, yaml.SafeLoader.yaml_implicit_resolvers)
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    handlers = {
        yaml.ScalarEvent: builder.scalar,
        yaml.AliasEvent: builder.alias,
        yaml.MappingStartEvent: builder.start_mapping,
        yaml.SequenceStartEvent: builder.start_sequence,
        yaml.MappingEndEvent: builder.end_mapping,
        yaml.SequenceEndEvent: builder.end_sequence,
        yaml.DocumentStartEvent: builder.start_document,
    }
    try:
        for event in yaml.parse(text, Loader=loader):
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = where(mark.line, mark.column) if mark else where(0, 0)
        reason = " ".join(part for part in (error.context, error.problem) if part)
        raise _template(text, where) or _bad(place, reason) from None
    except yaml.YAMLError as error:
        raise _bad(where(0, 0), " ".join(str(error).split())) from None
    except BadInput as error:
        raise (_template(text, where) if error.code == "bad_key" else None) or BadInput(error.message, error.hint, "bad_yaml") from None
    return tuple(builder.documents)


def _bad(place: Place, reason: str, code: str = "bad_yaml") -> BadInput:
    return BadInput(f"{place.label}: {reason}", "correct the YAML at this line", code)


def _template(text: str, where: Where) -> BadInput | None:
    """The error for text that is no YAML because it is a template that nobody rendered."""
    found = TEMPLATE.search(text)
    return unrendered(where(text.count("\n", 0, found.start()), 0)) if found else None


def unrendered(place: Place) -> BadInput:
    return BadInput(
        f"{place.label}: a template that has not been rendered",
        "render it first (helm template CHART > out.yaml, or kustomize build DIR > out.yaml) and check the result",
        "unrendered_template",
    )


class _Open:
    """A collection that is not yet closed. `children`: its nodes, keys and values in turn for a mapping."""

    __slots__ = ("anchor", "children", "place", "size")

    def __init__(self, place: Place, anchor: str | None) -> None:
        self.place, self.anchor = place, anchor
        self.children: list[Node] = []
        self.size = 1


class _Builder:
    """Builds nodes from events. `size` of a node is how many nodes it has with all its aliases followed."""

    def __init__(self, text: str, where: Where, resolvers: dict[str, list[tuple[str, re.Pattern[str]]]]) -> None:
        self.where, self.resolvers, self.text = where, resolvers, text
        self.documents: list[Node] = []
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Node, int] | None] = {}
        self.nodes = 0
        self.source: list[str] = []

    def start_document(self, event: Any) -> None:
        self.anchors.clear()

    def scalar(self, event: Any) -> None:
        mark = event.start_mark
        place = self.where(mark.line, mark.column)
        self._check_tag(event.tag, place)
        text = event.value
        kind: Any = "str"
        spots: Spots = ()
        if event.end_mark.line != mark.line:
            spots = self._spots(text, mark.line, mark.column, event.end_mark.line)
        if event.tag == _RESET:
            text, kind = "", "null"
        elif event.tag is not None and event.tag.startswith(_TAG):
            kind = _SCALAR_TAGS.get(event.tag[len(_TAG) :], "str")
        elif event.implicit[0] and event.tag is None:
            for tag, pattern in (*self.resolvers.get(text[:1], ()), *self.resolvers.get(None, ())):  # type: ignore[call-overload]
                if pattern.match(text):
                    kind = _SCALAR_TAGS.get(tag[len(_TAG) :], "str")
                    break
            if text == "<<":
                kind = "merge"
        self._add(Scalar(text, place, kind, spots), 1, event.anchor)

    def alias(self, event: Any) -> None:
        place = self.where(event.start_mark.line, event.start_mark.column)
        if event.anchor not in self.anchors:
            raise _bad(place, f"alias *{event.anchor} has no anchor before it")
        target = self.anchors[event.anchor]
        if target is None:
            raise _bad(place, f"alias *{event.anchor} stands inside its own anchor")
        self._add(target[0], target[1], None, place)

    def start_mapping(self, event: Any) -> None:
        self._open(event)

    start_sequence = start_mapping

    def end_sequence(self, event: Any) -> None:
        opened = self.stack.pop()
        self._add(Sequence(tuple(opened.children), opened.place), opened.size, opened.anchor, counted=True)

    def end_mapping(self, event: Any) -> None:
        opened = self.stack.pop()
        own: dict[str, tuple[Scalar, Node]] = {}
        merged: dict[str, tuple[Scalar, Node]] = {}
        for key, value in zip(opened.children[::2], opened.children[1::2], strict=True):
            if not isinstance(key, Scalar):
                raise _bad(key.place, "a mapping or a list stands where a key is expected", "bad_key")
            if str(key.type) == "merge":
                for source in value.items if isinstance(value, Sequence) else (value,):
                    if not isinstance(source, Mapping):
                        raise _bad(key.place, "`<<` takes a mapping or a list of mappings")
                    for pair in source.pairs:
                        merged.setdefault(pair[0].text, pair)
                continue
            if key.text in own:
                raise _bad(key.place, f"key {_short(key.text)} stands twice, first in line {own[key.text][0].place.line}")
            own[key.text] = (key._replace(type="str"), value)
        pairs = (*(pair for name, pair in merged.items() if name not in own), *own.values())
        self._add(Mapping(pairs, opened.place), opened.size, opened.anchor, counted=True)

    def _open(self, event: Any) -> None:
        place = self.where(event.start_mark.line, event.start_mark.column)
        self._check_tag(event.tag, place)
        if len(self.stack) >= MAX_DEPTH:
            raise _bad(place, f"nested deeper than {MAX_DEPTH} levels")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.stack.append(_Open(place, event.anchor))
        self._count(1, place)

    def _add(self, node: Node, size: int, anchor: str | None, place: Place | None = None, counted: bool = False) -> None:
        if not counted:
            self._count(size, place or node.place)
        if anchor is not None:
            self.anchors[anchor] = (node, size)
        if self.stack:
            self.stack[-1].children.append(node)
            self.stack[-1].size += size
        elif not (isinstance(node, Scalar) and (node.type == "null" or not node.text)):
            self.documents.append(node)

    def _count(self, size: int, place: Place) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES:
            raise _bad(place, f"more than {MAX_NODES} nodes once aliases are followed")

    def _check_tag(self, tag: str | None, place: Place) -> None:
        if tag is not None and tag not in _PLAIN_TAGS and tag not in (_OVERRIDE, _RESET):
            raise _bad(place, f"tag {_short(tag)} is not read, only YAML's own tags are")

    def _spots(self, text: str, line: int, column: int, last: int) -> Spots:
        """Where the source lines of a scalar of several lines stand in its text: each line's words are in the text, in order."""
        if not self.source:
            self.source = _BREAK.split(self.text)
        spots: list[tuple[int, Place]] = []
        offset = 0
        block = self.source[line][column : column + 1] in ("|", ">", "!", "&")
        for number in range(line + 1 if block else line, min(last + 1, len(self.source))):
            while offset < len(text) and text[offset].isspace():
                offset += 1
            if offset >= len(text) or len(spots) >= MAX_SPOTS:
                break
            raw = self.source[number] if number > line else self.source[number][column:].lstrip("\"'")
            piece = raw.strip()
            if not piece:
                continue
            indent = column + len(self.source[line][column:]) - len(raw) if number == line else len(raw) - len(raw.lstrip())
            if not block and not text.startswith(piece, offset):
                # quotes and escapes: the text differs from the line, so the next words that agree set it right
                found = text.find(piece.rstrip("\\\"'")[:20], offset, offset + 4096) if len(piece) > 3 else -1
                if found < 0:
                    continue
                offset = found
            spots.append((offset, self.where(number, indent)))
            offset += len(piece)
        return tuple(spots)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
