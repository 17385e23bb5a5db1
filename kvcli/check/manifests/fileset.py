"""The file set: every document of the files that were given together, and how they find each other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kvcli.check.manifests.foreign import is_foreign
from kvcli.check.nodes import Mapping, Node, Place, Scalar, Word, place_at
from kvcli.check.nodes import Sequence as Items
from kvcli.check.yaml_reader import HELM, load_documents, read_text, unrendered
from kvcli.errors import BadInput

MAX_FILES = 2000
_SKIPPED = frozenset(["kustomization.yaml", "kustomization.yml", "Chart.yaml", "values.yaml"])


class Document(NamedTuple):
    """One object of Kubernetes, or one compose file (kind `compose`). `file` is the path as given, with forward slashes."""

    file: str
    kind: str
    name: str
    namespace: str
    node: Mapping


class Script(NamedTuple):
    """A file that is no YAML: a shell script or a Dockerfile."""

    file: str
    text: Word


class FileSet:
    """`targets`: the documents and scripts of the files whose launches are asked for; `documents`: those and the ones beside them.

    `passed_over`: files of folders that cannot be read and that hold no engine, with the reason. Named ones raise BadInput.
    """

    def __init__(self, paths: Sequence[Path], also: Sequence[Path] = ()) -> None:
        self.documents: list[Document] = []
        self.targets: list[Document | Script] = []
        self.patched = sorted((each for path in paths for each in _patched(path)), key=lambda each: not each.patches)
        self.passed_over: list[str] = []
        #: files that a folder was given for
        self.unnamed: set[str] = set()
        seen: set[Path] = set()
        for path, named in _files(paths):
            seen.add(path)
            found = self._load(path, named)
            self.targets.extend(found)
            self.documents.extend(each for each in found if isinstance(each, Document))
        for path, named in _files(also):
            if path not in seen and not _is_script(path):
                seen.add(path)
                self.documents.extend(each for each in self._load(path, named) if isinstance(each, Document))

    def _load(self, path: Path, named: bool) -> list[Document | Script]:
        if named:
            return load(path)
        self.unnamed.add(path.as_posix())
        try:
            return load(path)
        except BadInput as error:
            self.refuse(path.as_posix(), error)
        return []

    def refuse(self, file: str, error: BadInput) -> None:
        """Passes the file over, or raises `error` where the file was named or may start an engine."""
        if file not in self.unnamed or not is_foreign(Path(file)):
            raise error
        self.passed_over.append(error.message)

    def find(self, kinds: Iterable[str], name: str, near: Document) -> Document | None:
        """The document of one of `kinds` called `name`: of the same file first, then of the same namespace, then of the nearest folder.

        Nothing can refer to what stands in another namespace; where one is not said, the other may be meant.
        """
        found = self.likely(kinds, name, near)
        return found[0] if found else None

    def likely(self, kinds: Iterable[str], name: str, near: Document) -> list[Document]:
        """The document that `find` gives, and those after it that may be meant as well: which of several folders is applied together with
        that of `near` is not said in the files."""
        wanted = tuple(kinds)
        found = [each for each in self.documents if each.kind in wanted and each.name == name]
        found = [each for each in found if each.namespace == near.namespace or not (each.namespace and near.namespace)]

        def apart(each: Document) -> int:
            """Folders up and down from one file to the other."""
            return os.path.relpath(os.path.dirname(each.file) or ".", os.path.dirname(near.file) or ".").count("/")

        def elsewhere(each: Document) -> bool:
            return os.path.dirname(each.file) != os.path.dirname(near.file)

        def rank(each: Document) -> tuple[bool, bool, bool]:
            return each.file != near.file, each.namespace != near.namespace, elsewhere(each)

        found.sort(key=lambda each: (*rank(each), apart(each)))
        return [each for each in found if rank(each) == rank(found[0])]

    def all(self, kinds: Iterable[str]) -> list[Document]:
        wanted = tuple(kinds)
        return [each for each in self.documents if each.kind in wanted]


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """The files named (True), and the YAML files, scripts and Dockerfiles of folders (False), sorted; what is hidden or no manifest is
    left out."""
    count = 0
    for given in paths:
        path = Path(os.path.normpath(given))
        if not os.path.isdir(path):  # Path's own fails for names that are too long
            yield path, True
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
            for name in sorted(names):
                manifest = name.endswith((".yaml", ".yml")) and name not in _SKIPPED
                if (manifest or _is_script(Path(name))) and not name.startswith("."):
                    count += 1
                    if count <= MAX_FILES:
                        yield Path(folder, name), False


#: what of a kustomization may change any argument of the manifests that it lists, and what changes versions and numbers alone
_PATCHES = re.compile(r"^(patches|patchesStrategicMerge|patchesJson6902|components|replacements):", re.M)
_CHANGES = re.compile(r"^(images|replicas|configMapGenerator):", re.M)


class Kustomization(NamedTuple):
    """One that changes manifests. `patches`: in ways that only the rendered ones show."""

    file: Path
    patches: bool


def _patched(path: Path) -> Iterator[Kustomization]:
    """Those of a folder, that with most to say first."""
    yield from sorted(_kustomizations(path), key=lambda each: (not each.patches, each.file))


def _kustomizations(path: Path) -> Iterator[Kustomization]:
    if not os.path.isdir(path):
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        for name in names:
            if name in ("kustomization.yaml", "kustomization.yml"):
                file = Path(folder, name)
                try:
                    text = read_text(file)
                except BadInput:
                    continue
                patches = _PATCHES.search(text) is not None
                if patches or _CHANGES.search(text):
                    yield Kustomization(file, patches)


def _is_script(path: Path) -> bool:
    name = path.name.lower()
    return name.endswith((".sh", ".bash", ".dockerfile")) or name.startswith(("dockerfile", "containerfile"))


def load(path: Path) -> list[Document | Script]:
    """The objects of one file. Raises BadInput for a file that cannot be read or is not YAML."""
    text = read_text(path)
    file = path.as_posix()
    if _is_script(path) or text.startswith("#!"):
        return [Script(file, text_word(text, file))]
    found: list[Document | Script] = []
    for node in load_documents(text, file):
        found.extend(_documents(node, file))
    return found


def _documents(node: Node, file: str) -> Iterator[Document]:
    if not isinstance(node, Mapping):
        return
    kind = node.text("kind")
    if kind is None or node.get("apiVersion") is None:
        if isinstance(node.get("services"), Mapping):
            yield Document(file, "compose", "", "", node)
        return
    items = node.get("items")
    if kind.text.endswith("List") and isinstance(items, Items):
        for item in items.items:
            yield from _documents(item, file)
        return
    name = node.text("metadata", "name") or node.text("metadata", "generateName") or Word("", node.place)
    namespace = node.text("metadata", "namespace")
    yield Document(file, kind.text, name.text, namespace.text if namespace else "", node)


def text_word(text: str, file: str) -> Word:
    """The text of a whole file with the places of its lines."""
    spots: list[tuple[int, Place]] = []
    offset = 0
    for number, line in enumerate(text.split("\n"), start=1):
        spots.append((offset, Place(file, number)))
        offset += len(line) + 1
    return Word(text, Place(file, 1), True, tuple(spots))


def lines_of(word: Word) -> tuple[Word, ...]:
    """The lines of a text as words, each with its place."""
    lines: list[Word] = []
    offset = 0
    for line in word.text.split("\n"):
        if line or offset < len(word.text):
            start = offset + len(line) - len(line.lstrip())
            lines.append(Word(line, place_at(word.spots, word.place, start)._replace(column=1), word.literal))
        offset += len(line) + 1
    return tuple(lines)


def joined(lines: Sequence[Word]) -> Word:
    """The text that `lines_of` came from, for those who read it as one script."""
    spots: list[tuple[int, Place]] = []
    offset = 0
    for line in lines:
        spots.append((offset, line.place))
        offset += len(line.text) + 1
    place = lines[0].place if lines else Place("", 1)
    return Word("\n".join(line.text for line in lines), place, all(line.literal for line in lines), tuple(spots))


def strings(node: Node | None) -> list[Word]:
    """The scalars of a list as words; a scalar alone is a list of one. A value that is a template nobody rendered raises BadInput."""
    items = node.items if isinstance(node, Items) else (node,) if isinstance(node, Scalar) else ()
    return [rendered(item.word) for item in items if isinstance(item, Scalar)]


def rendered(word: Word) -> Word:
    """`word`, or BadInput where it is a template that nobody rendered."""
    if "{{" in word.text and HELM.search(word.text):
        raise unrendered(word.place)
    return word


def mappings(node: Node | None) -> list[Mapping]:
    return [item for item in node.items if isinstance(item, Mapping)] if isinstance(node, Items) else []


def integer(node: Node | None) -> int | None:
    """A whole number written as a number or in quotes, None for everything else."""
    text = node.text.strip() if isinstance(node, Scalar) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
