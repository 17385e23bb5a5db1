"""The numbers that GGUF files use for types, and what else a file may be that is not a GGUF.

Tensor types carry the ids of `enum ggml_type`, metadata values those of `enum gguf_type`.
"""

from __future__ import annotations

from struct import Struct

from kvcli import dtypes
from kvcli.dtypes import DType

MAGIC = b"GGUF"

_TENSOR_TYPE_NAMES = {
    0: "fp32",
    1: "fp16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    9: "q8_1",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "fp64",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4_ggml",
}

#: What a tensor with that type id is stored as. The block of q8_1 is ggml's own 36 bytes; the `gguf` package says 40, which
#: was true when its two scales were still fp32.
TENSOR_TYPES: dict[int, DType] = {type_id: (dtypes.PLAIN | dtypes.FILE_ONLY)[name] for type_id, name in _TENSOR_TYPE_NAMES.items()}

#: Ids that ggml once gave out and took back: no engine of today reads them.
REMOVED_TENSOR_TYPES = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}

STRING, ARRAY = 8, 9

#: The `struct` letter of each metadata type of fixed size.
NUMBER_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
NUMBERS = {type_id: Struct("<" + letter) for type_id, letter in NUMBER_FORMATS.items()}

#: Enough of a file to tell what it is.
SNIFF_BYTES = 512

_SIGNATURES = (
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x89HDF", "an HDF5 file"),
    (b"lmgg", "a GGML file from before GGUF"),
    (b"fmgg", "a GGML file from before GGUF"),
    (b"tjgg", "a GGML file from before GGUF"),
)


def is_lfs_pointer(start: bytes) -> bool:
    """Whether this is the text that Git keeps in the place of a large file."""
    return start.startswith((b"version https://git-lfs", b"version https://hawser"))


def looks_like(start: bytes) -> str:
    """What a file that begins so may be, with its article; empty where nothing fits."""
    for signature, what in _SIGNATURES:
        if start.startswith(signature):
            return what
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a Python pickle"
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        return "an HTML page"
    # a safetensors file is the length of a JSON object, then that object
    if start[8:9] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= 10**8:
        return "a safetensors file"
    if text.startswith((b"{", b"[")):
        return "a JSON file"
    if not start.strip(b"\0"):
        return "a file of zeros, as an unfinished download leaves"
    return ""
