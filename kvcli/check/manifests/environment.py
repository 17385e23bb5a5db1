"""What a container of Kubernetes sees: variables, files, and `$(VAR)` as the kubelet expands it."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from kvcli.check.launch import OPEN, Problem
from kvcli.check.manifests.fileset import Document, FileSet, lines_of, mappings, rendered
from kvcli.check.nodes import Mapping, Place, Scalar, Word, place_at, spots_between

#: a longer text is not expanded, and not literal
MAX_CHARACTERS = 100_000


class Environment(NamedTuple):
    """`variables` in the order they are set. `open`: more variables come from something that is not among the files."""

    variables: dict[str, Word]
    open: bool
    problems: tuple[Problem, ...]


def read_environment(container: Mapping, document: Document, files: FileSet, known: dict[str, Word] | None = None) -> Environment:
    """envFrom first, then env in order, each value expanded with those before it. `known`: what the controller adds."""
    variables: dict[str, Word] = dict(known or {})
    problems: list[Problem] = []
    open_ended = False
    for source in mappings(container.get("envFrom")):
        prefix = source.text("prefix")
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            name = source.text(key, "name")
            if name is None:
                continue
            data = _chosen(kind, name, document, files, problems)
            if data is None:
                open_ended = True
                optional = _true(source.at(key, "optional")) or kind == "Secret"
                code = "environment_not_in_files" if kind == "ConfigMap" else "secret_not_in_files"
                problems.append(_missing(kind, name, not optional, code))
                if kind == "ConfigMap":
                    variables[OPEN] = Word("", name.place, False)
                continue
            for key_name, word in data.items():
                full = (prefix.text if prefix else "") + key_name
                variables[full] = word if kind == "ConfigMap" and word.literal else Word(f"$({full})", word.place, False)
    for entry in mappings(container.get("env")):
        variable = entry.text("name")
        if variable is None:
            continue
        value = entry.get("value")
        if isinstance(value, Scalar):
            if value.type != "str":
                message = f"the value of {variable.text} is no string ({value.text}), which Kubernetes refuses: quote it"
                problems.append(Problem("not_a_string", message, value.place))
            variables[variable.text] = expand(rendered(value.word), variables, open_ended)
        elif entry.get("valueFrom") is not None:
            variables[variable.text] = _value_from(entry, variable, document, files, problems)
        else:
            variables[variable.text] = Word("", variable.place)
    return Environment(variables, open_ended, tuple(problems))


def _value_from(entry: Mapping, variable: Word, document: Document, files: FileSet, problems: list[Problem]) -> Word:
    unknown = Word(f"$({variable.text})", variable.place, False)
    for source, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        name, key = entry.text("valueFrom", source, "name"), entry.text("valueFrom", source, "key")
        if name is None or key is None:
            continue
        optional = _true(entry.at("valueFrom", source, "optional")) or kind == "Secret"
        data = _chosen(kind, name, document, files, problems, key.text)
        if data is None:
            if kind != "Secret":  # they are not kept beside manifests; where an engine reads the variable, its reader says so
                problems.append(_missing(kind, name, not optional, "key_not_found"))
            return unknown
        word = data.get(key.text)
        if word is None:
            message = f"{kind} {name.text} has no key {key.text}, which {variable.text} takes its value from"
            problems.append(Problem("key_not_found", message, key.place, matters=not optional))
            return unknown
        # a secret's value is never shown, not even where it stands in the files
        return word if kind == "ConfigMap" and word.literal else unknown
    return unknown


def _chosen(
    kind: str,
    name: Word,
    document: Document,
    files: FileSet,
    problems: list[Problem],
    key: str | None = None,
    code: str = "ambiguous_reference",
) -> dict[str, Word] | None:
    """What the ConfigMap holds that is meant; None where there is none. Where several may be, or one of a namespace that the reference does
    not name, a Problem, and the keys on which they disagree (of all, or `key` alone) are not literal."""
    found = files.likely([kind], name.text, document)
    if not found:
        return None
    data = [_data(each) for each in found]
    keys = list(dict.fromkeys(name for each in data for name in each))
    differ = {name for name in keys if len({each[name].text if name in each else None for each in data}) > 1}
    matters = kind == "ConfigMap" and bool(differ if key is None else {key} & differ)
    if matters:
        places = ", ".join(each.file for each in found[:3])
        message = f"{len(found)} {kind}s called {name.text} may be meant ({places}), and they do not say the same"
        problems.append(Problem(code, message, name.place))
    elif kind == "ConfigMap" and found[0].namespace and not document.namespace:
        message = f"{kind} {name.text} is of namespace {found[0].namespace}, and {document.kind} {document.name} names none"
        problems.append(Problem(code, message, name.place))
        differ = set(keys)
    merged = {name: next(each[name] for each in data if name in each) for name in keys}
    return {name: word._replace(literal=word.literal and name not in differ) for name, word in merged.items()}


def expand(word: Word, variables: dict[str, Word], open_ended: bool) -> Word:
    """`$(VAR)` and `$$` in one pass, as Kubernetes documents them: an unknown reference stays as it is written.

    The result is not literal where the value is one that only the cluster knows. What a reference became has the value's place.
    """
    if "$" not in word.text:
        return word
    if len(word.text) > MAX_CHARACTERS:
        return word._replace(literal=False)
    text, pieces, spots = word.text, list[str](), list[tuple[int, Place]]()
    literal, length, at, filled = word.literal, 0, 0, False

    def add(piece: str, place: Place) -> None:
        nonlocal length
        spots.append((length, place))
        pieces.append(piece)
        length += len(piece)

    while at < len(text):
        if length > MAX_CHARACTERS:
            return word._replace(literal=False)  # variables that double each other
        dollar = text.find("$", at)
        end = len(text) if dollar < 0 else dollar
        if end > at:
            for offset, place in ((at, place_at(word.spots, word.place, at)), *spots_between(word.spots, at, end)):
                spots.append((length + offset - at, place))
            pieces.append(text[at:end])
            length += end - at
        if dollar < 0:
            break
        here = place_at(word.spots, word.place, dollar)
        close = text.find(")", dollar) if text[dollar + 1 : dollar + 2] == "(" else -1
        if text[dollar + 1 : dollar + 2] == "$":
            add("$", here)
            at = dollar + 2
        elif close < 0:
            add("$", here)
            at = dollar + 1
        else:
            name = text[dollar + 2 : close]
            value = variables.get(name)
            if value is None or not value.literal:
                literal = literal and value is None and not open_ended and not _service_variable(name)
                add(text[dollar : close + 1], here)
            elif dollar == 0 and close + 1 == len(text):
                return value
            else:
                add(value.text, value.place)
                filled = True
            at = close + 1
    return Word("".join(pieces), word.place, literal, tuple(spots) if word.spots or filled else ())


def _service_variable(name: str) -> bool:
    """Variables that the kubelet adds for each service of the namespace."""
    return "_SERVICE_" in name or "_PORT" in name or name.startswith(("LWS_", "KUBERNETES_"))


def mounted_files(
    container: Mapping, pod: Mapping, document: Document, files: FileSet
) -> tuple[dict[str, tuple[Word, ...]], list[Problem]]:
    """Path in the container -> lines, for every ConfigMap of the set that is mounted; Problems for those that are not in it."""
    volumes = {name.text: volume for volume in mappings(pod.get("volumes")) if (name := volume.text("name"))}
    result: dict[str, tuple[Word, ...]] = {}
    problems: list[Problem] = []
    for mount in mappings(container.get("volumeMounts")):
        name, path, part = mount.text("name"), mount.text("mountPath"), mount.text("subPath")
        volume = volumes.get(name.text) if name else None
        if path is None or volume is None:
            continue
        sources = [volume, *mappings(volume.at("projected", "sources"))]
        for source in sources:
            config = source.get("configMap")
            if not isinstance(config, Mapping):
                continue
            wanted = config.text("name")
            data = _chosen("ConfigMap", wanted, document, files, problems, code="ambiguous_file") if wanted else None
            if data is None:
                if wanted is not None:
                    problems.append(_missing("ConfigMap", wanted, False, "volume_not_in_files"))
                continue
            for inner, word in _items(config, data).items():
                if part is None:
                    result[posixpath.join(path.text, inner)] = lines_of(word)
                elif part.text == inner:
                    result[path.text] = lines_of(word)
    return result, problems


def _items(config: Mapping, data: dict[str, Word]) -> dict[str, Word]:
    items = config.get("items")
    if items is None:
        return data
    pairs = [(item.text("key"), item.text("path")) for item in mappings(items)]
    return {path.text: data[key.text] for key, path in pairs if key and path and key.text in data}


def _data(document: Document) -> dict[str, Word]:
    result: dict[str, Word] = {}
    for key in ("data", "stringData"):
        node = document.node.get(key)
        if isinstance(node, Mapping):
            result.update((name.text, value.word) for name, value in node.pairs if isinstance(value, Scalar))
    return result


def _missing(kind: str, name: Word, matters: bool, code: str) -> Problem:
    return Problem(code, f"{kind} {name.text} is not among the files, so what it sets is not known", name.place, matters)


def _true(node: object) -> bool:
    return isinstance(node, Scalar) and node.text.lower() == "true"
