"""The files of a hub repository at one commit: their names and their starts, out of the cache or over the network."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.model.hub.cache import HubCache, Start
from kvcli.model.hub.ranges import HubFile, Refused
from kvcli.model.part_files import INDEX, MAX_INDEX_BYTES, missing_part
from kvcli.model.safetensors_header import (
    LENGTH_BYTES,
    StoredTensor,
    header_json,
    parse_header,
    read_safetensors_header,
)

#: The list of names, as an entry of the cache; no file can have this name.
_NAMES = "/names"
#: Endings of files that hold weights; other names are not kept.
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".msgpack", ".h5", ".ckpt", INDEX)


class NotAsked(Exception):
    """It is not in the cache, and the network may not be used."""


class NotListed(Exception):
    """The hub, or what stands in its place, has no list of the repository's files."""


class Listing(NamedTuple):
    """A commit and the names of its files."""

    commit: str
    names: list[str]


def listing(repo: str, revision: str | None, timeout_s: float) -> Listing:
    """What the hub lists. Raises NotListed, and what huggingface_hub and its transport raise."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        info = HfApi().model_info(repo, revision=revision, timeout=timeout_s)
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (404, 405, 410, 501):
            raise NotListed from None
        raise
    return Listing(info.sha or "", sorted(sibling.rfilename for sibling in info.siblings or ()))


class HubFiles:
    """`announce` gets one line before requests, None: the cache alone may answer. `snapshot` is the hub cache's own folder.

    Methods raise NotAsked without leave, BadInput for files that are damaged or missing, and what HubFile raises.
    """

    def __init__(self, repo: str, commit: str, announce: Callable[[str], None] | None, snapshot: Path | None, timeout_s: float) -> None:
        self.repo = repo
        self.commit = commit
        self.where = f"hub {repo}@{commit}"
        self.announce = announce
        self.snapshot = snapshot
        self.timeout_s = timeout_s
        self.cache = HubCache(repo, commit)

    def say(self, text: str) -> None:
        if self.announce is None:
            raise NotAsked
        self.announce(text)

    def names(self) -> list[str]:
        """Of the files that can hold weights; asked once a commit."""
        entry = self.cache.load(_NAMES)
        with suppress(ValueError):
            found = None if entry is None else json.loads(entry.raw)
            if isinstance(found, list) and all(isinstance(name, str) for name in found):
                return found
        # without the hub, an index or the one file tells as much
        local = self.snapshot
        if self.announce is None and local is not None and any((local / name).is_file() for name in (INDEX, "model.safetensors")):
            return sorted(path.name for path in local.iterdir())
        self.say("asking for the names of its files")
        return self.keep_names(listing(self.repo, self.commit, self.timeout_s).names)

    def keep_names(self, names: list[str]) -> list[str]:
        """Remembers a list of the commit's files; the part of it that `names` gives."""
        kept = [name for name in names if name.endswith(_WEIGHTS)]
        raw = json.dumps(kept, separators=(",", ":")).encode()
        self.cache.store(_NAMES, Start(raw, len(raw)))
        return kept

    def index(self) -> bytes:
        """The whole index of the parts."""
        local = None if self.snapshot is None else self.snapshot / INDEX
        with suppress(OSError):
            if local is not None and local.stat().st_size <= MAX_INDEX_BYTES:
                return local.read_bytes()
        entry = self.cache.load(INDEX)
        if entry is not None and len(entry.raw) == entry.file_bytes:
            return entry.raw
        self.say(f"fetching {INDEX}")
        file = HubFile(self.repo, self.commit, INDEX, self.timeout_s)
        raw = self.there(INDEX, lambda: file.start(2**20))
        if file.size_bytes > MAX_INDEX_BYTES:
            text = f"{self.where}/{INDEX} is larger than any index ({file.size_bytes:,} bytes) and was not fetched"
            raise BadInput(text, code="config_too_large")
        raw = file.start(file.size_bytes) if file.size_bytes > len(raw) else raw
        self.cache.store(INDEX, Start(raw, file.size_bytes))
        return raw

    def known_header(self, name: str) -> list[StoredTensor] | None:
        """The tensors of a safetensors file whose header is in the cache, or that is itself in the hub's own."""
        with suppress(BadInput):
            entry = self.cache.load(name)
            if entry is not None:
                return parse_header(f"{self.where}/{name}", entry.raw, entry.file_bytes)
        with suppress(BadInput):
            if self.snapshot is not None and (self.snapshot / name).is_file():
                return read_safetensors_header(self.snapshot / name)
        return None

    def fetch_header(self, name: str, first_bytes: int) -> list[StoredTensor]:
        """The tensors of a safetensors file by its header; `first_bytes` is the guess at that header's size."""
        where = f"{self.where}/{name}"
        file = HubFile(self.repo, self.commit, name, self.timeout_s)
        self.there(name, lambda: file.start(first_bytes))
        raw = header_json(where, file.size_bytes, file.read)
        tensors = parse_header(where, raw, file.size_bytes)
        self.cache.store(name, Start(raw, file.size_bytes))
        return tensors

    def there(self, name: str, work: Callable[[], bytes]) -> bytes:
        """What `work` returns. Raises BadInput where the hub does not have the file `name`."""
        try:
            return work()
        except Refused as error:
            if error.response.status_code in (404, 410):
                raise missing_part(f"{self.where}/{name}") from None
            raise


def first_guess(names: list[str]) -> int:
    """A range that holds a header of tensors with these names: each has its name and about a hundred bytes more."""
    return LENGTH_BYTES + 512 + sum(len(name) + 120 for name in names)
