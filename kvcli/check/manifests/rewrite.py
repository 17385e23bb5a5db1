"""Nodes made of nodes: overlays, substitutions, and values of YAML as flags of a command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from kvcli.check.nodes import Mapping, Node, Scalar, Sequence, Word


def overlay(base: Mapping, over: Mapping, joined: Iterable[str] = (), named: Iterable[str] = (), deep: Iterable[str] = ()) -> Mapping:
    """`base` with the keys of `over`. Lists under `joined` are appended, those under `named` are merged by their entries' `name`,
    mappings under `deep` are overlaid key by key."""
    joined, named, deep = set(joined), set(named), set(deep)
    pairs = {name.text: (name, value) for name, value in base.pairs}
    for name, value in over.pairs:
        before = pairs.get(name.text)
        merged = value
        if before is not None and isinstance(before[1], Sequence) and isinstance(value, Sequence):
            if name.text in joined:
                merged = Sequence((*before[1].items, *value.items), value.place)
            elif name.text in named:
                mine = {_name(item) for item in value.items}
                merged = Sequence((*(item for item in before[1].items if _name(item) not in mine), *value.items), value.place)
        elif before is not None and isinstance(before[1], Mapping) and isinstance(value, Mapping) and name.text in deep:
            merged = overlay(before[1], value, deep=deep)
        elif isinstance(value, Scalar) and value.type == "null":
            continue
        pairs[name.text] = (name, merged)
    return Mapping(tuple(pairs.values()), over.place)


def _name(node: Node) -> str | None:
    word = node.text("name") if isinstance(node, Mapping) else None
    return word.text if word else None


def substituted(mapping: Mapping, change: Callable[[str], str]) -> Mapping:
    """The mapping with `change` applied to the text of every value."""
    return mapping._replace(pairs=tuple((name, _substituted(value, change)) for name, value in mapping.pairs))


def _substituted(node: Node, change: Callable[[str], str]) -> Node:
    if isinstance(node, Scalar):
        text = change(node.text)
        return node if text == node.text else node._replace(text=text)
    if isinstance(node, Sequence):
        return node._replace(items=tuple(_substituted(item, change) for item in node.items))
    return substituted(node, change)


def plain(node: Node) -> object:
    """The value as JSON has it."""
    if isinstance(node, Mapping):
        return {name.text: plain(value) for name, value in node.pairs}
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    if node.type == "bool":
        return truth(node)
    if node.type == "null":
        return None
    try:
        return int(node.text) if node.type == "int" else float(node.text) if node.type == "float" else node.text
    except ValueError:
        return node.text


def truth(node: Scalar) -> bool:
    return node.text.lower() in ("true", "yes", "on", "y")


def flags(settings: Mapping, negate: bool) -> list[Word]:
    """Keyword arguments as words: `max_model_len: 8192` is `--max-model-len=8192`, true is the flag alone, mappings are JSON.

    `negate`: false is `--no-flag`; else it is left out, as is null.
    """
    words: list[Word] = []
    for name, value in settings.pairs:
        flag = name.text.replace("_", "-")
        if isinstance(value, Scalar):
            if value.type == "bool":
                if truth(value) or negate:
                    words.append(Word(f"--{flag}" if truth(value) else f"--no-{flag}", name.place))
            elif value.type != "null":
                words.append(Word(f"--{flag}={value.text}", name.place))
        else:
            words.append(Word(f"--{flag}={json.dumps(plain(value))}", name.place))
    return words
