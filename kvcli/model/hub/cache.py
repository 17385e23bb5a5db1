"""What was read of a commit's files, kept beside the hub cache's own copy of its config.

    HF_HUB_CACHE/models--OWNER--NAME/kvcli/commits/COMMIT/FILE.start    one entry a file
    HF_HUB_CACHE/models--OWNER--NAME/kvcli/refs/REVISION                the commit that a branch or tag had

An entry is one line `kvcli 1 SIZE SHA256`, with the bytes of the whole file and the checksum of both that number and the file's
start, then this start, zlib-compressed. A commit never changes, so an entry is right for ever; one that is damaged counts as none.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeGuard
from urllib.parse import quote

#: As much as any start that kvcli reads: a header, or an index.
MAX_START_BYTES = 100_000_000
_LINE = re.compile(rb"kvcli 1 (\d{1,19}) ([0-9a-f]{64})\n")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


class Start(NamedTuple):
    """The first bytes of a file, `raw`, and how many it has in all."""

    raw: bytes
    file_bytes: int


class HubCache:
    """The entries of one repository at one commit. A folder that cannot be read or written holds nothing.

    `commit` must be one (is_commit), since it becomes a folder's name.
    """

    def __init__(self, repo: str, commit: str) -> None:
        self.folder = _repository(repo) / "commits" / commit

    def load(self, name: str) -> Start | None:
        try:
            data = self._path(name).read_bytes()
        except (OSError, ValueError):
            return None
        line = _LINE.match(data)
        if line is None:
            return None
        unpacked = zlib.decompressobj()
        try:
            start = Start(unpacked.decompress(data[line.end() :], MAX_START_BYTES + 1), int(line[1]))
        except zlib.error:
            return None
        whole = unpacked.eof and len(start.raw) <= min(MAX_START_BYTES, start.file_bytes)
        return start if whole and _checksum(start).encode() == line[2] else None

    def store(self, name: str, start: Start) -> None:
        line = f"kvcli 1 {start.file_bytes} {_checksum(start)}\n"
        _write(self._path(name), line.encode() + zlib.compress(start.raw, 6))

    def _path(self, name: str) -> Path:
        return self.folder / f"{quote(name, safe='')}.start"


def _checksum(start: Start) -> str:
    digest = hashlib.sha256(f"{start.file_bytes}\n".encode())
    digest.update(start.raw)
    return digest.hexdigest()


def remember(repo: str, revision: str | None, commit: str) -> None:
    """That a branch, a tag, or None for the main branch, was at this commit."""
    _write(_ref(repo, revision), commit.encode())


def remembered(repo: str, revision: str | None) -> str | None:
    """The commit that a revision had when it was last asked for."""
    try:
        commit = _ref(repo, revision).read_text("ascii")
    except (OSError, ValueError):
        return None
    return commit if is_commit(commit) else None


def is_commit(text: str | None) -> TypeGuard[str]:
    """Whether it can be a commit's name, and so a folder's."""
    return text is not None and _COMMIT.fullmatch(text) is not None


def _repository(repo: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "kvcli"


def _ref(repo: str, revision: str | None) -> Path:
    return _repository(repo) / "refs" / quote(revision or "main", safe="")


def _write(path: Path, data: bytes) -> None:
    """A cache that cannot be written only remembers nothing."""
    draft = path.with_name(f"{secrets.token_hex(8)}.part")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(data)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
