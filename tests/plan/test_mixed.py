"""ModelOpt's MIXED_PRECISION files, against tensors built one by one as its exporter writes them for each algorithm."""

import json
from math import prod

import pytest

from kvcli.model.config import read_config_file, spec_from_config
from kvcli.plan.weights import weight_bytes

SIZE = {"BF16": 2, "F32": 4, "U8": 1, "F8": 1}
HIDDEN, WIDTH, EXPERT_WIDTH, EXPERTS, LAYERS = 256, 512, 128, 4, 3
SHARED = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": LAYERS,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}
MOE = {**SHARED, "model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_WIDTH}
ATTENTION = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.v_proj": (128, 256),
    "self_attn.o_proj": (256, 256),
}


def gated(prefix, width):
    return {f"{prefix}.gate_proj": (width, HIDDEN), f"{prefix}.up_proj": (width, HIDDEN), f"{prefix}.down_proj": (HIDDEN, width)}


DENSE_LAYER = {**ATTENTION, **gated("mlp", WIDTH)}
MOE_LAYER = ATTENTION | {name: shape for n in range(EXPERTS) for name, shape in gated(f"mlp.experts.{n}", EXPERT_WIDTH).items()}

#: algorithm -> what its exporter writes for a matrix: weight, weight_scale, weight_scale_2, input_scale
LAYOUTS = {
    "FP8": lambda rows, columns: [("F8", (rows, columns)), ("F32", ()), ("F32", ())],
    "FP8_PER_CHANNEL_PER_TOKEN": lambda rows, columns: [("F8", (rows, columns)), ("F32", (rows,))],
    "FP8_PB_WO": lambda rows, columns: [("F8", (rows, columns)), ("F32", (rows // 128, 1, columns // 128, 1))],
    "FP8_BLOCK_SCALES": lambda rows, columns: [("F8", (rows, columns)), ("F32", (rows // 128, 1, columns // 128, 1))],
    "MXFP8": lambda rows, columns: [("F8", (rows, columns)), ("U8", (rows, columns // 32))],
    "NVFP4": lambda rows, columns: [("U8", (rows, columns // 2)), ("F8", (rows, columns // 16)), ("F32", ()), ("F32", ())],
    "W4A16_NVFP4": lambda rows, columns: [("U8", (rows, columns // 2)), ("F8", (rows, columns // 16)), ("F32", ())],
}
GROUPS = {"NVFP4": 16, "W4A16_NVFP4": 16, "MXFP8": 32, "FP8_PB_WO": 128}


def entry(algorithm):
    return {"quant_algo": algorithm, **({"group_size": GROUPS[algorithm]} if algorithm in GROUPS else {})}


def mixed(layers, **more):
    layers = {name: entry(algorithm) for name, algorithm in layers.items()}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, **more}


def planned(config, quantization):
    return weight_bytes(spec_from_config({**config, "quantization_config": quantization}, "tiny", "tiny"), None)


def file_bytes(algorithm_of, layer_shapes, head=None):
    """Every tensor of the file; `algorithm_of(name)` is None for what stays in bf16."""
    moe = layer_shapes is MOE_LAYER
    tensors = [("BF16", (1024, HIDDEN)), ("BF16", (HIDDEN,))]
    tensors += LAYOUTS[head](1024, HIDDEN) if head else [("BF16", (1024, HIDDEN))]
    for layer in range(LAYERS):
        tensors += [("BF16", (HIDDEN,)), ("BF16", (HIDDEN,))]
        tensors += [("BF16", (64,)), ("BF16", (64,)), ("BF16", (EXPERTS, HIDDEN))] if moe else []
        for name, shape in layer_shapes.items():
            algorithm = algorithm_of(f"model.layers.{layer}.{name}")
            tensors += LAYOUTS[algorithm](*shape) if algorithm else [("BF16", shape)]
    return sum(prod(shape) * SIZE[dtype] for dtype, shape in tensors)


def names(layer_shapes):
    return [f"model.layers.{layer}.{name}" for layer in range(LAYERS) for name in layer_shapes]


@pytest.mark.parametrize("algorithm", LAYOUTS)
def test_each_algorithm_beside_another(algorithm):
    """Attention in FP8, the MLP in the algorithm, the last layer's MLP as it was."""

    def algorithm_of(name):
        if "self_attn" in name:
            return "FP8"
        return None if ".2." in name else algorithm

    layers = {name: algorithm_of(name) for name in names(DENSE_LAYER) if algorithm_of(name)}
    weights = planned(SHARED, mixed(layers))
    assert weights.resident_bytes == file_bytes(algorithm_of, DENSE_LAYER)
    assert [notice.code for notice in weights.notices] == ["weights_of_file"]
    # a step leaves out the input table, and at most what is once a matrix
    rest = weights.resident_bytes - 2 * 1024 * HIDDEN - weights.read_bytes_per_step
    assert 0 <= rest <= 8 * len(layers)


@pytest.mark.parametrize("algorithm", LAYOUTS)
def test_one_algorithm_for_all(algorithm):
    quantization = {"quant_method": "modelopt", **entry(algorithm), "exclude_modules": ["lm_head"]}
    assert planned(SHARED, quantization).resident_bytes == file_bytes(lambda name: algorithm, DENSE_LAYER)


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model."])
@pytest.mark.parametrize("whole", [True, False])
def test_experts_named_at_once_or_one_by_one(prefix, whole):
    """As published: routed experts of 4 bits beside attention of 8, and a head that is quantised, too."""

    def algorithm_of(name):
        return "W4A16_NVFP4" if "experts" in name else "FP8" if "o_proj" in name else None

    layers = {name: algorithm_of(name) for name in names(MOE_LAYER) if algorithm_of(name)}
    if whole:
        layers = {name: algorithm for name, algorithm in layers.items() if "experts" not in name}
        layers |= {f"model.layers.{layer}.mlp.experts": "W4A16_NVFP4" for layer in range(LAYERS)}
    layers = {name.replace("model.", prefix, 1): algorithm for name, algorithm in layers.items()}
    more = {"mtp.layers.0.mlp.experts": "FP8_PB_WO", "model.visual.blocks.0.attn.qkv": "FP8", "model.layers.3.mlp.up_proj": "FP8"}
    weights = planned(MOE, mixed({**layers, **more, "lm_head": "W4A16_NVFP4"}))
    whole_bytes = file_bytes(algorithm_of, MOE_LAYER, head="W4A16_NVFP4")
    assert weights.resident_bytes == whole_bytes
    assert sorted(weights.dtype.split("+")) == ["fp8", "nvfp4"]
    # a step reads 2 of 4 experts, no input table, and may leave out 8 bytes a matrix of FP8, 4 of the others
    unread = LAYERS * 2 * 3 * (EXPERT_WIDTH * HIDDEN * 9 // 16) + 2 * 1024 * HIDDEN
    once = LAYERS * (8 + EXPERTS * 3 * 4) + 4
    assert weights.read_bytes_per_step == whole_bytes - unread - once


def test_the_list_of_kept_modules_wins():
    layers = dict.fromkeys(names(DENSE_LAYER), "FP8") | {"lm_head": "FP8"}
    kept = mixed(layers, ignore=["lm_head", "model.layers.0*"])
    assert planned(SHARED, kept).resident_bytes == file_bytes(lambda name: None if ".0." in name else "FP8", DENSE_LAYER)


FP8_ALL = dict.fromkeys(names(DENSE_LAYER), "FP8")


@pytest.mark.parametrize(
    ("config", "quantization", "words"),
    [
        (SHARED, mixed({}), "names no quantized_layers"),
        (SHARED, mixed({"model.layers.0.mlp.up_proj": "W4A8_AWQ"}), "W4A8_AWQ"),
        (SHARED, mixed({"model.layers.0.mlp.up_proj": "FP8", "model.layers.0.mlp.gate_proj": "W4A16_AWQ"}), "W4A16_AWQ"),
        (
            SHARED,
            {**mixed({}), "quantized_layers": {"lm_head": {"quant_algo": "NVFP4", "group_size": 32}}},
            "group_size",
        ),
        (
            SHARED,
            {**mixed({}), "quantized_layers": {"lm_head": {"quant_algo": "FP8", "pre_quant_scale": True}}},
            "field",
        ),
        (SHARED, mixed({**FP8_ALL, "model.layers.1.mlp.gate_up_proj": "FP8"}), "none of the matrices"),
        (SHARED, mixed({**FP8_ALL, "model.embed_tokens": "FP8"}), "none of the matrices"),
        ({**SHARED, "tie_word_embeddings": True}, mixed({**FP8_ALL, "lm_head": "FP8"}), "ties"),
        (MOE, mixed({"model.layers.0.mlp.experts.0.up_proj": "FP8"}), "some of the experts"),
        (MOE, mixed({f"model.layers.0.mlp.experts.{n}.up_proj": ("FP8", "NVFP4")[n % 2] for n in range(4)}), "different ways"),
        ({**SHARED, "intermediate_size": 500}, mixed({"model.layers.0.mlp.up_proj": "FP8_PB_WO"}), "does not fill its groups"),
        ({**SHARED, "intermediate_size": 520}, mixed({"model.layers.0.mlp.down_proj": "NVFP4"}), "does not fill its groups"),
    ],
)
def test_what_is_not_known_is_said_and_not_guessed(config, quantization, words):
    weights = planned(config, quantization)
    (notice,) = weights.notices
    assert notice.code == "quantized_weights" and words in notice.message
    assert weights.dtype == "bf16"


def test_the_file_beside_the_config_and_its_cache(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHARED))
    inner = mixed(FP8_ALL, kv_cache_quant_algo="FP8", exclude_modules=["mtp*"])
    del inner["quant_method"]
    beside = {"producer": {"name": "modelopt", "version": "0.44.0"}, "quantization": inner}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    model = read_config_file(tmp_path / "config.json")
    assert weight_bytes(model, None).resident_bytes == file_bytes(lambda name: "FP8", DENSE_LAYER)
    assert model.quantization.kv_dtype.name == "fp8"
