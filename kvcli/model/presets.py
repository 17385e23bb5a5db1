"""Presets: verbatim subsets of published configs, one file a model, with a `kvcli` block for what the config lacks."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kvcli.errors import BadInput
from kvcli.model.config import load_json, spec_from_config
from kvcli.model.spec import ModelSpec


@cache
def folder() -> Path:
    """Where presets lie: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_presets"
    return inside if inside.is_dir() else package.parent / "presets"


def names() -> list[str]:
    """All preset names, sorted. Reads the folder, no file."""
    try:
        return sorted(entry.name.removesuffix(".json") for entry in os.scandir(folder() / "models") if entry.name.endswith(".json"))
    except OSError as error:
        raise BadInput(f"the presets folder is missing: {error.filename}", hint="install kvcli again", code="no_presets") from None


class Preset(NamedTuple):
    """`config` is the config.json subset, `block` the `kvcli` object: source, parameters, hub ids, weights."""

    name: str
    config: dict[str, Any]
    block: dict[str, Any]

    def spec(self) -> ModelSpec:
        return spec_from_config(self.config, name=self.name, source=f"preset {self.name}")

    @property
    def hub_ids(self) -> list[str]:
        return list(self.block.get("hub_ids", []))


def load(name: str) -> Preset:
    """The preset of that exact file name."""
    config = load_json(folder() / "models" / f"{name}.json")
    block = config.pop("kvcli")
    return Preset(name, config, block)


def key(text: str) -> tuple[str, ...]:
    """What must be equal for two spellings to name one model: letters and numbers in order, separators aside.

    `Llama-3_8B` and `llama3-8b` agree; `llama-38b` does not, since 3 and 8 are two numbers.
    """
    return tuple(re.findall(r"[a-z]+|\d+(?:\.\d+)*", text.lower()))


def find(text: str) -> Preset | None:
    """The preset a user named, by file name, or by a hub id (whole or its last part); spelling is normalised."""
    wanted = key(text)
    known = names()
    for name in known:
        if key(name) == wanted:
            return load(name)
    for preset in map(load, known):
        spellings = [*preset.hub_ids, *(hub_id.rpartition("/")[2] for hub_id in preset.hub_ids)]
        if wanted in map(key, spellings):
            return preset
    return None


def unknown(text: str) -> BadInput:
    """The error for a name without a match; it lists the nearest."""
    import difflib  # only a miss pays for it

    known = names()
    near = difflib.get_close_matches(text.lower().rpartition("/")[2], known, n=3, cutoff=0.5)
    where = "a folder, a config.json or a .gguf file may be given by path"
    return BadInput(
        f"no model is called {text[:80]!r}",
        hint=f"did you mean {' or '.join(near)}? {where}" if near else f"kvcli presets lists the names; {where}",
        code="unknown_model",
    )
