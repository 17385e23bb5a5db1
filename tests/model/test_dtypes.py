"""Storage types: block sizes against ggml's own table, aliases, K and V apart."""

import pytest

from kvcli import dtypes
from kvcli.errors import BadInput


@pytest.mark.parametrize(
    ("text", "name", "row_of_128"),
    [
        ("fp32", "fp32", 512),
        ("float32", "fp32", 512),
        ("f16", "fp16", 256),
        ("bfloat16", "bf16", 256),
        ("BF16", "bf16", 256),
        ("fp8_e5m2", "fp8", 128),
        ("int8", "int8", 128),
        ("int4", "int4", 64),
        ("nvfp4", "nvfp4", 72),
        ("mxfp4", "mxfp4", 68),
        ("q8_0", "q8_0", 136),
        ("q5_1", "q5_1", 96),
        ("q5_0", "q5_0", 88),
        ("q4_1", "q4_1", 80),
        ("q4_0", "q4_0", 72),
        ("iq4_nl", "iq4_nl", 72),
    ],
)
def test_bytes_of_a_row(text, name, row_of_128):
    found = dtypes.parse(text, "--kv-dtype")
    assert found.name == name
    assert found.bytes_for(128) == row_of_128


def test_blocks_against_ggml():
    constants = pytest.importorskip("gguf.constants", reason="the gguf package is the oracle for block sizes")
    oracle = {kind.name.lower(): size for kind, size in constants.GGML_QUANT_SIZES.items()}
    ours = {**dtypes.PLAIN, **dtypes.FILE_ONLY}
    # the checkpoint format nvfp4 has blocks of 16, ggml packs four of them; for q8_1 the package still has the size of an
    # early ggml with two float scales (40), today's struct has two halves (36)
    checked = [name for name in ours if name in oracle and name not in ("nvfp4", "q8_1")]
    assert len(checked) >= 22, checked
    for name in checked:
        assert (ours[name].block_elements, ours[name].block_bytes) == oracle[name], name


def test_a_row_must_fill_blocks():
    with pytest.raises(BadInput, match="32"):
        dtypes.PLAIN["q8_0"].bytes_for(80)


def test_unknown_type_lists_the_known():
    with pytest.raises(BadInput) as caught:
        dtypes.parse("fp17", "--weights")
    assert "q8_0" in caught.value.hint


def test_k_and_v_apart():
    assert dtypes.parse_kv("q8_0:q4_0") == dtypes.KvTypes(dtypes.PLAIN["q8_0"], dtypes.PLAIN["q4_0"])
    assert dtypes.parse_kv("fp16").label == "fp16"
    with pytest.raises(BadInput):
        dtypes.parse_kv("fp16:")
