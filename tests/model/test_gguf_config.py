"""A GGUF file as a model: its metadata through the same readers as configs, its weights from the tensor list."""

import numpy as np
import pytest

from kvcli.errors import BadInput, NotModelled
from kvcli.model.gguf.config import read_gguf_file

gguf = pytest.importorskip("gguf", reason="the gguf package writes the test files")


def write(path, arch="llama", tensors=(), **metadata):
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        key = key.replace("__", ".")
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    for name, shape in tensors:
        writer.add_tensor(name, np.zeros(shape, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SIZES = {"block_count": 2, "context_length": 128, "embedding_length": 64, "feed_forward_length": 96}


def meta(arch="llama", **more):
    values = {**SIZES, "attention.head_count": 4, "attention.head_count_kv": 2, **more}
    return {f"{arch}.{key}".replace(".", "__"): value for key, value in values.items()}


def layer(index, hidden=64, kv=32, mlp=96):
    shapes = {
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
        "attn_q": (hidden, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (mlp, hidden),
        "ffn_up": (mlp, hidden),
        "ffn_down": (hidden, mlp),
    }
    return [(f"blk.{index}.{name}.weight", shape) for name, shape in shapes.items()]


BODY = [("token_embd.weight", (100, 64)), ("output_norm.weight", (64,)), *layer(0), *layer(1)]
UNTIED = [*BODY, ("output.weight", (100, 64))]


def test_a_tied_file(tmp_path):
    spec = read_gguf_file(write(tmp_path / "tiny.gguf", tensors=BODY, **meta()))
    elements = sum(int(np.prod(shape)) for _, shape in BODY)
    assert spec.parameters == elements
    assert spec.notices == ()
    assert spec.tensors.resident_bytes == spec.tensors.read_bytes_per_step == 2 * elements
    assert (spec.name, spec.dtype.name, spec.tensors.dtype) == ("tiny", "fp16", "fp16")
    assert spec.decoder.rope.layout == "interleaved"
    assert spec.max_context_tokens == 128


def test_an_untied_file_does_not_read_its_input_table(tmp_path):
    spec = read_gguf_file(write(tmp_path / "tiny.gguf", tensors=UNTIED, **meta()))
    assert not spec.tied
    assert spec.tensors.resident_bytes - spec.tensors.read_bytes_per_step == 2 * 100 * 64


def test_metadata_that_disagrees_with_the_tensors_is_said(tmp_path):
    spec = read_gguf_file(write(tmp_path / "tiny.gguf", tensors=[*BODY, ("extra.weight", (7,))], **meta()))
    assert [notice.code for notice in spec.notices] == ["tensor_count_differs"]
    factors = read_gguf_file(write(tmp_path / "tiny.gguf", tensors=[*BODY, ("rope_freqs.weight", (8,))], **meta()))
    assert factors.notices == ()
    assert factors.decoder.rope.scaling.kind == "factors"


def test_head_counts_by_layer(tmp_path):
    same = meta(**{"attention.head_count_kv": [2, 2]})
    assert read_gguf_file(write(tmp_path / "tiny.gguf", tensors=BODY, **same)).groups[0].attention.num_key_value_heads == 2
    with pytest.raises(NotModelled, match="layer to layer"):
        read_gguf_file(write(tmp_path / "tiny.gguf", tensors=BODY, **meta(**{"attention.head_count_kv": [2, 1]})))


def test_other_architectures_and_incomplete_files(tmp_path):
    with pytest.raises(NotModelled, match="rwkv7"):
        read_gguf_file(write(tmp_path / "tiny.gguf", arch="rwkv7", tensors=BODY))
    with pytest.raises(BadInput, match="token_embd"):
        read_gguf_file(write(tmp_path / "tiny.gguf", tensors=layer(0), **meta()))
    incomplete = meta()
    del incomplete["llama__block_count"]
    with pytest.raises(BadInput, match="num_hidden_layers"):
        read_gguf_file(write(tmp_path / "tiny.gguf", tensors=BODY, **incomplete))


def test_the_default_model(default_gguf):
    """98,362,432 bytes on disk, of which its tensors are 96,576,768: all of them are read, since the head is tied."""
    spec = read_gguf_file(default_gguf)
    assert spec.parameters == 134_515_008
    assert spec.tensors.resident_bytes == spec.tensors.read_bytes_per_step == 96_576_768
    assert spec.tensors.dtype == "q4_1"
    assert spec.notices == ()
    assert spec.groups[0].attention.num_key_value_heads == 3
