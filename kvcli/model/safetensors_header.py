"""Read the header of a safetensors file: which tensors it holds and how many bytes each takes, never the tensors.

The file is: u64 length of the header, little endian | JSON {name: {dtype, shape, data_offsets}} | tensor data, without gaps
(github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from kvcli.errors import BadInput
from kvcli.model.gguf.types import is_lfs_pointer, looks_like

#: What the format allows a header to take.
MAX_HEADER_BYTES = 100_000_000
#: What kvcli reads of that, so that no file costs more than a second and 200 MB: a header of a hundred thousand tensors has 13 MB.
#: Text that is not ASCII takes four times its size once decoded.
MAX_ASCII_BYTES = 48 * 2**20
MAX_TEXT_BYTES = 12 * 2**20
#: Commas and opening brackets in one header, eight for a tensor; the largest known checkpoints have some hundred thousand
#: tensors in all their files.
MAX_MARKS = 900_000
LENGTH_BYTES = 8
#: Enough of a start to tell what else a file is.
SNIFF_BYTES = 512

#: `read(at, count)` gives `count` bytes of a file from byte `at` on, fewer only where the file ends.
Read = Callable[[int, int], bytes]

#: Bits of one element, by the names the format knows. F4 and F6 are stored packed.
TYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class StoredTensor(NamedTuple):
    """One tensor. `dtype` is the format's own name, `elements` counts stored elements (packed ones by their container)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    size_bytes: int


def read_safetensors_header(path: Path) -> list[StoredTensor]:
    """The tensors of the file at `path`, in the order of its header.

    Raises BadInput that names the file: missing, cut short, no safetensors file, or contradicting itself.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadInput(f"{path} is not a regular file", code="unreadable_file")
        with path.open("rb", buffering=0) as file:
            file_bytes = os.fstat(file.fileno()).st_size

            def read(at: int, count: int) -> bytes:
                file.seek(at)
                parts = []
                while count and (part := file.read(count)):
                    parts.append(part)
                    count -= len(part)
                return b"".join(parts)

            raw = header_json(str(path), file_bytes, read)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", code="unreadable_file") from None
    except ValueError as error:  # a NUL byte in the path
        raise BadInput(f"{str(path)[:80]!r} cannot be a path: {error}", code="unreadable_file") from None
    return parse_header(str(path), raw, file_bytes)


def header_json(where: str, file_bytes: int, read: Read) -> bytes:
    """The JSON of a file of `file_bytes` that `read(at, count)` reads from: two reads, no more than the header.

    `where` names the file in messages. Raises BadInput for what is no safetensors file or ends within its header, and what
    `read` raises.
    """
    start = read(0, min(SNIFF_BYTES, file_bytes))
    if is_lfs_pointer(start):
        raise BadInput(f"{where} is a Git LFS pointer, not the file itself", hint="git lfs pull", code="git_lfs_pointer")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if len(start) < LENGTH_BYTES or length > MAX_HEADER_BYTES or start[8:9] != b"{":
        _refuse_kind(where, start, length)
    if LENGTH_BYTES + length > file_bytes:
        _truncated(where, LENGTH_BYTES + length, file_bytes)
    if length > MAX_ASCII_BYTES:
        raise _malformed(where, f"its header has {length:,} bytes, more than any model's")
    raw = read(LENGTH_BYTES, length)
    if len(raw) < length:
        _truncated(where, LENGTH_BYTES + length, LENGTH_BYTES + len(raw))
    return raw


def parse_header(where: str, raw: bytes, file_bytes: int) -> list[StoredTensor]:
    """The tensors that the JSON `raw` of a file of `file_bytes` names, in its order. Raises BadInput that names `where`."""
    return _tensors(where, _entries(where, raw), file_bytes - LENGTH_BYTES - len(raw), LENGTH_BYTES + len(raw))


def _refuse_kind(where: str, start: bytes, length: int) -> NoReturn:
    if len(start) < LENGTH_BYTES:
        raise BadInput(f"{where} has {len(start)} bytes, which is no safetensors file", code="safetensors_truncated")
    what = looks_like(start)
    if what and what != "a safetensors file":
        raise BadInput(f"{where} is {what}, not a safetensors file", code="not_safetensors")
    why = f"of {length:,} bytes, over {MAX_HEADER_BYTES:,}" if length > MAX_HEADER_BYTES else "that does not begin with '{'"
    raise BadInput(f"{where} is no safetensors file: it promises a header {why}", code="not_safetensors")


def _truncated(where: str, wanted_bytes: int, file_bytes: int) -> NoReturn:
    raise BadInput(
        f"{where} is cut short: it promises {wanted_bytes:,} bytes and has {file_bytes:,}",
        hint="download it again",
        code="safetensors_truncated",
    )


def _malformed(where: str, why: str) -> BadInput:
    return BadInput(f"{where} contradicts itself: {why}", code="safetensors_malformed")


def _entries(where: str, raw: bytes) -> dict[str, Any]:
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_MARKS:
        raise _malformed(where, f"its header has over {MAX_MARKS:,} values, more than any model's")
    if len(raw) > MAX_TEXT_BYTES and not raw.isascii():
        raise _malformed(where, f"its header has {len(raw):,} bytes that are not plain text, more than any model's")
    try:
        entries = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise _malformed(where, f"its header is not UTF-8 at byte {error.start:,}") from None
    except RecursionError:
        raise _malformed(where, "its header is nested too deeply") from None
    except ValueError as error:
        raise _malformed(where, f"its header is not JSON: {str(error)[:120]}") from None
    if not isinstance(entries, dict):
        raise _malformed(where, f"its header is a {type(entries).__name__}, not a JSON object")
    metadata = entries.pop("__metadata__", None)
    if metadata is not None and not isinstance(metadata, dict):
        raise _malformed(where, "its __metadata__ is not a JSON object")
    # a name that stands twice leaves one entry only: the count of the text tells, and only then is it parsed slowly
    if raw.count(b'"data_offsets"') != len(entries):
        _refuse_duplicates(where, raw)
    return entries


def _refuse_duplicates(where: str, raw: bytes) -> None:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    raise _malformed(where, f"{name[:80]!r} stands twice in its header")
                seen.add(name)
        return found

    json.loads(raw.decode(), object_pairs_hook=once)


def _tensors(where: str, entries: dict[str, Any], data_bytes: int, header_bytes: int) -> list[StoredTensor]:
    tensors: list[StoredTensor] = []
    begins: list[int] = []
    ends: list[int] = []
    # a model has few shapes: each is checked once
    sizes: dict[tuple[object, ...], tuple[tuple[int, ...], int, int]] = {}
    for name, entry in entries.items():
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            key = (dtype, *shape)
            known = sizes.get(key)
            if known is None:
                known = sizes[key] = _size(where, name, dtype, shape)
            if type(begin) is not int or type(end) is not int:
                raise TypeError
        except (KeyError, TypeError, ValueError):
            text = "should have dtype, shape and two data_offsets"
            raise _malformed(where, f"the entry of {name[:80]!r} {text}") from None
        dims, elements, size_bytes = known
        if end - begin != size_bytes:
            shown = "x".join(map(str, dims[:8])) or "1"
            raise _malformed(where, f"{name[:80]!r} is {shown} {dtype}, {size_bytes:,} bytes, with {end - begin:,} bytes of data")
        begins.append(begin)
        ends.append(end)
        tensors.append(StoredTensor(name, dtype, dims, elements, size_bytes))
    _check_spans(where, tensors, begins, ends, data_bytes, header_bytes)
    return tensors


def _size(where: str, name: str, dtype: object, shape: object) -> tuple[tuple[int, ...], int, int]:
    """Shape, elements and bytes. Raises BadInput for an unknown type, TypeError for a shape that is no list of counts."""
    if not isinstance(dtype, str) or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise TypeError
    if dtype not in TYPE_BITS:
        raise _malformed(where, f"{name[:80]!r} has the unknown type {dtype[:40]!r}")
    if len(shape) > 64 or any(n >= 2**63 for n in shape):
        raise _malformed(where, f"{name[:80]!r} has an impossible shape")
    elements = math.prod(shape)
    size_bytes, rest = divmod(elements * TYPE_BITS[dtype], 8)
    if rest:
        raise _malformed(where, f"{name[:80]!r} has {elements:,} elements of {dtype}, which do not fill whole bytes")
    return tuple(shape), elements, size_bytes


def _check_spans(where: str, tensors: list[StoredTensor], begins: list[int], ends: list[int], data_bytes: int, header_bytes: int) -> None:
    """The data is the tensors one behind the other, without gaps or overlaps, to the end of the file."""
    if begins != [0, *ends[:-1]][: len(begins)]:  # not in the header's order: look closer
        at, before = 0, "the header"
        for begin, end, tensor in sorted(zip(begins, ends, tensors, strict=True)):
            if begin != at:
                how = "overlaps" if begin < at else f"leaves a gap of {begin - at:,} bytes behind"
                raise _malformed(where, f"{tensor.name[:80]!r} {how} {before}")
            at, before = end, repr(tensor.name[:80])
    end = max(ends, default=0)
    if end > data_bytes:
        _truncated(where, header_bytes + end, header_bytes + data_bytes)
    if end < data_bytes:
        raise _malformed(where, f"{data_bytes - end:,} bytes follow its last tensor")
