"""Headers of safetensors files: what the library accepts is read alike, what it refuses is refused, and nothing else happens."""

import json
import os
import random
import struct
import time
import tracemalloc

import pytest

from kvcli.errors import BadInput
from kvcli.model.safetensors_header import TYPE_BITS, read_safetensors_header


def content(header, data_bytes=0):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(data_bytes)


def entry(dtype="F32", shape=(2, 3), begin=0, end=24):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.fixture
def write(tmp_path):
    def call(data):
        path = tmp_path / "x.safetensors"
        path.write_bytes(data)
        return path

    return call


@pytest.mark.parametrize("dtype", TYPE_BITS)
def test_sizes_by_type(write, dtype):
    """16 elements, so that packed types fill whole bytes; the library itself judges the sizes."""
    safetensors = pytest.importorskip("safetensors", reason="the library is the oracle")
    size_bytes = 2 * TYPE_BITS[dtype]
    path = write(content({"a": entry(dtype, (4, 4), 0, size_bytes)}, size_bytes))
    with safetensors.safe_open(path, "np") as file:
        assert list(file.keys()) == ["a"]
    (tensor,) = read_safetensors_header(path)
    assert (tensor.elements, tensor.size_bytes, tensor.shape) == (16, size_bytes, (4, 4))


def test_order_metadata_and_empty_tensors(write):
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry(begin=24, end=48),
        "a": entry(),
        "none": entry(shape=(0, 5), begin=48, end=48),
        "scalar": entry("I64", (), 48, 56),
    }
    found = read_safetensors_header(write(content(header, 56)))
    assert [(tensor.name, tensor.size_bytes) for tensor in found] == [("b", 24), ("a", 24), ("none", 0), ("scalar", 8)]
    assert read_safetensors_header(write(content({}))) == []
    assert read_safetensors_header(write(content({"data_offsets": entry()}, 24)))[0].name == "data_offsets"


TWICE = b'{"a":' + json.dumps(entry()).encode() + b',"a":' + json.dumps(entry(begin=24, end=48)).encode() + b"}"
BAD = [
    (b"", "0 bytes"),
    (b"abc", "3 bytes"),
    (struct.pack("<Q", 100_000_001) + b"{", "header of 100,000,001 bytes"),
    (struct.pack("<Q", 2**64 - 1) + b"{}", "promises a header"),
    (struct.pack("<Q", 500) + b"{}", "promises 508 bytes and has 10"),
    (content(b"[]"), "does not begin"),
    (content(b'{"a"'), "not JSON"),
    (content(b'{"a\xff":1}'), "not UTF-8"),
    (content(b'{"a":' + b"[" * 200_000), "nested too deeply"),
    (content(b'{"a":' + b"9" * 5000 + b"}"), "not JSON"),
    (content({"a": 3}), "'a' should have"),
    (content({"a": {}}), "'a' should have"),
    (content({"a": {**entry(), "data_offsets": [0]}}), "'a' should have"),
    (content({"a": {**entry(), "data_offsets": [0, 24.0]}}, 24), "'a' should have"),
    (content({"a": {**entry(), "shape": "23"}}, 24), "'a' should have"),
    (content({"a": {**entry(), "shape": [2, 3.0]}}, 24), "'a' should have"),
    (content({"a": {**entry(), "shape": [-2, -3]}}, 24), "'a' should have"),
    (content({"a": {**entry(), "shape": [[2], 3]}}, 24), "'a' should have"),
    (content({"a": entry(dtype="F31")}, 24), "unknown type 'F31'"),
    (content({"a": entry(dtype=["F32"])}, 24), "'a' should have"),
    (content({"a": entry("F4", (3,), 0, 1)}, 1), "do not fill whole bytes"),
    (content({"a": entry("F32", (2**63, 2), 0, 24)}, 24), "impossible shape"),
    (content({"a": entry("F32", [1] * 65, 0, 4)}, 4), "impossible shape"),
    (content({"a": entry(end=20)}, 24), "2x3 F32, 24 bytes, with 20 bytes"),
    (content({"a": entry()}, 20), "cut short"),
    (content({"a": entry()}, 25), "1 bytes follow"),
    (content({"a": entry(begin=8, end=32)}, 32), "'a' leaves a gap of 8 bytes behind the header"),
    (content({"a": entry(), "b": entry(begin=16, end=40)}, 40), "'b' overlaps 'a'"),
    (content({"a": entry(), "b": entry()}, 24), "overlaps"),
    (content({"a": entry(begin=-24, end=0)}, 0), "overlaps"),
    (content(TWICE, 48), "'a' stands twice"),
    (content({"__metadata__": 3}), "__metadata__"),
    (b"GGUF" + bytes(60), "no safetensors file"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
    (b"PK\x03\x04" + bytes(60), "zip archive"),
]


@pytest.mark.parametrize(("data", "words"), BAD, ids=range(len(BAD)))
def test_contradictions_are_named(write, data, words):
    with pytest.raises(BadInput) as error:
        read_safetensors_header(write(data))
    assert words in error.value.message and "x.safetensors" in error.value.message


def test_places_that_hold_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo.safetensors")
    for name in ("gone.safetensors", "fifo.safetensors", ""):
        with pytest.raises(BadInput):
            read_safetensors_header(tmp_path / name)


def test_a_header_of_many_values_is_refused_before_it_is_parsed(write):
    path = write(content(b'{"a":[' + b"0," * 5_000_000 + b"0]}"))
    tracemalloc.start()
    with pytest.raises(BadInput, match="values"):
        read_safetensors_header(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2**25


def test_five_thousand_damaged_headers(tmp_path):
    """Only success or a refusal, each fast; what the library reads too, it reads alike."""
    safetensors = pytest.importorskip("safetensors", reason="the library is the oracle")
    source = random.Random(20261129)
    path = tmp_path / "damaged.safetensors"
    header = {f"model.layers.{n}.w": entry("BF16", (4, 3), 24 * n, 24 * n + 24) for n in range(6)}
    whole = content({"__metadata__": {"format": "pt"}, **header}, 144)
    end = len(whole) - 144
    outcomes = {"read": 0, "refused": 0}
    for _ in range(5000):
        data = bytearray(whole)
        for _ in range(source.choice((1, 1, 2, 8))):
            at = source.randrange(end)
            match source.randrange(6):
                case 0:
                    data[at : at + 1] = bytes([source.randrange(256)])
                case 1:
                    del data[at : at + source.randrange(1, 40)]
                case 2:
                    data[0:8] = struct.pack("<Q", source.choice((0, 2, end - 8, 10**8, 2**63, source.randrange(1000))))
                case 3:
                    data[at:at] = source.choice((b"[", b"{", b'"', b"\\", b"9" * 30, b"null", b"1e999", b"NaN", b"\xc3"))
                case 4:
                    data[at : at + 1] = str(source.randrange(10)).encode()
                case 5:
                    del data[source.randrange(len(data)) :]
                    data += bytes(source.randrange(3))
        path.write_bytes(data)
        start_s = time.process_time()
        try:
            found = {tensor.name: list(tensor.shape) for tensor in read_safetensors_header(path)}
        except BadInput as error:
            assert error.message and len(error.message) < 600
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            with safetensors.safe_open(path, "np") as file:
                assert found == {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        assert time.process_time() - start_s < 1.0
    assert outcomes["read"] > 50 and outcomes["refused"] > 2500, outcomes
