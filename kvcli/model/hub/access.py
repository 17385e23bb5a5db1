"""What the command line needs to name a hub's model and to allow asking for it; nothing here asks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

#: What the hub allows in each part of an id, and in a branch, tag or commit.
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*")
_MAX_ID_CHARS = 96


class HubAccess(NamedTuple):
    """Leave to ask the hub. `announce` gets one line before requests; `offline` allows the cache alone.

    `headers`: whether the headers of the weights are wanted, too.
    """

    announce: Callable[[str], None]
    offline: bool = False
    headers: bool = True


class HubId(NamedTuple):
    """`repo` is `owner/name`; `revision` a branch, tag or commit, None for the repository's main branch."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def parse_id(text: str) -> HubId | None:
    """The hub id that a text spells, `owner/name` or `owner/name@revision`; None where it cannot be one."""
    repo, at, revision = text.partition("@")
    parts = repo.split("/")
    legal = len(parts) == 2 and all(_PART.fullmatch(part) for part in parts) and len(repo) <= _MAX_ID_CHARS
    if not legal or "--" in repo or ".." in repo or repo.endswith(".git"):
        return None
    # a revision becomes a file name in the cache: no step may lead out of it
    if at and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision or revision.endswith("/")):
        return None
    return HubId(repo, revision or None)
