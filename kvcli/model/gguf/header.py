"""Read the header of a GGUF file: metadata and where each tensor lies, never the tensors, nor the vocabulary until asked.

The file is: "GGUF" | u32 version | u64 tensors | u64 metadata entries | entries | tensor infos | padding | tensor data
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from kvcli.dtypes import DType
from kvcli.errors import BadInput
from kvcli.model.gguf.cursor import Cursor, View, mapped, shown
from kvcli.model.gguf.types import ARRAY, MAGIC, NUMBERS, REMOVED_TENSOR_TYPES, STRING, TENSOR_TYPES

#: Longer arrays of numbers, longer arrays of strings, and longer strings stay unread, as an ArrayRef.
SHORT_NUMBERS = 4096
SHORT_STRINGS = 64
SHORT_TEXT_BYTES = 2**20

DEFAULT_ALIGNMENT_BYTES = 32
MAX_ALIGNMENT_BYTES = 16 * 2**20
MAX_TENSORS = 2**16
MAX_DIMENSIONS = 4

# the least that a metadata entry takes (key length, one letter, type, value), that a tensor info takes (name length, one
# letter, dimensions, type, offset), and that an array in an array takes (type, count)
_ENTRY_BYTES, _INFO_BYTES, _ARRAY_BYTES = 8 + 1 + 4 + 1, 8 + 1 + 4 + 4 + 8, 4 + 8


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array that was skipped: `count` elements of the metadata type `element_type` from byte `offset` of the file on.

    A single string longer than SHORT_TEXT_BYTES is one too, with a count of 1.
    """

    element_type: int
    count: int
    offset: int


Scalar = str | int | float | bool
Array = tuple[Scalar, ...] | ArrayRef
#: What a metadata key can hold; GGUF lets arrays stand in arrays, and kvcli reads that one level.
Value = Scalar | Array | tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor. `shape` has the fastest dimension first, as ggml has it; `offset` counts bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    type_id: int
    offset: int
    size_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What the file says of itself. `data_offset` is the byte where tensor data begins, `file_bytes` the size of the file."""

    path: Path
    version: int
    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    file_bytes: int

    def strings(self, key: str) -> list[str]:
        """The array of strings under `key`, read from the file now; bytes that are not UTF-8 become U+FFFD.

        Raises BadInput where there is no such array, or the file has changed since.
        """
        found = self.metadata.get(key)
        if isinstance(found, tuple):
            texts = [item for item in found if isinstance(item, str)]
            if len(texts) == len(found):
                return texts
        if isinstance(found, ArrayRef) and found.element_type == STRING:
            with self._cursor(key, found) as cursor:
                return cursor.strings(found.count)
        raise self._missing(key, "an array of strings")

    def numbers(self, key: str) -> list[int | float]:
        """The array of numbers under `key`, read from the file now.

        Raises BadInput where there is no such array, it has more than four million elements, or the file has changed since.
        """
        found = self.metadata.get(key)
        if isinstance(found, tuple):
            values = [item for item in found if isinstance(item, int | float)]
            if len(values) == len(found):
                return values
        if isinstance(found, ArrayRef) and found.element_type in NUMBERS:
            with self._cursor(key, found) as cursor:
                cursor.spend_items(found.count)
                return list(cursor.numbers(found.element_type, found.count))
        raise self._missing(key, "an array of numbers")

    @contextmanager
    def _cursor(self, key: str, array: ArrayRef) -> Iterator[Cursor]:
        with mapped(self.path) as (view, file_bytes):
            if file_bytes != self.file_bytes:
                raise BadInput(f"{shown(self.path)} has changed since its header was read", code="gguf_changed")
            yield Cursor(view, self.path, array.offset, repr(key))

    def _missing(self, key: str, what: str) -> BadInput:
        state = "is something else" if key in self.metadata else "is not there"
        return BadInput(f"{shown(self.path)} should have {what} under {key!r}, which {state}", code="gguf_missing_value")


def is_gguf(path: Path) -> bool:
    """Whether the file begins as a GGUF does. A file that cannot be read does not."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def read_header(path: Path, check_data: bool = True) -> GgufHeader:
    """The header of the GGUF file at `path`, versions 2 and 3, little endian.

    `check_data=False` accepts a file that ends before its tensors do, such as the first megabytes of a download.
    Raises BadInput for a file that is missing, cannot be read, is no GGUF, or contradicts itself.
    """
    with mapped(path) as (view, file_bytes):
        return parse_header(view, path, file_bytes, check_data)


def parse_header(view: View, path: Path, file_bytes: int, check_data: bool = True) -> GgufHeader:
    """The header at the start of a file of `file_bytes`, of which `view` is the beginning. `path` names it in messages.

    Raises BadInput as read_header does, with the code `gguf_truncated` where `view` ends within the header.
    """
    cursor = Cursor(view, path)
    version = cursor.version()
    tensor_count, entry_count = cursor.u64(), cursor.u64()
    metadata = _metadata(cursor, entry_count)
    tensors, data_offset = _tensors(cursor, tensor_count, _alignment_bytes(cursor, metadata))
    _check_places(cursor, tensors, file_bytes if check_data else None)
    return GgufHeader(path, version, metadata, tensors, data_offset, file_bytes)


def _metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    cursor.where = f"a list of {count:,} metadata entries"
    cursor.need(count * _ENTRY_BYTES)
    cursor.spend_values(count)
    metadata: dict[str, Value] = {}
    for index in range(count):
        cursor.where = f"metadata entry {index}"
        key = cursor.identifier("key")
        cursor.where = repr(key[:80])
        if key in metadata:
            cursor.malformed(f"the metadata key {cursor.where} stands twice")
        metadata[key] = _value(cursor)
    return metadata


def _value(cursor: Cursor) -> Value:
    value_type = cursor.u32()
    if value_type == STRING:
        size_bytes = cursor.u64()
        if size_bytes <= SHORT_TEXT_BYTES:
            return cursor.raw_text(size_bytes).decode(errors="replace")
        reference = ArrayRef(STRING, 1, cursor.at - 8)
        cursor.skip(size_bytes)
        return reference
    if value_type == ARRAY:
        element_type = cursor.u32()
        if element_type != ARRAY:
            return _array(cursor, element_type)
        count = cursor.u64()
        cursor.need(count * _ARRAY_BYTES)
        cursor.spend_values(count)
        return tuple(_array(cursor, cursor.u32()) for _ in range(count))
    if value_type not in NUMBERS:
        cursor.malformed(f"{cursor.where} has the unknown value type {value_type}")
    return cursor.numbers(value_type, 1)[0]


def _array(cursor: Cursor, element_type: int) -> Array:
    count = cursor.u64()
    if element_type == STRING:
        cursor.need(count * 8)
        cursor.spend_items(count)
        if count <= SHORT_STRINGS:
            return tuple(cursor.text() for _ in range(count))
        reference = ArrayRef(STRING, count, cursor.at)
        cursor.skip_strings(count)
        return reference
    if element_type == ARRAY:
        cursor.malformed(f"{cursor.where} nests arrays more than one deep")
    if element_type not in NUMBERS:
        cursor.malformed(f"{cursor.where} is an array of the unknown value type {element_type}")
    if count <= SHORT_NUMBERS:
        cursor.spend_values(count)
        return cursor.numbers(element_type, count)
    reference = ArrayRef(element_type, count, cursor.at)
    cursor.skip(count * NUMBERS[element_type].size)
    return reference


def _alignment_bytes(cursor: Cursor, metadata: dict[str, Value]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    # `type`, because True is an int too; a power of two has one bit
    if type(value) is int and 0 < value <= MAX_ALIGNMENT_BYTES and value.bit_count() == 1:
        return value
    cursor.malformed(f"its general.alignment is {str(value)[:40]!r}, not a power of two up to {MAX_ALIGNMENT_BYTES:,}")


def _tensors(cursor: Cursor, count: int, alignment_bytes: int) -> tuple[tuple[TensorInfo, ...], int]:
    """The tensors, and the byte where their data begins: the first multiple of the alignment after the last info."""
    cursor.where = f"a list of {count:,} tensors"
    cursor.need(count * _INFO_BYTES)
    if count > MAX_TENSORS:
        cursor.malformed(f"it claims {count:,} tensors, more than the {MAX_TENSORS:,} that any model has")
    infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for index in range(count):
        cursor.where = f"tensor {index}"
        name = cursor.identifier("name")
        cursor.where = f"tensor {name[:80]!r}"
        if name in infos:
            cursor.malformed(f"{cursor.where} stands twice")
        dimensions = cursor.u32()
        if dimensions > MAX_DIMENSIONS:
            cursor.malformed(f"{cursor.where} has {dimensions:,} dimensions, and ggml has at most {MAX_DIMENSIONS}")
        infos[name] = (tuple(cursor.u64() for _ in range(dimensions)), cursor.u32(), cursor.u64())
    data_offset = -(-cursor.at // alignment_bytes) * alignment_bytes
    tensors = []
    for name, (shape, type_id, relative_offset) in infos.items():
        cursor.where = f"tensor {name[:80]!r}"
        if relative_offset % alignment_bytes:
            cursor.malformed(f"{cursor.where} lies at offset {relative_offset:,}, which is no multiple of {alignment_bytes:,}")
        dtype = _dtype(cursor, type_id, shape)
        tensors.append(TensorInfo(name, shape, dtype, type_id, data_offset + relative_offset, dtype.bytes_for(math.prod(shape))))
    return tuple(tensors), data_offset


def _dtype(cursor: Cursor, type_id: int, shape: tuple[int, ...]) -> DType:
    """The type with that id, once it can store that shape."""
    dtype = TENSOR_TYPES.get(type_id)
    if dtype is None:
        removed = REMOVED_TENSOR_TYPES.get(type_id)
        reason = f"{removed}, which ggml has removed" if removed else "which kvcli does not know"
        cursor.malformed(f"{cursor.where} has type id {type_id}, {reason}", code="gguf_unknown_tensor_type")
    # ggml counts in signed 64-bit numbers
    if not 0 < math.prod(shape) < 2**63:
        cursor.malformed(f"{cursor.where} has the impossible shape {list(shape)}")
    row_elements = shape[0] if shape else 1
    if row_elements % dtype.block_elements:
        blocks = f"{dtype.name} blocks of {dtype.block_elements}"
        cursor.malformed(f"{cursor.where} has rows of {row_elements:,} elements, which do not fill {blocks}")
    return dtype


def _check_places(cursor: Cursor, tensors: tuple[TensorInfo, ...], file_bytes: int | None) -> None:
    """Refuse tensors that overlap, and, where `file_bytes` is given, tensors that end after the file does."""
    in_order = sorted(tensors, key=attrgetter("offset"))
    for before, after in pairwise(in_order):
        if before.offset + before.size_bytes > after.offset:
            cursor.malformed(f"the tensors {before.name[:80]!r} and {after.name[:80]!r} overlap")
    if not in_order or file_bytes is None:
        return
    promised_bytes = in_order[-1].offset + in_order[-1].size_bytes
    if promised_bytes > file_bytes:
        raise BadInput(
            f"{cursor.name} is truncated: its header promises {promised_bytes:,} bytes, and the file has {file_bytes:,}",
            hint="download it again",
            code="gguf_truncated",
        )
