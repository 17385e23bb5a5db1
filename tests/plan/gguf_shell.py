"""GGUF files that have a header and no data: enough for llama.cpp to say what it would make of their tensors.

The file is as long as its tensors would be, but holds nothing (a sparse file), so models of any size take no space.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack

F32, F16 = 0, 1
ALIGNMENT = 32


def text(value: str) -> bytes:
    return pack("<Q", len(value.encode())) + value.encode()


def typed(value) -> bytes:
    """A metadata value after its type: bool, uint32, float32, string, or a list of one of them."""
    if isinstance(value, bool):
        return pack("<I?", 7, value)
    if isinstance(value, int):
        return pack("<II", 4, value)
    if isinstance(value, float):
        return pack("<If", 6, value)
    if isinstance(value, str):
        return pack("<I", 8) + text(value)
    items = [typed(item) for item in value]
    return pack("<I", 9) + items[0][:4] + pack("<Q", len(items)) + b"".join(item[4:] for item in items)


def write(path: Path, metadata: dict, tensors: list[tuple[str, tuple[int, ...], int]]) -> Path:
    """`tensors`: (name, shape from the innermost dimension on, F32 or F16)."""
    infos, offset = [], 0
    for name, shape, kind in tensors:
        infos.append(text(name) + pack("<I", len(shape)) + b"".join(pack("<Q", size) for size in shape) + pack("<IQ", kind, offset))
        elements = 1
        for size in shape:
            elements *= size
        offset += -(-elements * (4 if kind == F32 else 2) // ALIGNMENT) * ALIGNMENT
    head = b"GGUF" + pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + typed(value) for key, value in metadata.items()) + b"".join(infos)
    head += bytes(-len(head) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)
    return path
