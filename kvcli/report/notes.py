"""Notes beside an answer, each kind once."""

from __future__ import annotations

from collections.abc import Iterable

from kvcli.errors import Notice


def note_lines(notices: Iterable[Notice]) -> list[str]:
    """The first message of each code, and how many others of its kind there are."""
    messages: dict[str, dict[str, None]] = {}
    for notice in notices:
        messages.setdefault(notice.code, {})[notice.message] = None
    lines = []
    for first, *more in messages.values():
        lines.append(first + (f" (and {len(more)} more notes of this kind)" if more else ""))
    return lines
