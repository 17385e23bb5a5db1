"""The bytes of a GGUF header, read so that no file can cost more than a second and 200 MB.

Each count and length is held against the bytes that are left before anything is looped over or allocated, and what one
header may hold altogether is bounded. A broken file ends in one BadInput.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import NoReturn

from kvcli.errors import BadInput
from kvcli.model.gguf.types import MAGIC, NUMBER_FORMATS, NUMBERS, SNIFF_BYTES, is_lfs_pointer, looks_like

VERSIONS = (2, 3)

# The largest vocabulary known has 262,144 tokens and half a million merges, in a header of 16 MB; these bounds leave room
# for several times that.
MAX_HEADER_BYTES = 128 * 2**20
MAX_ARRAY_ITEMS = 2**22
MAX_VALUES = 2**18
MAX_TEXT_BYTES = 8 * 2**20
MAX_KEY_BYTES = 2**16 - 1

_U32, _U64 = Struct("<I"), Struct("<Q")


#: The beginning of a file: of one on the disk, or of one that came over the network.
View = mmap.mmap | bytes


def shown(path: Path) -> str:
    """The file as messages name it; quoted, so that no name can break a line or a terminal."""
    return repr(path.name or str(path))


@contextmanager
def mapped(path: Path) -> Iterator[tuple[mmap.mmap, int]]:
    """The part of the file that can hold a header, and the size in bytes of the whole file. Raises BadInput."""
    name = shown(path)
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise BadInput(f"{name} is a directory, not a GGUF file", hint="name the .gguf file in it", code="is_a_directory")
        if not stat.S_ISREG(mode):
            # opening a pipe would wait for its writer
            raise BadInput(f"{name} is not a regular file", code="not_a_file")
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            if not file_bytes:
                raise BadInput(f"{name} is not a GGUF file: it is empty", hint="download it again", code="not_gguf")
            view = mmap.mmap(file.fileno(), min(file_bytes, MAX_HEADER_BYTES), access=mmap.ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"there is no file {str(path)!r}", code="file_not_found") from None
    except PermissionError:
        raise BadInput(f"{name} may not be read: permission denied", code="permission_denied") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}", code="cannot_read") from None
    with view:
        yield view, file_bytes


class Cursor:
    """Walks a header from `at`, a byte of the file, on. `where` says for messages what is being read."""

    def __init__(self, view: View, path: Path, at: int = 0, where: str = "the header") -> None:
        self.view = view
        self.name = shown(path)
        self.at = at
        self.where = where
        self.values_left, self.items_left, self.text_bytes_left = MAX_VALUES, MAX_ARRAY_ITEMS, MAX_TEXT_BYTES

    def malformed(self, what: str, code: str = "gguf_malformed") -> NoReturn:
        raise BadInput(f"{self.name} is not a GGUF file that kvcli can read: {what}", code=code)

    def need(self, size_bytes: int) -> None:
        """Refuse what the file cannot hold, before anything is done with it."""
        left_bytes = len(self.view) - self.at
        if size_bytes <= left_bytes:
            return
        if size_bytes > MAX_HEADER_BYTES - self.at:
            self.malformed(f"{self.where} would take {size_bytes:,} bytes, and a whole header has at most {MAX_HEADER_BYTES:,}")
        raise BadInput(
            f"{self.name} is cut off: {self.where} takes at least {size_bytes:,} bytes, and {left_bytes:,} are left",
            hint="download it again",
            code="gguf_truncated",
        )

    def spend_values(self, count: int) -> None:
        """Count values that become Python objects."""
        self.values_left -= count
        if self.values_left < 0:
            self.malformed(f"with {self.where} it passes {MAX_VALUES:,} metadata values, more than any model has")

    def spend_items(self, count: int) -> None:
        """Count array elements that are walked over one by one."""
        self.items_left -= count
        if self.items_left < 0:
            self.malformed(f"with {self.where} it passes {MAX_ARRAY_ITEMS:,} array elements, more than any model has")

    def version(self) -> int:
        """The magic and the version, or why this is no file for kvcli."""
        start = self.view[:SNIFF_BYTES]
        # a file of one to three bytes may still be the beginning of a GGUF
        if start[: len(MAGIC)] != MAGIC[: len(start)]:
            if is_lfs_pointer(start):
                raise BadInput(
                    f"{self.name} is not a GGUF file: it is the pointer that Git LFS keeps in the place of one",
                    hint="git lfs pull",
                    code="git_lfs_pointer",
                )
            guess = looks_like(start)
            raise BadInput(f"{self.name} is not a GGUF file" + (f": it looks like {guess}" if guess else ""), code="not_gguf")
        self.need(len(MAGIC) + 4)
        self.at = len(MAGIC)
        version = self.u32()
        if version in VERSIONS:
            return version
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *VERSIONS):
            self.malformed("it is big endian, and kvcli reads little-endian files", code="gguf_big_endian")
        raise BadInput(
            f"{self.name} is a GGUF file of version {version}, and kvcli reads versions 2 and 3",
            hint="convert the model again with a current llama.cpp",
            code="gguf_unsupported_version",
        )

    def u32(self) -> int:
        self.need(4)
        value: int = _U32.unpack_from(self.view, self.at)[0]
        self.at += 4
        return value

    def u64(self) -> int:
        self.need(8)
        value: int = _U64.unpack_from(self.view, self.at)[0]
        self.at += 8
        return value

    def skip(self, size_bytes: int) -> None:
        self.need(size_bytes)
        self.at += size_bytes

    def raw_text(self, size_bytes: int) -> bytes:
        start = self.at
        self.skip(size_bytes)
        self.text_bytes_left -= size_bytes
        if self.text_bytes_left < 0:
            self.malformed(f"with {self.where} it passes {MAX_TEXT_BYTES:,} bytes of text, more than any model has")
        return self.view[start : self.at]

    def text(self) -> str:
        """A value: bytes that are not UTF-8 become U+FFFD, since nothing is looked up by it."""
        return self.raw_text(self.u64()).decode(errors="replace")

    def identifier(self, kind: str) -> str:
        """A key or the name of a tensor: things are looked up by it, so bytes that are not UTF-8 are refused."""
        raw = self.raw_text(self.u64())
        if not 0 < len(raw) <= MAX_KEY_BYTES:
            self.malformed(f"the {kind} of {self.where} has {len(raw):,} bytes")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.malformed(f"the {kind} of {self.where} is not UTF-8: {raw[:40]!r}")

    def numbers(self, type_id: int, count: int) -> tuple[int | float, ...]:
        start = self.at
        self.skip(count * NUMBERS[type_id].size)
        return struct.unpack_from(f"<{count}{NUMBER_FORMATS[type_id]}", self.view, start)

    def skip_strings(self, count: int) -> None:
        # The one hot loop, a million rounds for a large vocabulary: unpack_from itself refuses to read past the end.
        view, at, unpack_from = self.view, self.at, _U64.unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack_from(view, at)[0]
        except (struct.error, OverflowError):
            at += 8
        self.skip(at - self.at)

    def strings(self, count: int) -> list[str]:
        texts: list[str] = []
        view, at, unpack_from = self.view, self.at, _U64.unpack_from
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack_from(view, at)[0]
                texts.append(view[start:at].decode(errors="replace"))
        except (struct.error, OverflowError):
            at += 8
        self.skip(at - self.at)
        return texts
