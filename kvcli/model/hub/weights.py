"""Exact bytes of a hub repository's weights, by the headers of its safetensors files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kvcli.errors import BadInput, KvcliError, Notice
from kvcli.model.config import parse_json
from kvcli.model.hub.errors import explain, some_of
from kvcli.model.hub.files import HubFiles, NotAsked, NotListed, first_guess
from kvcli.model.hub.pool import each, within
from kvcli.model.part_files import INDEX, join_parts, parse_index, part_names
from kvcli.model.safetensors_header import StoredTensor
from kvcli.model.spec import ModelSpec
from kvcli.model.weight_files import with_tensors

#: For all headers of one model; what has come by then is kept.
HEADERS_S = 120.0
#: First range of a lone file, whose header may have any size.
_LONE_BYTES = 2**18
_LEAST_BYTES = 2**14
_MOST_BYTES = 8 * 2**20
_ALONE = "--weights bf16 plans from its config alone"
_PICKLES = (".bin", ".pt", ".pth", ".msgpack", ".h5", ".ckpt")


class _Read(NamedTuple):
    """The tensors, or why there are none to read."""

    tensors: list[StoredTensor]
    notice: Notice | None = None


def with_hub_weights(spec: ModelSpec, files: HubFiles) -> ModelSpec:
    """The model with the bytes of its repository's safetensors files; with a notice instead where it has none, or was not asked.

    Raises BadInput for files that are damaged, missing or not one model's; CannotRunHere for an answer that does not come.
    """
    try:
        found = within(HEADERS_S, lambda: _read(files))
    except NotAsked:
        text = f"the hub was not asked for the headers of {files.repo}'s weights: bytes are those that its config describes"
        return replace(spec, notices=(*spec.notices, Notice("headers_not_asked", text)))
    except NotListed:
        text = f"the hub does not list the files of {files.repo}: bytes are those that its config describes"
        return replace(spec, notices=(*spec.notices, Notice("files_not_listed", text)))
    except BadInput as error:
        raise BadInput(error.message, hint=f"the repository itself holds it so; {_ALONE}", code=error.code) from None
    except KvcliError as error:
        raise type(error)(error.message, hint=f"{error.hint}; {_ALONE}", code=error.code) from None
    except Exception as error:  # the transports have no common base
        raise explain(error, files.repo, "", HEADERS_S, "the headers of the weights", f"try again, or {_ALONE}") from None
    if found.notice is not None:
        return replace(spec, notices=(*spec.notices, found.notice))
    return with_tensors(spec, found.tensors, files.where)


def _read(files: HubFiles) -> _Read:
    names = [name for name in files.names() if name.endswith(".gguf") or "/" not in name]
    mapped = parse_index(parse_json(files.index(), f"{files.where}/{INDEX}"), f"{files.where}/{INDEX}") if INDEX in names else {}
    parts = sorted(set(mapped.values())) or part_names([name for name in names if name.endswith(".safetensors")], files.where)
    if not parts:
        return _Read([], _without(files.repo, names))
    inside: dict[str, list[str]] = {name: [] for name in parts}
    for tensor, name in mapped.items():
        inside[name].append(tensor)
    known = dict(zip(parts, map(files.known_header, parts), strict=True))
    if wanted := [name for name in parts if known[name] is None]:
        count = f"{len(wanted)} weight files" if len(wanted) > 1 else wanted[0]
        files.say(f"reading the {'headers' if len(wanted) > 1 else 'header'} of {count}")
        known.update(zip(wanted, each(wanted, lambda name: files.fetch_header(name, _first_bytes(inside[name]))), strict=True))
    return _Read(join_parts(parts, lambda name: known[name] or [], mapped, files.where))


def _first_bytes(names: list[str]) -> int:
    if not names:
        return _LONE_BYTES
    return min(_MOST_BYTES, -(-first_guess(names) // _LEAST_BYTES) * _LEAST_BYTES)


def _without(repo: str, names: Sequence[str]) -> Notice:
    """What a repository without safetensors files holds instead."""
    rest = "bytes are those that its config describes"
    if files := [name for name in names if name.endswith(".gguf")]:
        text = f"{repo} has its weights as {some_of(files)}: {rest}; download one and pass it for its own"
        return Notice("weights_are_gguf", text)
    if files := [name for name in names if name.endswith(_PICKLES)]:
        return Notice("weights_are_pickles", f"{repo} has its weights as {some_of(files)}, formats that kvcli never loads: {rest}")
    return Notice("no_weights", f"{repo} has no weights that kvcli can read: {rest}")
