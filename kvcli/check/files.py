"""Files that are written whole or not at all."""

from __future__ import annotations

import os


def replace_text(path: str, text: str) -> None:
    """Replaces the file in one step, following links; a reader sees the old text or the new. What is no regular file (a pipe, a device)
    is written to. Raises OSError."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        return
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    made = os.path.join(folder, f".{name[:200]}.{os.getpid()}.tmp")
    try:
        # the mode that the umask leaves, since the file is read by others
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(made, target)
    finally:
        if os.path.lexists(made):
            os.unlink(made)


def append_text(path: str, text: str) -> None:
    """Adds to the end; where that fails, what was there stays as it was. Raises OSError."""
    with open(path, "ab", buffering=0) as file:
        start = file.tell() if file.seekable() else None
        left = memoryview(text.encode())
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            if start is not None and os.path.isfile(path):
                file.truncate(start)
            raise
