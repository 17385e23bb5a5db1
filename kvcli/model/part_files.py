"""Which safetensors files are a model's, and all their tensors as one list: for folders and for hub repositories alike."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvcli.errors import BadInput
from kvcli.model.safetensors_header import StoredTensor

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 100_000_000
MAX_PARTS = 10_000

_PART = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.safetensors$")


def part_names(names: Collection[str], where: str) -> list[str]:
    """Of the files named `*.safetensors` that lie at `where`, those of the model, by the rules for a place without an index.

    They are `model.safetensors`, else a full set of numbered parts, else the only file; [] where there is none. Raises BadInput
    for a part that is missing, and where more files lie there than one model's.
    """
    if "model.safetensors" in names:
        return ["model.safetensors"]
    files = sorted(name for name in names if not name.startswith("adapter_"))
    if len(files) == 1 and not _PART.match(files[0]):
        return files
    if not files:
        return []
    parts = {(match[1], match[3]) for name in files if (match := _PART.match(name))}
    if len(parts) != 1 or not all(_PART.match(name) for name in files):
        raise BadInput(
            f"{where} holds {len(files)} safetensors files and no {INDEX} that says which are the model's",
            hint="pass its config.json to plan without them",
            code="ambiguous_weights",
        )
    ((stem, count),) = parts
    if not 0 < int(count) <= MAX_PARTS:
        raise BadInput(f"{where}/{files[0]} says it is one of {int(count):,} parts, which no model has", code="ambiguous_weights")
    wanted = [f"{stem}-{number:05d}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
    for name in wanted:
        if name not in names:
            raise missing_part(f"{where}/{name}")
    if len(wanted) != len(files):
        raise BadInput(f"{where} holds more parts than the {int(count)} that their names promise", code="ambiguous_weights")
    return wanted


def missing_part(where: str) -> BadInput:
    return BadInput(f"{where} is missing, a part of the model's weights", hint="download it", code="missing_part")


def parse_index(values: Mapping[str, object], where: str) -> dict[str, str]:
    """Tensor name -> file name. Raises BadInput for an index that is none, or that leaves its folder."""
    found = values.get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise BadInput(f"{where} has no weight_map from tensors to files", code="bad_index")
    files = set(found.values())
    for name in files:
        if not name.endswith(".safetensors") or not name.isprintable() or "/" in name or "\\" in name or len(name) > 255:
            raise BadInput(f"{where} names {name[:80]!r}, which is no safetensors file of this folder", code="bad_index")
    if len(files) > MAX_PARTS:
        raise BadInput(f"{where} names {len(files):,} files, which no model has", code="bad_index")
    return found


def read_index(path: Path) -> dict[str, object]:
    from kvcli.model.config import load_json

    return load_json(path, MAX_INDEX_BYTES)


@contextmanager
def no_collection() -> Iterator[None]:
    """Headers are a million small objects without cycles, which the cycle collector would look through again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def join_parts(
    names: Sequence[str], read: Callable[[str], list[StoredTensor]], mapped: Mapping[str, str], where: str
) -> list[StoredTensor]:
    """The tensors of all parts. Raises BadInput for one that stands in two, and where the index `mapped` is contradicted."""
    tensors: list[StoredTensor] = []
    with no_collection():
        for name in names:
            tensors += read(name)
    found = {tensor.name for tensor in tensors}
    if len(found) != len(tensors):
        twice = next(name for name, times in Counter(tensor.name for tensor in tensors).items() if times > 1)
        raise BadInput(f"{where} holds {twice[:80]!r} in two files", code="duplicate_tensor")
    if missing := mapped.keys() - found:
        name = min(missing)
        raise BadInput(f"{where}/{mapped[name]} lacks {name[:80]!r}, which the index puts there", code="missing_tensor")
    return tensors
