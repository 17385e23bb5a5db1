"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os

from kvcli.errors import BadInput, CannotRunHere, KvcliError


def replace_text(path: str, text: str) -> None:
    """As `replace_bytes`, in UTF-8."""
    replace_bytes(path, text.encode())


def replace_bytes(path: str, data: bytes) -> None:
    """Replaces the file in one step, following links; a reader sees the old bytes or the new. What is no regular file (a pipe, a device)
    is written to. Raises OSError."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as file:
            file.write(data)
        return
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    made = os.path.join(folder, f".{name[:200]}.{os.getpid()}.tmp")
    try:
        # the mode that the umask leaves, since the file is read by others
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(data)
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


def unwritable(path: str, error: OSError) -> KvcliError:
    """What a user is told of a file that could not be written: what is wrong with its name, or with this machine."""
    reason = error.strerror or error
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return CannotRunHere(f"{path} cannot be written: {reason}", hint="free some space", code="disk_full")
    return BadInput(f"{path} cannot be written: {reason}", hint="name a file in a folder that exists", code="unwritable_file")
