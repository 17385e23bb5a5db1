"""The GGUF header reader, against headers packed by hand, against the `gguf` package, and against broken files."""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcli.errors import BadInput
from kvcli.model.gguf.header import ArrayRef, GgufHeader, is_gguf, read_header
from kvcli.model.gguf.types import REMOVED_TENSOR_TYPES, TENSOR_TYPES

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
HUGE = (2**64 - 1, 2**64 - 8, 2**63, 2**63 - 1, 2**61, 2**32)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def entry(key: str | bytes, value_type: int, payload: bytes) -> bytes:
    return text(key) + u32(value_type) + payload


def array(element_type: int, count: int, payload: bytes) -> bytes:
    return u32(element_type) + u64(count) + payload


def info(name: str | bytes, shape: tuple[int, ...], type_id: int, offset: int) -> bytes:
    return text(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(type_id) + u64(offset)


def gguf(
    entries: list[bytes] | None = None, infos: list[bytes] | None = None, data_bytes: int = 4096, version: int = 3, alignment: int = 32
) -> bytes:
    entries, infos = entries or [], infos or []
    head = b"GGUF" + u32(version) + u64(len(infos)) + u64(len(entries)) + b"".join(entries) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + bytes(data_bytes)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def to_file(content: bytes) -> Path:
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        return path

    return to_file


def refused(path: Path, code: str, *words: str, hint: str = "", **options: Any) -> BadInput:
    """The error of that code, one sentence that names the file and has those words, in under a second."""
    start_s = time.process_time()
    with pytest.raises(BadInput) as caught:
        read_header(path, **options)
    assert time.process_time() - start_s < 1.0
    error = caught.value
    assert error.code == code, error.message
    assert path.name in error.message and "\n" not in error.message
    assert not error.message.endswith(".")
    for word in words:
        assert word in error.message, error.message
    assert hint in error.hint
    return error


# what a valid file says


@pytest.mark.parametrize("version", [2, 3])
def test_hand_packed_file_reads_back(write: Callable[[bytes], Path], version: int) -> None:
    entries = [
        entry("a.u8", U8, b"\xff"),
        entry("a.i8", I8, b"\xff"),
        entry("a.u16", U16, b"\x01\x02"),
        entry("a.i16", I16, b"\xfe\xff"),
        entry("a.u32", U32, u32(2**32 - 1)),
        entry("a.i32", I32, u32(2**32 - 1)),
        entry("a.f32", F32, b"\x00\x00\xc0\x3f"),
        entry("a.bool", BOOL, b"\x01"),
        entry("a.string", STRING, text("Ġhé")),
        entry("a.u64", U64, u64(2**64 - 1)),
        entry("a.i64", I64, u64(2**64 - 2)),
        entry("a.f64", F64, b"\0\0\0\0\0\0\xf8\x3f"),
        entry("heads", ARRAY, array(U32, 3, u32(8) + u32(0) + u32(4))),
        entry("words", ARRAY, array(STRING, 2, text("a") + text(""))),
        entry("flags", ARRAY, array(BOOL, 2, b"\x00\x01")),
        entry("none", ARRAY, array(STRING, 0, b"")),
        entry("nested", ARRAY, array(ARRAY, 2, array(U8, 2, b"\x01\x02") + array(STRING, 1, text("x")))),
    ]
    infos = [info("w", (64, 3), 2, 0), info("b", (5,), 0, 128), info("scalar", (), 1, 160)]
    header = read_header(write(gguf(entries, infos, data_bytes=162, version=version)))
    assert header.version == version
    assert header.metadata == {
        "a.u8": 255,
        "a.i8": -1,
        "a.u16": 0x0201,
        "a.i16": -2,
        "a.u32": 4294967295,
        "a.i32": -1,
        "a.f32": 1.5,
        "a.bool": True,
        "a.string": "Ġhé",
        "a.u64": 18446744073709551615,
        "a.i64": -2,
        "a.f64": 1.5,
        "heads": (8, 0, 4),
        "words": ("a", ""),
        "flags": (False, True),
        "none": (),
        "nested": ((1, 2), ("x",)),
    }
    assert header.metadata["a.bool"] is True
    first, _, third = header.tensors
    assert (first.name, first.shape, first.dtype.name, first.type_id, first.elements) == ("w", (64, 3), "q4_0", 2, 192)
    # 192 elements are six blocks of 32, each 16 bytes of nibbles and two of scale
    assert [t.size_bytes for t in header.tensors] == [6 * 18, 5 * 4, 2]
    assert third.elements == 1
    assert [t.offset - header.data_offset for t in header.tensors] == [0, 128, 160]
    assert header.data_offset % 32 == 0 and header.data_offset + 162 == header.file_bytes
    assert header.strings("words") == ["a", ""] and header.strings("none") == [] and header.numbers("heads") == [8, 0, 4]


def test_smallest_file_byte_for_byte(write: Callable[[bytes], Path]) -> None:
    content = bytes.fromhex(
        "47475546 03000000 0100000000000000 0100000000000000"  # magic, version, one tensor, one entry
        "0100000000000000 6b 04000000 07000000"  # key "k", type u32, 7
        "0100000000000000 74 01000000 0200000000000000 01000000 0000000000000000"  # tensor "t", [2], fp16, offset 0
    )
    assert len(content) == 24 + 17 + 33
    header = read_header(write(content + bytes(96 - 74) + bytes(4)))
    assert header.metadata == {"k": 7}
    assert header.data_offset == 96 and header.tensors[0].offset == 96 and header.tensors[0].size_bytes == 4


def test_long_arrays_stay_unread_until_asked(write: Callable[[bytes], Path]) -> None:
    words = [f"word{n}" for n in range(65)]
    path = write(
        gguf(
            [
                entry("words64", ARRAY, array(STRING, 64, b"".join(map(text, words[:64])))),
                entry("words65", ARRAY, array(STRING, 65, b"".join(map(text, words)))),
                entry("n4096", ARRAY, array(I16, 4096, struct.pack("<4096h", *range(-2048, 2048)))),
                entry("n4097", ARRAY, array(I16, 4097, struct.pack("<4097h", *range(-2048, 2049)))),
                entry("essay", STRING, text("é" * 2**20)),
                entry("last", U8, b"\x05"),
            ]
        )
    )
    header = read_header(path)
    assert header.metadata["words64"] == tuple(words[:64])
    assert header.metadata["n4096"] == tuple(range(-2048, 2048))
    found = header.metadata["words65"]
    assert isinstance(found, ArrayRef) and (found.element_type, found.count) == (STRING, 65)
    assert path.read_bytes()[found.offset :].startswith(text("word0") + text("word1"))
    assert header.strings("words65") == words
    found = header.metadata["n4097"]
    assert isinstance(found, ArrayRef) and (found.element_type, found.count) == (I16, 4097)
    assert header.numbers("n4097") == list(range(-2048, 2049))
    assert isinstance(header.metadata["essay"], ArrayRef) and header.strings("essay") == ["é" * 2**20]
    assert header.metadata["last"] == 5
    for key, read in (("words65", header.numbers), ("n4097", header.strings), ("last", header.strings), ("absent", header.numbers)):
        with pytest.raises(BadInput) as caught:
            read(key)
        assert caught.value.code == "gguf_missing_value" and key in caught.value.message
    path.write_bytes(path.read_bytes() + b"\0")
    for late in (lambda: header.strings("words65"), lambda: header.numbers("n4097")):
        with pytest.raises(BadInput) as caught:
            late()
        assert caught.value.code == "gguf_changed"


def test_values_that_are_not_utf8_are_kept_readable(write: Callable[[bytes], Path]) -> None:
    many = array(STRING, 65, text(b"\xff") * 65)
    header = read_header(write(gguf([entry("a", STRING, text(b"x\xffy")), entry("b", ARRAY, many)])))
    assert header.metadata["a"] == "x\ufffdy"
    assert header.strings("b") == ["\ufffd"] * 65


@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_alignment_places_the_data(write: Callable[[bytes], Path], alignment: int) -> None:
    content = gguf([entry("general.alignment", U32, u32(alignment))], [info("w", (4,), 0, alignment)], alignment + 16, alignment=alignment)
    header = read_header(write(content))
    assert header.data_offset % alignment == 0
    assert header.tensors[0].offset == header.data_offset + alignment
    assert header.tensors[0].offset + 16 == header.file_bytes


def test_a_vocabulary_without_tensors_reads(write: Callable[[bytes], Path]) -> None:
    header = read_header(write(gguf([entry("general.architecture", STRING, text("llama"))], data_bytes=0)))
    assert header.tensors == () and header.metadata == {"general.architecture": "llama"}


def test_tensors_may_stand_in_any_order_and_touch(write: Callable[[bytes], Path]) -> None:
    header = read_header(write(gguf([], [info("late", (8,), 0, 32), info("early", (8,), 0, 0)], data_bytes=64)))
    assert [t.name for t in header.tensors] == ["late", "early"]


# against the gguf package


def test_type_ids_and_blocks_are_those_of_the_gguf_package() -> None:
    constants = pytest.importorskip("gguf").constants
    for type_id, dtype in TENSOR_TYPES.items():
        expected = constants.GGML_QUANT_SIZES[constants.GGMLQuantizationType(type_id)]
        if dtype.name == "q8_1":
            # ggml's block has two fp16 scales and 32 bytes; the package still counts fp32 scales
            assert expected == (32, 40) and (dtype.block_elements, dtype.block_bytes) == (32, 36)
        else:
            assert (dtype.block_elements, dtype.block_bytes) == expected, dtype.name
        plain = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"}
        name = constants.GGMLQuantizationType(type_id).name.lower()
        assert dtype.name.removesuffix("_ggml") == plain.get(name, name)
    known = {int(t) for t in constants.GGMLQuantizationType}
    assert not known & set(REMOVED_TENSOR_TYPES)
    assert {t for t in known if t <= 40} == set(TENSOR_TYPES)


def same_as_the_package(header: GgufHeader) -> None:
    reader = pytest.importorskip("gguf").GGUFReader(header.path)
    assert [(t.name, t.shape, t.type_id, t.offset, t.size_bytes, t.elements) for t in header.tensors] == [
        (t.name, tuple(int(n) for n in t.shape), int(t.tensor_type), t.data_offset, t.n_bytes, t.n_elements) for t in reader.tensors
    ]
    assert header.data_offset == reader.data_offset
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(header.metadata) == list(fields)
    for key, value in header.metadata.items():
        expected = fields[key].contents()
        if isinstance(value, ArrayRef):
            read: list[Any] = header.strings(key) if value.element_type == STRING else list(header.numbers(key))
            assert read == expected, key
        else:
            assert (list(value) if isinstance(value, tuple) else value) == expected, key


def test_a_file_of_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    gguf_package = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "made.gguf"
    writer = gguf_package.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.5)
    writer.add_bool("flag", False)
    writer.add_int64("small", -5)
    writer.add_float64("fine", 0.1)
    writer.add_custom_alignment(64)
    writer.add_head_count_kv([8, 4])
    writer.add_token_list([f"t{n}é" for n in range(300)])
    writer.add_token_scores([n / 3 for n in range(5000)])
    writer.add_token_types([n % 4 for n in range(5000)])
    writer.add_chat_template("{{ messages }}")
    for number, (type_id, dtype) in enumerate(sorted(TENSOR_TYPES.items())):
        if dtype.block_elements == 1 and dtype.name != "bf16":
            kinds = {"fp32": "f4", "fp16": "f2", "fp64": "f8"}
            data = numpy.zeros((3, 5), dtype=kinds.get(dtype.name, dtype.name))
            writer.add_tensor(f"t{number}", data)
        elif dtype.name != "q8_1":
            data = numpy.zeros((3, 2 * dtype.block_bytes), dtype=numpy.uint8)
            writer.add_tensor(f"t{number}", data, raw_dtype=gguf_package.GGMLQuantizationType(type_id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(path)
    assert len(header.tensors) == len(TENSOR_TYPES) - 1
    same_as_the_package(header)


def test_a_published_model_reads_as_the_gguf_package_reads_it() -> None:
    home = os.environ.get("KVCLI_HOME")
    path = Path(home) / "models" / "smollm2-135m.gguf" if home else None
    if path is None or not path.is_file():
        pytest.skip("no smollm2-135m.gguf under $KVCLI_HOME/models: run `kvcli pull smollm2-135m` with KVCLI_HOME set")
    header = read_header(path)
    assert header.metadata["general.architecture"] == "llama" and len(header.tensors) > 250
    same_as_the_package(header)


# files that are not a GGUF


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
        (b"\n<!DOCTYPE html><html><title>404</title>", "HTML page"),
        (u64(40) + b'{"__metadata__":{"format":"pt"}}        ', "safetensors"),
        (b"\x80\x02}q\x00.", "pickle"),
        (b"\x80\x04\x95....", "pickle"),
        (b"\x1f\x8b\x08\0", "gzip"),
        (b"tjgg\x03\0\0\0", "before GGUF"),
        (b'{"error":"not found"}', "JSON"),
        (bytes(4096), "zeros"),
        (b"hello world", "is not a GGUF file"),
        (b"G", ""),
        (b"GGUE" + bytes(100), "is not a GGUF file"),
        (b"FUGG" + bytes(100), "is not a GGUF file"),
    ],
)
def test_other_files_are_told_apart(write: Callable[[bytes], Path], content: bytes, words: str) -> None:
    path = write(content)
    refused(path, "gguf_truncated" if content == b"G" else "not_gguf", words)
    assert not is_gguf(path)


def test_a_git_lfs_pointer_says_what_to_type(write: Callable[[bytes], Path]) -> None:
    content = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 98362432\n"
    refused(write(content), "git_lfs_pointer", "Git LFS", hint="git lfs pull")


def test_paths_that_are_no_readable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(tmp_path / "absent.gguf", "file_not_found", "no file")
    refused(tmp_path, "is_a_directory", "directory")
    file = tmp_path / "f.gguf"
    file.write_bytes(gguf())
    assert is_gguf(file) and not is_gguf(tmp_path) and not is_gguf(tmp_path / "absent")
    refused(file / "below.gguf", "file_not_found")
    refused(tmp_path / ("n" * 300), "cannot_read")
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    refused(pipe, "not_a_file")
    assert not is_gguf(pipe)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # a test that runs as root could read a file of any mode
    monkeypatch.setattr(Path, "open", denied)
    refused(file, "permission_denied")


def test_a_path_with_a_nul_byte_is_bad_input() -> None:
    with pytest.raises(BadInput) as caught:
        read_header(Path("a\0b.gguf"))
    assert caught.value.code == "cannot_read" and "\0" not in caught.value.message


# files that begin as a GGUF


def test_versions(write: Callable[[bytes], Path]) -> None:
    refused(write(gguf(version=1)), "gguf_unsupported_version", "version 1")
    refused(write(gguf(version=4)), "gguf_unsupported_version", "version 4")
    refused(write(b"GGUF" + struct.pack(">I", 3) + bytes(16)), "gguf_big_endian", "big endian")
    refused(write(b"GGUF" + struct.pack(">I", 2) + bytes(16)), "gguf_big_endian", "big endian")


ONE_OF_EACH = gguf(
    [
        entry("general.architecture", STRING, text("llama")),
        entry("general.alignment", U32, u32(32)),
        entry("heads", ARRAY, array(U32, 3, u32(8) + u32(4) + u32(2))),
        entry("words", ARRAY, array(STRING, 3, text("one") + text("two") + text("three"))),
        entry("nested", ARRAY, array(ARRAY, 2, array(F32, 2, bytes(8)) + array(STRING, 1, text("x")))),
        entry("many", ARRAY, array(STRING, 70, text("m") * 70)),
        entry("long", ARRAY, array(U8, 4097, bytes(4097))),
        entry("done", BOOL, b"\x01"),
    ],
    [info("w.weight", (64, 4), 2, 0), info("b.bias", (4, 2, 2, 1), 0, 160)],
    data_bytes=160 + 64,
)


def test_every_cut_is_told(write: Callable[[bytes], Path]) -> None:
    data_offset = read_header(write(ONE_OF_EACH)).data_offset
    for length in (*range(1, 700), *range(4800, len(ONE_OF_EACH))):
        error = refused(write(ONE_OF_EACH[:length]), "gguf_truncated", hint="download it again")
        if length >= data_offset:
            assert f"promises {len(ONE_OF_EACH):,} bytes, and the file has {length:,}" in error.message
            assert read_header(write(ONE_OF_EACH[:length]), check_data=False).tensors[1].size_bytes == 64


@pytest.mark.parametrize(
    ("content", "least_bytes"),
    [
        # the least a tensor info can take is 25 bytes, a metadata entry 14, an array 12, a string 8
        (b"GGUF" + u32(3) + u64(50_000) + u64(0) + bytes(100), "1,250,000"),
        (b"GGUF" + u32(3) + u64(0) + u64(100_000) + bytes(100), "1,400,000"),
        (gguf([entry("k", ARRAY, array(ARRAY, 100_000, bytes(100)))]), "1,200,000"),
        (gguf([entry("k", ARRAY, array(STRING, 1_000_000, bytes(100)))]), "8,000,000"),
    ],
    ids=["tensors", "entries", "arrays", "strings"],
)
def test_a_count_is_held_against_the_bytes_left_before_the_loop(write: Callable[[bytes], Path], content: bytes, least_bytes: str) -> None:
    refused(write(content), "gguf_truncated", f"at least {least_bytes} bytes")


def test_a_file_that_ends_inside_the_last_length_of_a_vocabulary(write: Callable[[bytes], Path]) -> None:
    start = b"GGUF" + u32(3) + u64(0) + u64(1)
    whole = start + entry("k", ARRAY, array(STRING, 70, text("token") * 69 + text("")))
    assert read_header(write(whole)).strings("k")[-2:] == ["token", ""]
    for cut_bytes in range(1, 9):
        refused(write(whole[:-cut_bytes]), "gguf_truncated", "'k'")


@pytest.mark.parametrize("count", HUGE)
def test_impossible_counts_and_lengths(write: Callable[[bytes], Path], count: int) -> None:
    start = b"GGUF" + u32(3)
    one = b"GGUF" + u32(3) + u64(0) + u64(1)
    cases = [
        ("tensors", start + u64(count) + u64(0)),
        ("metadata entries", start + u64(0) + u64(count)),
        ("metadata entry 0", one + u64(count) + bytes(8)),
        ("'k'", one + text("k") + u32(STRING) + u64(count)),
        ("tensor 0", gguf([], [u64(count) + bytes(40)])),
        ("'k'", gguf([entry("k", ARRAY, array(ARRAY, 1, array(U64, count, bytes(64))))])),
        # good lengths, then one that is not: the loop over a long array must find it
        ("'k'", gguf([entry("k", ARRAY, array(STRING, 70, text("ok") * 5 + u64(count) + bytes(700)))])),
        ("'k'", gguf([entry("k", ARRAY, array(STRING, 70, text("ok") * 69 + u64(count)))])),
        *(("'k'", gguf([entry("k", ARRAY, array(type_id, count, bytes(64)))])) for type_id in range(13)),
    ]
    for what, content in cases:
        path = write(content)
        tracemalloc.start()
        refused(path, "gguf_malformed", what)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 2**20, (what, content[:60])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gguf([entry(b"k\xff", U8, b"\0")]), "not UTF-8"),
        (gguf([entry("", U8, b"\0")]), "has 0 bytes"),
        (gguf([entry("k" * 65536, U8, b"\0")]), "65,536 bytes"),
        (gguf([entry("k", 13, bytes(8))]), "unknown value type 13"),
        (gguf([entry("k", ARRAY, array(13, 1, bytes(8)))]), "unknown value type 13"),
        (gguf([entry("k", ARRAY, array(2**32 - 1, 0, b""))]), "unknown value type"),
        (gguf([entry("k", ARRAY, array(ARRAY, 1, array(ARRAY, 1, array(U8, 1, b"\0"))))]), "nests arrays"),
        (gguf([entry("k", U8, b"\0"), entry("k", U8, b"\0")]), "'k' stands twice"),
        (gguf([], [info("w", (4,), 0, 0), info("w", (4,), 0, 32)]), "'w' stands twice"),
        (gguf([], [info(b"w\xff", (4,), 0, 0)]), "not UTF-8"),
        (gguf([], [info("w", (1, 1, 1, 1, 1), 0, 0)]), "5 dimensions"),
        (gguf([], [text("w") + u32(2**32 - 1) + bytes(64)]), "dimensions"),
        (gguf([], [info("w", (4, 0), 0, 0)]), "impossible shape [4, 0]"),
        (gguf([], [info("w", (2**32, 2**31), 0, 0)]), "impossible shape"),
        (gguf([], [info("w", (2**64 - 1, 2**64 - 1), 0, 0)]), "impossible shape"),
        (gguf([], [info("w", (48, 2), 2, 0)]), "blocks of 32"),
        (gguf([], [info("w", (128, 2), 12, 0)]), "blocks of 256"),
        (gguf([], [info("w", (), 2, 0)]), "blocks of 32"),
        (gguf([], [info("w", (4,), 0, 16)]), "no multiple of 32"),
        (gguf([], [info("w", (9,), 0, 0), info("v", (4,), 0, 32)]), "'w' and 'v' overlap"),
        (gguf([], [info("w", (4,), 0, 32), info("v", (9,), 0, 0)]), "'v' and 'w' overlap"),
        (gguf([], [info("w", (4,), 0, 0), info("v", (4,), 0, 0)]), "overlap"),
        (gguf([entry("general.alignment", U32, u32(0))]), "power of two"),
        (gguf([entry("general.alignment", U32, u32(24))]), "power of two"),
        (gguf([entry("general.alignment", I32, u32(2**32 - 32))]), "power of two"),
        (gguf([entry("general.alignment", U64, u64(2**40))]), "power of two"),
        (gguf([entry("general.alignment", STRING, text("32"))]), "power of two"),
        (gguf([entry("general.alignment", BOOL, b"\x01")]), "power of two"),
        (gguf([entry("general.alignment", F32, struct.pack("<f", 32.0))]), "power of two"),
    ],
)
def test_contradictions(write: Callable[[bytes], Path], content: bytes, words: str) -> None:
    refused(write(content), "gguf_malformed", words)


@pytest.mark.parametrize("type_id", [*REMOVED_TENSOR_TYPES, 41, 255, 2**32 - 1])
def test_unknown_tensor_types_name_the_tensor_and_the_id(write: Callable[[bytes], Path], type_id: int) -> None:
    word = "removed" if type_id in (4, 5, 31, 32, 33, 36, 37, 38) else "does not know"
    refused(write(gguf([], [info("blk.0.w", (256,), type_id, 0)])), "gguf_unknown_tensor_type", "'blk.0.w'", f"type id {type_id}", word)


@pytest.mark.parametrize("offset", [4096 + 32, 2**63, 2**64 - 32])
def test_data_past_the_end(write: Callable[[bytes], Path], offset: int) -> None:
    path = write(gguf([], [info("w", (4,), 0, offset)], data_bytes=4096))
    data_offset = read_header(path, check_data=False).data_offset
    refused(
        path, "gguf_truncated", f"promises {data_offset + offset + 16:,} bytes", f"has {data_offset + 4096:,}", hint="download it again"
    )


def test_names_from_the_file_cannot_reach_the_terminal(write: Callable[[bytes], Path]) -> None:
    error = refused(write(gguf([], [info("\x1b[31m\n" + "w" * 5000, (4, 0), 0, 0)])), "gguf_malformed")
    assert "\x1b" not in error.message and len(error.message) < 300


@pytest.mark.parametrize(
    ("content", "words"),
    [
        # each is a file that says the truth, and is large only so as to cost time or memory
        (gguf([entry("k", ARRAY, array(STRING, 5_000_000, bytes(40_000_000)))]), "array elements"),
        (gguf([entry(f"k{n}", ARRAY, array(U8, 4096, bytes(4096))) for n in range(100)]), "metadata values"),
        (gguf([entry(f"k{n}", U8, b"\0") for n in range(2**18 + 1)]), "metadata values"),
        (gguf([entry("k", ARRAY, array(ARRAY, 300_000, array(U8, 0, b"") * 300_000))]), "metadata values"),
        (gguf([entry(f"k{n}", STRING, text(b"\xff" * 2**20)) for n in range(9)]), "bytes of text"),
        (gguf([], [info(f"w{n}", (1,), 24, 32 * n) for n in range(70_000)]), "70,000 tensors"),
    ],
    ids=["strings", "numbers", "entries", "nested", "text", "tensors"],
)
def test_what_a_header_may_hold_is_bounded(write: Callable[[bytes], Path], content: bytes, words: str) -> None:
    refused(write(content), "gguf_malformed", words)


def test_a_thousand_damaged_headers(tmp_path: Path) -> None:
    random_source = random.Random(20240607)
    path = tmp_path / "damaged.gguf"
    outcomes = {"read": 0, "refused": 0}
    # the middle is one array of zeros, where a change is not seen
    structure = [*range(700), *range(4850, len(ONE_OF_EACH))]
    for _ in range(1000):
        content = bytearray(ONE_OF_EACH)
        for _ in range(random_source.choice((1, 1, 2, 8))):
            at = random_source.choice(structure)
            match random_source.randrange(5):
                case 0:
                    content[at : at + 1] = bytes([random_source.randrange(256)])
                case 1:
                    del content[at:]
                case 2:
                    content[at : at + 8] = u64(2**64 - random_source.randrange(1, 40))
                case 3:
                    content[at : at + 4] = u32(random_source.randrange(2 ** random_source.randrange(1, 33)))
                case 4:
                    content[at:at] = random_source.randbytes(random_source.randrange(1, 9))
        path.write_bytes(content)
        start_s = time.process_time()
        try:
            header = read_header(path, check_data=random_source.random() < 0.5)
            for key, value in header.metadata.items():
                if isinstance(value, ArrayRef):
                    header.strings(key) if value.element_type == STRING else header.numbers(key)
            outcomes["read"] += 1
        except BadInput as error:
            assert error.message and error.code
            outcomes["refused"] += 1
        assert time.process_time() - start_s < 1.0
    assert outcomes["read"] > 50 and outcomes["refused"] > 500, outcomes


# speed


def test_a_vocabulary_of_262144_tokens_is_skipped_fast(write: Callable[[bytes], Path]) -> None:
    tokens, merges = 262_144, 514_906
    path = write(
        gguf(
            [
                entry("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens, b"".join(text(f"tok{n}") for n in range(tokens)))),
                entry("tokenizer.ggml.merges", ARRAY, array(STRING, merges, b"".join(text(f"to k{n}") for n in range(merges)))),
                entry("tokenizer.ggml.scores", ARRAY, array(F32, tokens, bytes(4 * tokens))),
                entry("tokenizer.ggml.token_type", ARRAY, array(I32, tokens, bytes(4 * tokens))),
                entry("end", U8, b"\x07"),
            ]
        )
    )
    start_s = time.process_time()
    header = read_header(path)
    # loose, for slow and busy machines; benchmarks/gguf_header.py has the number
    assert time.process_time() - start_s < 1.0
    assert header.metadata["end"] == 7
    assert header.strings("tokenizer.ggml.tokens")[-1] == "tok262143"
    assert header.strings("tokenizer.ggml.merges")[-1] == "to k514905"
    assert len(header.numbers("tokenizer.ggml.scores")) == tokens
