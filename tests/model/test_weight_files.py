"""Folders of safetensors: every byte by its use, against files that transformers wrote and counts that it made."""

import importlib.util
import json
import re
import struct
from pathlib import Path

import pytest

from kvcli.errors import BadInput
from kvcli.model.part_files import INDEX
from kvcli.model.resolve import resolve
from kvcli.model.weight_files import read_folder_tensors, sum_tensors
from kvcli.model.weight_parts import ByUse, WeightParts

torch = pytest.importorskip("torch", reason="transformers writes the test files")
transformers = pytest.importorskip("transformers", reason="transformers writes the test files")

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 8}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MODELS = {
    "llama": {"tie_word_embeddings": False},
    "qwen3": {"tie_word_embeddings": True, "head_dim": 16},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 1, "tie_word_embeddings": False},
    "qwen3_moe": {**EXPERTS, "head_dim": 16},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 40},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **LATENT,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 24,
    },
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"n_layer": 2, "n_head": 4},
    "gpt_neox": {"tie_word_embeddings": False},
    "mamba": {"state_size": 8},
}


def save(model_type, folder, **more):
    config = transformers.AutoConfig.for_model(model_type, **{**SMALL, **MODELS.get(model_type, {})}, dtype="float32")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    model.save_pretrained(folder, **more)
    return model


@pytest.mark.parametrize("model_type", MODELS)
def test_what_transformers_saves(model_type, tmp_path):
    """Every parameter four bytes; read is what one token is multiplied with, by the family reader that is tested on its own."""
    model = save(model_type, tmp_path)
    spec = resolve(str(tmp_path))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    biases = sum(value.numel() for name, value in model.named_buffers() if name.endswith("e_score_correction_bias"))
    assert spec.tensors.resident_bytes == 4 * (parameters + biases)
    assert spec.tensors.read_bytes_per_step == 4 * (spec.step_parameters + biases)
    assert (spec.tensors.dtype, spec.tensors.mtp_bytes, spec.tensors.tower_bytes) == ("fp32", 0, 0)
    assert "tensor_count_differs" not in [notice.code for notice in spec.notices]


@pytest.mark.parametrize("model_type", ["bart", "t5"])
def test_encoder_decoders(model_type, tmp_path):
    """A step reads neither the encoder, nor what projects its output to keys and values, nor a table again."""
    widths = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_heads": 4, "d_kv": 8, "d_ff": 48, "num_layers": 2}
    config = transformers.AutoConfig.for_model(model_type, **widths, **heads, vocab_size=96, max_position_embeddings=64, dtype="float32")
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).to(torch.float32)
    model.save_pretrained(tmp_path)
    spec = resolve(str(tmp_path))
    buffers = sum(value.numel() for name, value in model.named_buffers() if name.endswith("final_logits_bias"))
    assert spec.tensors.resident_bytes == 4 * (sum(parameter.numel() for parameter in model.parameters()) + buffers)
    assert spec.tensors.read_bytes_per_step == 4 * (spec.step_parameters + buffers)


def test_read_bytes_of_experts_by_hand(tmp_path):
    """Mixtral: 4 experts, 1 a token, of three 32 x 48 matrices in each of two layers; and a table of 96 x 32 that is not read."""
    save("mixtral", tmp_path)
    tensors = resolve(str(tmp_path)).tensors
    assert tensors.resident_bytes - tensors.read_bytes_per_step == 4 * (2 * 3 * 3 * 32 * 48 + 96 * 32)


def test_an_index_and_parts(tmp_path):
    save("llama", tmp_path / "one")
    save("llama", tmp_path / "many", max_shard_size="20KB")
    parts = sorted((tmp_path / "many").glob("model-*.safetensors"))
    assert len(parts) > 2 and (tmp_path / "many" / INDEX).exists()
    whole = resolve(str(tmp_path / "one")).tensors
    assert resolve(str(tmp_path / "many")).tensors == whole
    (tmp_path / "many" / INDEX).unlink()
    assert resolve(str(tmp_path / "many")).tensors == whole
    parts[1].unlink()
    with pytest.raises(BadInput, match=parts[1].name):
        resolve(str(tmp_path / "many"))


def add(folder, entries):
    """A second file with tensors of zeros beside those that were saved, and an index of both."""
    place, header = 0, {}
    for name, (dtype, shape, size_bytes) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size_bytes]}
        place += size_bytes
    raw = json.dumps(header).encode()
    (folder / "more.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(place))
    length = struct.unpack("<Q", (folder / "model.safetensors").read_bytes()[:8])[0]
    first = json.loads((folder / "model.safetensors").read_bytes()[8 : 8 + length])
    names = {name: "model.safetensors" for name in first if name != "__metadata__"}
    (folder / INDEX).write_text(json.dumps({"weight_map": {**names, **dict.fromkeys(header, "more.safetensors")}}))


def test_blocks_towers_copies_and_buffers_are_apart(tmp_path):
    save("qwen3", tmp_path)
    before = resolve(str(tmp_path)).tensors
    extra = {
        "lm_head.weight": ("F32", [96, 32], 4 * 96 * 32),  # the config ties: a copy of the input table
        "model.layers.2.eh_proj.weight": ("F32", [32, 64], 4 * 32 * 64),  # behind the last layer: a prediction block
        "mtp.norm.weight": ("F32", [32], 128),
        "visual.blocks.0.attn.qkv.weight": ("F32", [96, 32], 4 * 96 * 32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", [8], 32),
    }
    add(tmp_path, extra)
    spec = resolve(str(tmp_path))
    # the joining matrix of a prediction block is whole on each device
    block = WeightParts((ByUse(whole=4 * 32 * 64),), rest=128)
    assert spec.tensors == before._replace(mtp_bytes=4 * 32 * 64 + 128, tower_bytes=4 * 96 * 32, mtp_parts=block)
    assert "tensor_count_differs" not in [notice.code for notice in spec.notices]


def test_scales_count_and_the_cache_keeps_the_compute_dtype(tmp_path):
    """A quantised matrix with its scales: one byte a weight, and a float32 scale for each 128 x 128 of them."""
    save("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    before = resolve(str(tmp_path)).tensors
    quantised = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": quantised}))
    add(tmp_path, {"model.layers.0.mlp.up_proj.weight_scale_inv": ("F32", [1, 1], 4), "model.layers.0.x.weight": ("F8_E4M3", [9], 9)})
    spec = resolve(str(tmp_path))
    assert spec.tensors.resident_bytes == before.resident_bytes + 13
    assert spec.tensors.read_bytes_per_step == before.read_bytes_per_step + 13
    assert spec.dtype.name == "fp32"
    assert not {"quantized_weights", "tensor_count_differs"} & {notice.code for notice in spec.notices}


def test_a_file_with_other_weights_than_the_config_says(tmp_path):
    save("llama", tmp_path)
    add(tmp_path, {"model.layers.0.extra.weight": ("F32", [7], 28)})
    assert "tensor_count_differs" in [notice.code for notice in resolve(str(tmp_path)).notices]


def test_the_command_says_header(tmp_path, kvcli):
    save("qwen3", tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"no part of the model")
    answer = kvcli("plan", str(tmp_path), "--ctx", "32", "--json")
    assert answer.code == 0, answer.err
    spec, weights = (
        resolve(str(tmp_path)),
        json.loads(answer.out)["plans"][0]["weights"] if "plans" in answer.out else json.loads(answer.out)["weights"],
    )
    assert (
        weights["resident_bytes"] == spec.tensors.resident_bytes == (tmp_path / "model.safetensors").stat().st_size - header_bytes(tmp_path)
    )


def header_bytes(folder):
    return 8 + struct.unpack("<Q", (folder / "model.safetensors").read_bytes()[:8])[0]


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "../other.safetensors"}, "no safetensors file of this folder"),
        ({"a": "model.bin"}, "no safetensors file of this folder"),
        ({"a": "gone.safetensors"}, "gone.safetensors is missing"),
        ({"a": 3}, "no weight_map"),
        ({}, "no weight_map"),
        ([], "no weight_map"),
        ({"nowhere": "model.safetensors"}, "lacks 'nowhere'"),
    ],
)
def test_a_bad_index(tmp_path, weight_map, words):
    save("llama", tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BadInput, match=re.escape(words)):
        resolve(str(tmp_path))


def test_folders_that_say_too_little(tmp_path):
    save("llama", tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    assert resolve(str(tmp_path)).tensors is not None
    (tmp_path / "b.safetensors").write_bytes(data)
    with pytest.raises(BadInput, match="2 safetensors files and no"):
        resolve(str(tmp_path))
    assert resolve(str(tmp_path / "config.json")).tensors is None
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").unlink()
    assert resolve(str(tmp_path)).tensors is None
    (tmp_path / "x-00001-of-99999.safetensors").write_bytes(data)
    with pytest.raises(BadInput, match="which no model has"):
        resolve(str(tmp_path))
    add_twice = {"x-00001-of-00002.safetensors": data, "x-00002-of-00002.safetensors": data}
    (tmp_path / "x-00001-of-99999.safetensors").unlink()
    for name, content in add_twice.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match="in two files"):
        resolve(str(tmp_path))


def test_headers_of_a_terabyte_are_read_fast(tmp_path):
    """Loose, for slow and busy machines; the script has the number."""
    import time

    place = Path(__file__).resolve().parents[2] / "benchmarks" / "safetensors_headers.py"
    spec = importlib.util.spec_from_file_location("safetensors_headers", place)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    size_bytes = script.write_checkpoint(tmp_path)
    assert size_bytes > 10**12
    start_s = time.process_time()
    tensors = read_folder_tensors(tmp_path)
    assert time.process_time() - start_s < 2.0
    assert sum(tensor.size_bytes for tensor in tensors) == size_bytes
    assert sum_tensors(resolve("llama3-8b"), tensors)[0].resident_bytes > 0
