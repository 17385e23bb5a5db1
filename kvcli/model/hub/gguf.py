"""A hub repository that holds nothing but one GGUF model: its header, by ranges, through the reader of local files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvcli.errors import BadInput, KvcliError
from kvcli.model.gguf.config import PART, spec_from_headers
from kvcli.model.gguf.header import GgufHeader, parse_header
from kvcli.model.hub.cache import Start
from kvcli.model.hub.errors import explain
from kvcli.model.hub.files import HubFiles, NotAsked
from kvcli.model.hub.pool import each, within
from kvcli.model.hub.ranges import HubFile
from kvcli.model.spec import ModelSpec

#: For all parts. A header is its vocabulary, most of it: four to sixteen million bytes.
GGUF_S = 120.0
_FIRST_BYTES = 2**22
_GROWTH = 3
#: The largest vocabulary known makes a header of 16 MB; what is read is held twice for a moment.
_MOST_BYTES = 48 * 2**20
#: Projectors of images and sounds, which llama.cpp loads beside a model, and the data that quantisation was guided by.
_BESIDE = re.compile(r"(?:^|/|[-._])(?:mmproj|imatrix)", re.IGNORECASE)


def only_model(names: Sequence[str]) -> tuple[str, ...]:
    """The one GGUF file among these names, or all parts of the one split model; () where there is none, or a choice."""
    files = sorted(name for name in names if name.lower().endswith(".gguf") and not _BESIDE.search(name))
    parts = [found for name in files if (found := PART.match(name))]
    if not parts:
        return tuple(files) if len(files) == 1 else ()
    one_set = len(parts) == len(files) == int(parts[0][3]) and len({(part[1], part[3]) for part in parts}) == 1
    whole = [int(part[2]) for part in parts] == list(range(1, len(parts) + 1))
    return tuple(files) if one_set and whole else ()


def read_hub_gguf(files: HubFiles, names: Sequence[str]) -> ModelSpec:
    """The model in the GGUF files `names`, which are one model's.

    Raises NotAsked, BadInput for damaged files, NotModelled as any GGUF does, CannotRunHere for an answer that does not come.
    """
    try:
        headers = within(GGUF_S, lambda: _headers(files, names))
    except BadInput as error:
        raise BadInput(error.message, hint="the repository itself holds it so", code=error.code) from None
    except (KvcliError, NotAsked):
        raise
    except Exception as error:  # the transports have no common base
        hint = f"download {names[0]} and pass the file"
        raise explain(error, files.repo, "", GGUF_S, "the header of the weights", hint) from None
    spec = spec_from_headers(headers, _path(files, names[0]))
    return replace(spec, name=files.repo, source=files.where)


def _path(files: HubFiles, name: str) -> Path:
    """What stands for the file in messages; nothing is there."""
    return Path(f"{files.repo}@{files.commit}", *name.split("/"))


def _headers(files: HubFiles, names: Sequence[str]) -> list[GgufHeader]:
    known = {name: header for name in names if (header := _known(files, name)) is not None}
    if wanted := [name for name in names if name not in known]:
        files.say(f"reading the header of {wanted[0]}" + (f" and of {len(wanted) - 1} more parts" if len(wanted) > 1 else ""))
        known.update(zip(wanted, each(wanted, lambda name: _fetch(files, name)), strict=True))
    return [known[name] for name in names]


def _known(files: HubFiles, name: str) -> GgufHeader | None:
    entry = files.cache.load(name)
    if entry is None:
        return None
    try:
        return parse_header(entry.raw, _path(files, name), entry.file_bytes)
    except BadInput:
        return None


def _fetch(files: HubFiles, name: str) -> GgufHeader:
    """More and more of the file's start, until the header is whole in it."""
    file, path, count = HubFile(files.repo, files.commit, name, files.timeout_s), _path(files, name), _FIRST_BYTES
    while True:
        raw = files.there(name, lambda: file.start(count))  # noqa: B023  # called at once
        try:
            # where the tensors end is looked at below: a file that is cut short must not be read to its end
            header = parse_header(raw, path, file.size_bytes, check_data=False)
            break
        except BadInput as error:
            if error.code != "gguf_truncated" or len(raw) >= file.size_bytes:
                raise
            if len(raw) >= _MOST_BYTES:
                text = f"the header of {path.name!r} does not end within {_MOST_BYTES:,} bytes, where any model's does"
                raise BadInput(text, code="gguf_malformed") from None
        count = min(count * _GROWTH, _MOST_BYTES)
    header = parse_header(raw, path, file.size_bytes)
    files.cache.store(name, Start(raw[: header.data_offset], file.size_bytes))
    return header
