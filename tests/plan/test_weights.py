"""Bytes of quantised weights, against published checkpoints and against tensors built one by one as the formats define them.

Published sizes: DeepSeek-V3's files hold 680,571,043,840 fp8, 3,918,786,560 bf16 and 41,555,600 float32 elements (the hub's
count of its safetensors headers); the `total_size` of gpt-oss-20b and -120b is in their safetensors index.
"""

import json
from dataclasses import replace
from math import ceil, prod

import pytest

from kvcli.errors import BadInput
from kvcli.model.config import read_config_file, spec_from_config
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.weights import expected_read_bytes, parse_weights, weight_bytes
from kvcli.plan.workload import Workload
from kvcli.report.explain import equation

SIZE = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "I8": 1, "F8": 1}

#: a tiny Llama: 3 layers, hidden 256, 4 query and 2 KV heads of 64, width 512; nothing square by accident
LLAMA = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}
SHAPES = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.v_proj": (128, 256),
    "self_attn.o_proj": (256, 256),
    "mlp.gate_proj": (512, 256),
    "mlp.up_proj": (512, 256),
    "mlp.down_proj": (256, 512),
}


def spec(quantization, **changes):
    return spec_from_config({**LLAMA, **changes, "quantization_config": quantization}, "tiny", "tiny")


def size(tensors):
    return sum(prod(shape) * SIZE[dtype] for dtype, shape in tensors)


def checkpoint(layout, kept=lambda name: False, head=False):
    """Every tensor of the tiny model's file; `layout(out, in)` lists those of one quantised matrix."""
    tensors = [("BF16", (1000, 256)), ("BF16", (256,))]  # embed_tokens, norm
    tensors += layout(1000, 256) if head else [("BF16", (1000, 256))]
    for layer in range(3):
        tensors += [("BF16", (256,)), ("BF16", (256,))]
        for name, shape in SHAPES.items():
            tensors += [("BF16", shape)] if kept(f"model.layers.{layer}.{name}") else layout(*shape)
    return size(tensors)


def fp8_block(rows, columns):
    return [("F8", (rows, columns)), ("F32", (ceil(rows / 128), ceil(columns / 128)))]


def fp8_tensor(rows, columns):
    return [("F8", (rows, columns)), ("F32", (1,))]


def awq(rows, columns, group=64):
    return [
        ("I32", (columns, rows // 8)),
        ("I32", (columns // group, rows // 8)),
        ("F16", (columns // group, rows)),
    ]


def gptq(rows, columns, group=128, bits=4):
    groups = ceil(columns / group)
    per_word = 32 // bits
    return [
        ("I32", (columns // per_word, rows)),
        ("I32", (groups, rows // per_word)),
        ("F16", (groups, rows)),
        ("I32", (columns,)),
    ]


def nf4_double(rows, columns):
    scales = ceil(rows * columns / 64)
    nested = ceil(scales / 256)
    # weight, absmax, quant_map, nested_absmax, nested_quant_map, offset
    return [("U8", (rows * columns // 2, 1)), ("U8", (scales,)), ("F32", (16,)), ("F32", (nested,)), ("F32", (256,)), ("F32", (1,))]


def nf4(rows, columns):
    return [("U8", (rows * columns // 2, 1)), ("F32", (ceil(rows * columns / 64),)), ("F32", (16,))]


def int8_rows(rows, columns):
    return [("I8", (rows, columns)), ("F32", (rows,))]


def packed_int4(rows, columns):
    return [("I32", (rows, columns // 8)), ("BF16", (rows, columns // 32))]


def fp8_channel(rows, columns):
    return [("F8", (rows, columns)), ("BF16", (rows, 1))]


def modelopt_fp8(rows, columns):
    return [("F8", (rows, columns)), ("F32", ()), ("F32", ())]  # weight_scale, input_scale


def nvfp4(rows, columns):
    return [("U8", (rows, columns // 2)), ("F8", (rows, columns // 16)), ("F32", ()), ("F32", ())]  # weight_scale_2, input_scale


def compressed(layout, weights, **more):
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False, **weights}, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
BNB4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": False}

CASES = {
    "fp8 by block": ({**FP8, "weight_block_size": [128, 128]}, "fp8", checkpoint(fp8_block)),
    "fp8 by matrix": (FP8, "fp8", checkpoint(fp8_tensor)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, "int4-g64", checkpoint(awq)),
    "gptq": (GPTQ, "int4-g128", checkpoint(gptq)),
    "gptq of 8 bits": ({**GPTQ, "bits": 8}, "int8-g128", checkpoint(lambda r, c: gptq(r, c, bits=8))),
    "gptq, one group": ({**GPTQ, "group_size": -1}, "int4", checkpoint(lambda r, c: gptq(r, c, c))),
    "gptq with head": ({**GPTQ, "lm_head": True}, "int4-g128", checkpoint(gptq, head=True)),
    "nf4": (BNB4, "nf4", checkpoint(nf4)),
    "nf4, double": ({**BNB4, "bnb_4bit_use_double_quant": True}, "nf4", checkpoint(nf4_double)),
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", checkpoint(int8_rows)),
    "packed int4": (compressed("pack-quantized", INT4), "int4-g32", checkpoint(packed_int4)),
    "packed int4 with head": (compressed("pack-quantized", INT4, ignore=[]), "int4-g32", checkpoint(packed_int4, head=True)),
    "fp8 by row": (
        compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
        "fp8",
        checkpoint(fp8_channel),
    ),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "fp8", checkpoint(modelopt_fp8)),
    "nvfp4": ({**NVFP4, "exclude_modules": ["lm_head"]}, "nvfp4", checkpoint(nvfp4)),
}


@pytest.mark.parametrize(("quantization", "label", "expected"), CASES.values(), ids=CASES)
def test_every_tensor_of_a_tiny_file(quantization, label, expected):
    model = spec(quantization)
    weights = weight_bytes(model, None)
    assert weights.dtype == label
    assert weights.resident_bytes == expected
    # a step needs no input table; beside it, at most what is once a matrix may stay away
    rest = weights.resident_bytes - 2 * 1000 * 256 - weights.read_bytes_per_step
    assert 0 <= rest <= 21 * 4 * 273
    assert eval_equation(equation(weights.quantized_formula(model, read=False))) == expected
    assert eval_equation(equation(weights.quantized_formula(model, read=True))) == weights.read_bytes_per_step


def eval_equation(text):
    """The printed equation, redone: only its digits and signs are left."""
    kept = text.partition(";")[0].replace(",", "").replace(" x ", " * ")
    for word in ("bits", "B of scales zeros and indices"):
        kept = kept.replace(word, "")
    return eval(kept, {"__builtins__": {}})


KEPT = {
    "names": ({**FP8, "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "model.layers.0", "o_proj"]}, fp8_block),
    "ignored_layers": ({**FP8, "ignored_layers": ["model.layers.0", "self_attn.o_proj"]}, fp8_tensor),
    "parts": ({**GPTQ, "modules_to_not_convert": ["layers.0.", "self_attn.o_proj"]}, gptq),
    "regex": (compressed("pack-quantized", INT4, ignore=["lm_head", "re:model\\.layers\\.0\\..*", "re:.*o_proj"]), packed_int4),
    "wildcards": ({**NVFP4, "exclude_modules": ["lm_head", "model.layers.0*", "*o_proj"]}, nvfp4),
    "blocks": ({**NVFP4, "ignore": ["lm_head", "model.layers.0", "*.o_proj"]}, nvfp4),
    "skipped": ({**BNB4, "llm_int8_skip_modules": ["lm_head", "model.layers.0", "o_proj"]}, nf4),
}


@pytest.mark.parametrize(("quantization", "layout"), KEPT.values(), ids=KEPT)
def test_modules_that_stay(quantization, layout):
    kept = checkpoint(layout, lambda name: ".layers.0." in name or name.endswith("o_proj"))
    assert weight_bytes(spec(quantization), None).resident_bytes == kept


def test_exact_names_are_no_prefixes():
    """Module 1 is not module 10, and a part of a name is no module."""
    quantization = compressed("pack-quantized", INT4, ignore=["lm_head", "model.layers.1.mlp.down_proj", "down_proj", "model.layers"])
    kept = checkpoint(packed_int4, lambda name: name == "model.layers.1.mlp.down_proj")
    assert weight_bytes(spec(quantization), None).resident_bytes == kept
    prefixes = {**FP8, "modules_to_not_convert": ["model.layers.1"]}
    twelve = spec(prefixes, num_hidden_layers=12)
    plain, quantised = 2 * 589_824, 589_824 + 7 * 4
    assert weight_bytes(twelve, None).quantized.resident.elements == 11 * 589_824
    assert weight_bytes(twelve, None).resident_bytes == plain + 11 * quantised + 2 * (2 * 256_000 + 25 * 256)


def test_a_step_reads_no_index_in_plain_order_and_no_symmetric_zeros():
    sorted_file = weight_bytes(spec(GPTQ), None)
    plain = weight_bytes(spec({**GPTQ, "desc_act": False, "sym": True}), None)
    assert plain.resident_bytes == sorted_file.resident_bytes
    columns, zeros = 6 * 256 + 512, sum(rows * columns // 128 // 2 for rows, columns in SHAPES.values())
    assert sorted_file.read_bytes_per_step - plain.read_bytes_per_step == 3 * (4 * columns + zeros)


def test_deepseek_v3_file_to_the_byte():
    """The published file is the model, its routing biases, and one prediction layer with copies of both tables."""
    model = resolve("deepseek-v3")
    weights = weight_bytes(model, None)
    published = 680_571_043_840 + 2 * 3_918_786_560 + 4 * 41_555_600
    hidden, vocab, experts = 7168, 129280, 256
    attention = [(1536, hidden), (128 * 192, 1536), (576, hidden), (128 * 256, 512), (hidden, 128 * 128)]
    expert = [(2048, hidden), (2048, hidden), (hidden, 2048)]
    layer = size([tensor for shape in attention + (experts + 1) * expert for tensor in fp8_block(*shape)])
    layer += 2 * (experts * hidden + 2 * hidden + 1536 + 512)
    around = 2 * (2 * vocab * hidden + 2 * hidden * hidden + 3 * hidden)
    biases = 59 * experts * 4
    assert weights.resident_bytes + layer + around + biases == published


@pytest.mark.parametrize(("name", "total_size"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)])
def test_gpt_oss_files_to_the_byte(name, total_size):
    model = resolve(name)
    weights = weight_bytes(model, None)
    assert (weights.dtype, weights.resident_bytes) == ("mxfp4", total_size)
    p = model.groups[0].parameters
    away = model.num_hidden_layers * (p.num_experts - 4) * (3 * 2880 * 2880 * 17 // 32 + 2 * 3 * 2880)
    assert weights.read_bytes_per_step == total_size - away - 2 * model.embedding


def test_a_7b_model_as_awq_and_gptq():
    """Qwen2.5-7B-Instruct: published as 5.57 GB (AWQ) and 5.58 GB (GPTQ-Int4) of safetensors, within the last digit."""
    base = {**resolve_config("qwen2.5-7b"), "dtype": "float16"}
    known = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm", "modules_to_not_convert": None}
    awq_file = weight_bytes(spec_from_config({**base, "quantization_config": known}, "q", "q"), None)
    gptq_file = weight_bytes(spec_from_config({**base, "quantization_config": {**GPTQ, "desc_act": False, "sym": True}}, "q", "q"), None)
    assert awq_file.resident_bytes == pytest.approx(5.57e9, rel=0.002)
    assert gptq_file.resident_bytes == pytest.approx(5.58e9, rel=0.002)
    inputs = 28 * (6 * 3584 + 18944)
    assert gptq_file.resident_bytes - awq_file.resident_bytes == 4 * inputs


def resolve_config(name):
    from kvcli.model import presets

    return presets.load(name).config


def test_experts_of_a_quantised_file():
    """Kimi-K2.5: experts alone have 4 bits; what is read is k of E, and more experts come with more sequences."""
    model = resolve("kimi-k2.5")
    weights = weight_bytes(model, None)
    experts = 60 * 384 * 3 * 7168 * 2048
    assert weights.dtype == "int4-g32"
    assert weights.quantized.resident.elements == experts
    assert weights.resident_bytes == experts // 2 + experts // 32 * 2 + 2 * (model.parameters - experts)
    one = 3 * 7168 * 2048 * 9 // 16
    assert weights.resident_bytes - weights.read_bytes_per_step == 60 * (384 - 8) * one + 2 * model.embedding
    assert expected_read_bytes(model, weights, 1) == weights.read_bytes_per_step
    two = 384 * (1 - (1 - 8 / 384) ** 2)
    assert expected_read_bytes(model, weights, 2) == pytest.approx(weights.read_bytes_per_step + 60 * one * (two - 8), rel=1e-9)


def test_a_family_without_shapes_has_no_scales_and_says_so():
    model = resolve("deepseek-v3.2")
    weights = weight_bytes(model, None)
    assert [notice.code for notice in weights.notices] == ["scales_not_counted"]
    routers = sum(group.count * group.parameters.router for group in model.groups)
    assert weights.resident_bytes == 2 * model.parameters - (model.block_matrices - routers)


NOT_UNDERSTOOD = {
    "method": ({"quant_method": "hqq"}, "no rule for the method 'hqq'"),
    "no method": ({"bits": 4}, "names no quant_method"),
    "mixed": ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": ["x"]}, "MIXED_PRECISION"),
    "lost list": (NVFP4, "does not say which modules"),
    "field": ({**GPTQ, "dynamic": {"-:.*": {}}}, "its field 'dynamic'"),
    "bits": ({**GPTQ, "bits": 3}, "bits '3'"),
    "two groups": (compressed("pack-quantized", INT4, config_groups={"a": {}, "b": {}}), "2 config_groups"),
    "asymmetric": (compressed("pack-quantized", {**INT4, "symmetric": False}), "symmetric"),
    "block": (compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "block"}), "by block"),
    "version": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemm version"),
    "both": ({**BNB4, "load_in_8bit": True}, "neither or both"),
    "groups": ({"quant_method": "awq", "bits": 4, "group_size": 96, "version": "gemm"}, "does not fill its groups of 96"),
    "ambiguous": ({**GPTQ, "modules_to_not_convert": ["gate"]}, "'gate' matches parts"),
    "one expert": ({**GPTQ, "modules_to_not_convert": ["mlp.experts.3.gate_proj"]}, "single experts"),
    "mxfp4 elsewhere": ({"quant_method": "mxfp4"}, "gpt-oss alone"),
}


@pytest.mark.parametrize(("quantization", "why"), NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
def test_what_is_not_understood_is_said_and_planned_in_the_compute_dtype(quantization, why):
    model = spec(quantization)
    weights = weight_bytes(model, None)
    assert (weights.dtype, weights.resident_bytes) == ("bf16", 2 * model.parameters)
    (notice,) = weights.notices
    assert notice.code == "quantized_weights"
    assert why in notice.message


@pytest.mark.parametrize("entry", ["re:(a+)+$", "re:(", "re:" + ".*" * 9, "x" * 400, "re:[", 7])
def test_patterns_that_could_take_forever_are_refused(entry):
    with pytest.raises(BadInput):
        spec(compressed("pack-quantized", INT4, ignore=[entry]))


def test_an_asked_type_wins_over_the_file():
    model = spec(GPTQ)
    assert weight_bytes(model, parse_weights("bf16")).resident_bytes == 2 * model.parameters
    assert weight_bytes(model, parse_weights("fp8")).dtype == "fp8"


@pytest.mark.parametrize(("size_of_group", "bits"), [(32, 4.625), (64, 4.3125), (128, 4.15625)])
def test_four_bits_by_group(size_of_group, bits):
    """4 bits, 16 for a scale and 4 for a zero in each group: as an AWQ file of that group size."""
    dtype = parse_weights(f"INT4-g{size_of_group}")
    assert dtype.bits_per_element == bits == 4 + 20 / size_of_group
    own = weight_bytes(spec({"quant_method": "awq", "bits": 4, "group_size": size_of_group, "version": "gemm"}), None)
    asked = weight_bytes(spec_from_config(LLAMA, "tiny", "tiny"), dtype)
    assert asked.resident_bytes == own.resident_bytes
    assert "scale" not in asked.notices[0].message


def plan(model, engine="ideal", kv=None):
    return build(PlanRequest(model, Workload(100, 1), policy(engine, EngineOptions()), kv=kv))


EIGHT = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


@pytest.mark.parametrize(
    "quantization",
    [
        compressed("pack-quantized", INT4, kv_cache_scheme=EIGHT),
        {**NVFP4, "ignore": ["lm_head"], "kv_cache_scheme": EIGHT},
        {**NVFP4, "exclude_modules": ["lm_head"], "kv_cache_quant_algo": "FP8"},
    ],
)
def test_the_file_fixes_the_type_of_the_cache(quantization):
    answer = plan(spec(quantization))
    assert answer.cache.kv.label == "fp8"
    assert answer.cache.needed_bytes == 3 * 2 * 2 * 64 * 100
    assert any(notice.code == "kv_dtype_of_file" and "kv_cache_" in notice.message for notice in answer.notices)
    library = plan(spec(quantization), "transformers")
    assert library.cache.kv.label == "bf16"
    assert any("does not obey" in notice.message for notice in library.notices)


def test_a_cache_of_four_bits():
    """9 bytes for 16 values: 4 bits each and one fp8 scale."""
    answer = plan(spec({**NVFP4, "exclude_modules": ["lm_head"], "kv_cache_quant_algo": "NVFP4"}))
    assert answer.cache.kv.label == "nvfp4"
    assert answer.cache.needed_bytes == 3 * 2 * 2 * 64 * 100 * 9 // 16


def test_other_cache_schemes_are_labelled():
    four = compressed("pack-quantized", INT4, kv_cache_scheme={**EIGHT, "num_bits": 4})
    for quantization in (four, {**NVFP4, "exclude_modules": ["lm_head"], "kv_cache_quant_algo": "INT8"}):
        answer = plan(spec(quantization))
        assert answer.cache.kv.label == "bf16"
        assert "kv_dtype_not_modelled" in [notice.code for notice in answer.notices]
    silent = plan(spec(compressed("pack-quantized", INT4, kv_cache_scheme=None)))
    assert silent.cache.kv.label == "bf16"
    assert not [notice for notice in silent.notices if notice.code.startswith("kv_dtype")]


def test_modelopt_beside_the_config(tmp_path):
    """Llama-3.1-70B-Instruct-FP8 keeps its scheme in hf_quant_config.json: 560 matrices of one byte, two scales each."""
    config = {key: value for key, value in resolve_config("llama3.1-70b").items() if key != "quantization_config"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert weight_bytes(read_config_file(tmp_path / "config.json"), None).dtype == "bf16"
    inner = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": inner}))
    model = read_config_file(tmp_path / "config.json")
    weights = weight_bytes(model, None)
    matrices = 80 * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 8192 * 28672)
    assert weights.resident_bytes == matrices + 2 * (model.parameters - matrices) + 560 * 8
    assert plan(model).cache.kv.label == "fp8"


def test_shapes_that_do_not_add_up_are_not_used():
    """A matrix more than the family's, and scales would be counted for the wrong shapes."""
    model = spec({**FP8, "weight_block_size": [128, 128]})
    (group,) = model.groups
    odd = replace(model, groups=(replace(group, parameters=group.parameters._replace(query=group.parameters.query + 256)),))
    weights = weight_bytes(odd, None)
    assert (weights.dtype, weights.resident_bytes) == ("bf16", 2 * odd.parameters)
    assert "shapes of the matrices of llama" in weights.notices[0].message


def test_a_qwen_file_keeps_its_routers():
    """Qwen3-30B-A3B-FP8: 48 layers of attention and 128 experts of 3 x 2048 x 768; scales are float32."""
    model = resolve("qwen3-30b-a3b-fp8")
    layer = fp8_block(4096, 2048) + 2 * fp8_block(512, 2048) + fp8_block(2048, 4096)
    layer += 128 * (2 * fp8_block(768, 2048) + fp8_block(2048, 768)) + [("BF16", (128, 2048)), ("BF16", (2 * 2048 + 2 * 128,))]
    assert weight_bytes(model, None).resident_bytes == 48 * size(layer) + 2 * (2 * 151936 * 2048 + 2048)
