"""Weights in mixes of GGUF types, against llama.cpp itself, against files that publishers made, and against a file on disk.

`tests/data/gguf_mixes.jsonl` holds, for tiny models of 73 shapes: the tensors that llama.cpp's converter wrote from a checkpoint
that transformers built (name, layers, columns, rows, depth), and for each mix the bytes and types that `llama_model_quantize` then
chose (at commit 86a2835), in short: the commonest type first, others by name and layers. `b7347` holds what the build of that
number chose, before the rule for fused attention changed. test_gguf_mix_live.py asks the library again.
"""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from kvcli import dtypes
from kvcli.errors import BadInput
from kvcli.model import presets
from kvcli.model.config import spec_from_config
from kvcli.model.families.table import READERS
from kvcli.model.gguf.layout import FAMILIES, stored_tensors
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.lines import weights_line
from kvcli.plan.mixes import rule as gguf_rule
from kvcli.plan.mixes.bounds import classes
from kvcli.plan.mixes.facts import NEEDS_IMATRIX, facts_of
from kvcli.plan.mixes.mix import mixed_tensors
from kvcli.plan.mixes.names import MIXES, Mix
from kvcli.plan.mixes.rule import Rule
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.weights import expected_read_bytes, parse_weights, weight_bytes
from kvcli.plan.workload import Workload
from kvcli.report.explain import equation

CASES = {case["case"]: case for case in map(json.loads, (Path(__file__).parents[1] / "data" / "gguf_mixes.jsonl").read_text().splitlines())}
GGML = {"fp16": "f16", "fp32": "f32"}


def read(case):
    return spec_from_config(case["config"], case["case"], "test")


def spans(numbers):
    found = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def shortly(types):
    """The recorded form of {tensor: type}."""
    by_type = defaultdict(lambda: defaultdict(list))
    for name, dtype in types.items():
        block = re.match(r"blk\.(\d+)\.(.+)\.weight$", name)
        by_type[dtype][block[2] if block else name.removesuffix(".weight")].append(int(block[1]) if block else None)
    most = max(by_type, key=lambda dtype: (sum(map(len, by_type[dtype].values())), dtype))
    parts = [most]
    for dtype in sorted(set(by_type) - {most}):
        names = sorted(by_type[dtype].items())
        parts.append(f"{dtype}: " + ", ".join(name if layers == [None] else f"{name} {spans(layers)}" for name, layers in names))
    return "; ".join(parts)


def ours(case, mix, **facts):
    """(bytes, types) of all tensors by kvcli's rule, in the recorded form."""
    spec = read(case)
    stored = stored_tensors(spec)
    rule = Rule(mix, facts_of(spec)._replace(layers=case["kv"][f"{case['kv']['general.architecture']}.block_count"], **facts), stored)
    types = {tensor: rule.type_of(tensor) for tensor in stored}
    size = sum(tensor.rows * tensor.depth * dtype.bytes_for(tensor.columns) for tensor, dtype in types.items())
    return [size, shortly({t.name: GGML.get(dtype.name, dtype.name) for t, dtype in types.items() if not t.single})]


@pytest.mark.parametrize("name", CASES)
def test_tensors_are_those_of_the_converter(name):
    case = CASES[name]
    stored = stored_tensors(read(case))
    found = defaultdict(list)
    for tensor in stored:
        if not tensor.single:
            part = re.sub(r"^blk\.\d+\.", "", tensor.name).removesuffix(".weight")
            found[part, tensor.columns, tensor.rows, tensor.depth].append(tensor.layer)
    assert sorted([part, "" if layers == [None] else spans(layers), *shape] for (part, *shape), layers in found.items()) == sorted(
        case["tensors"]
    )
    assert sum(tensor.elements for tensor in stored if tensor.single) == case["single_elements"]


@pytest.mark.parametrize("name", CASES)
def test_types_are_those_of_llama_cpp(name):
    case = CASES[name]
    for recorded, wanted in case["mixes"].items():
        mix, _, matrix = recorded.partition("+")
        assert ours(case, mix, imatrix=bool(matrix) or mix in NEEDS_IMATRIX) == wanted, recorded


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "b7347" in case])
def test_fused_attention_before_2026(name):
    """Types that fill no block of 256 had another stand-in then, of the same size."""
    case = CASES[name]
    for mix, (size, types) in case["b7347"].items():
        mine = ours(case, mix, old_fused=True)
        assert mine[0] == size, mix
        assert mine[1] == types or "iq4_nl" in types, mix


@pytest.mark.parametrize("name", CASES)
def test_every_file_is_the_point_or_in_the_range(name):
    case = CASES[name]
    spec = read(case)
    for recorded, (size, _) in [*case["mixes"].items(), *case.get("b7347", {}).items()]:
        mixed = mixed_tensors(spec, Mix(recorded.partition("+")[0]))
        assert mixed.resident_low_bytes <= size <= mixed.resident_bytes, recorded
        assert bool(mixed.why) == (mixed.resident_low_bytes < mixed.resident_bytes)
        if "attn_qkv" not in str(case["tensors"]) and recorded.startswith(("q4_k", "q5_k", "q6_k", "q8_0")) and "glm" not in name:
            assert not mixed.why


#: rows that fill no block of 32 are not foreseen
WHOLE = [name for name, case in CASES.items() if all(columns % 32 == 0 for _, _, columns, _, _ in case["tensors"])]


@pytest.mark.parametrize("name", WHOLE[::3])
def test_bounds_contain_every_file(name):
    """What is said of families whose tensors are not known, said of those that are."""
    case = CASES[name]
    spec = read(case)
    for recorded, (size, _) in case["mixes"].items():
        found = classes(spec, recorded.partition("+")[0])
        low, high = (sum(each.elements * getattr(each.types, end).bits_per_element / 8 for each in found) for end in ("low", "high"))
        # rotary factors and the biases by which routers choose are no parameters
        assert low <= size <= high + 4 * 2**10, recorded


def test_the_rule_matters():
    """Dropped, the layers that medium mixes favour turn the comparison red."""
    case = CASES["llama"]
    kept = gguf_rule._more
    try:
        gguf_rule._more = lambda index, count: index < count // 8
        assert ours(case, "q4_k_m") != case["mixes"]["q4_k_m"]
    finally:
        gguf_rule._more = kept
    assert ours(case, "q4_k_m") == case["mixes"]["q4_k_m"]


#: (preset, mix, bytes of the file on the hub): the tensors, and metadata which holds the vocabulary, the template and offsets
PUBLISHED = [
    ("llama3.1-8b", "q4_k_m", 4_920_739_232),
    ("llama3.2-1b", "q4_k_m", 807_694_464),
    ("llama3.2-3b", "q4_k_m", 2_019_377_696),
    ("qwen2.5-7b", "q4_k_m", 4_683_074_240),
    ("smollm3-3b", "q4_k_m", 1_915_306_528),
    ("ministral3-3b", "q4_k_m", 2_147_023_008),
    ("stablelm2-1.6b", "q4_k_m", 1_031_442_496),
    ("gemma2-2b", "q4_k_m", 1_708_582_752),
    ("gemma2-9b", "q4_k_m", 5_761_057_728),
    ("gemma3-1b", "q4_k_m", 806_058_496),
    ("gemma3-4b", "q4_k_m", 2_489_758_112),
    ("gemma3-12b", "q4_k_m", 7_300_575_264),
    ("qwen3-vl-30b-a3b", "q4_k_m", 18_556_687_168),
    ("deepseek-v2-lite", "q4_k_m", 10_364_416_736),
    ("falcon-mamba-7b", "q4_k_m", 4_204_230_432),
    ("mamba-codestral-7b", "q4_k_m", 4_147_481_568),
    ("falcon-h1-0.5b", "q4_k_m", 314_806_560),
    ("llama4-scout", "q3_k_s", 46_740_372_480),
]


@pytest.mark.parametrize(("preset", "mix", "file_bytes"), PUBLISHED)
def test_published_files_are_the_tensors_and_a_vocabulary(preset, mix, file_bytes):
    weights = weight_bytes(presets.load(preset).spec(), parse_weights(mix))
    assert weights.resident_low_bytes is None
    assert 0 < file_bytes - weights.resident_bytes < 14 * 10**6


@pytest.mark.parametrize(
    ("preset", "mix", "file_bytes"),
    # made before the rule for fused attention changed: the low end
    [("phi-3.5-mini", "q4_k_m", 2_393_232_672), ("phi-4", "q4_k_m", 9_053_114_816), ("phi-4-mini", "q4_k_m", 2_491_874_688)],
)
def test_published_files_of_fused_attention(preset, mix, file_bytes):
    weights = weight_bytes(presets.load(preset).spec(), parse_weights(mix))
    assert weights.resident_low_bytes < weights.resident_bytes
    assert 0 < file_bytes - weights.resident_low_bytes < 9 * 10**6


def test_what_llama_bench_printed():
    """llama-bench's manual: 3,825,065,984 bytes of tensors in a Llama-2-7B of q4_0, made without an importance matrix."""
    assert weight_bytes(presets.load("llama2-7b").spec(), parse_weights("q4_0")).resident_low_bytes == 3_825_065_984


@pytest.mark.weights
def test_the_default_model_on_disk(default_gguf):
    """Its file is q4_1 by name; so is the plan from the preset, and from the file's own metadata."""
    file = resolve(str(default_gguf))
    for spec in (file, presets.load("smollm2-135m").spec()):
        weights = weight_bytes(spec, parse_weights("q4_1"))
        assert weights.resident_bytes == file.tensors.resident_bytes == 96_576_768
        assert weights.read_bytes_per_step == file.tensors.read_bytes_per_step


def test_unknown_tensors_are_a_range():
    spec = presets.load("opt-125m").spec()
    weights = weight_bytes(spec, parse_weights("q4_k_m"))
    assert weights.resident_low_bytes < weights.resident_bytes < weight_bytes(spec, dtypes.FP32).resident_bytes
    assert weights.notices[0].code == "weights_range"
    assert "opt" in weights.notices[0].message


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_of_every_preset_sums_to_its_parameters(mix):
    for name in presets.names()[:: 1 if mix == "q4_k_m" else 6]:
        spec = presets.load(name).spec()
        mixed = mixed_tensors(spec, Mix(mix))
        for tensors in (mixed.low, mixed.high):
            extra = sum(tensor.elements for tensor in tensors) - spec.parameters
            extra += 64 * spec.hidden_size * (spec.vocab_size == 262_208)  # rows of Gemma 3 behind the tokenizer's last
            routers = sum(group.count * group.parameters.num_experts for group in spec.groups)
            assert 0 <= extra <= routers + 1024, name
        assert mixed.read_bytes_per_step <= mixed.resident_low_bytes <= mixed.resident_bytes, name


def test_a_step_reads_no_table_and_k_experts():
    spec = presets.load("qwen3-30b-a3b").spec()
    mixed = mixed_tensors(spec, Mix("q4_k_m"))
    table = next(tensor for tensor in mixed.high if tensor.name == "token_embd.weight")
    experts = [tensor for tensor in mixed.high if tensor.num_experts]
    assert {tensor.name.split(".")[2] for tensor in experts} == {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}
    stacked = sum(tensor.resident_bytes for tensor in experts)
    assert mixed.read_bytes_per_step == mixed.resident_bytes - table.resident_bytes - stacked + stacked * 8 // 128
    weights = weight_bytes(spec, Mix("q4_k_m"))
    assert expected_read_bytes(spec, weights, 1) == weights.read_bytes_per_step
    # so many sequences read all of them
    assert expected_read_bytes(spec, weights, 10**4) == pytest.approx(mixed.resident_bytes - table.resident_bytes)


def test_a_tied_table_is_read_and_typed_as_the_head():
    mixed = mixed_tensors(presets.load("llama3.2-1b").spec(), Mix("q4_k_m"))
    table = mixed.high[0]
    assert (table.name, table.dtype.name, table.read_bytes) == ("token_embd.weight", "q6_k", table.resident_bytes)


@pytest.mark.parametrize("text", ["Q4_K_M", "q4_k_m", " q4-k-m ", "Q4_K"])
def test_spellings(text):
    assert parse_weights(text) == Mix("q4_k_m")


@pytest.mark.parametrize("text", ["q4_k_x", "q9_0", "iq4", "ud-q4_k_xl"])
def test_unknown_mixes_list_the_known_ones(text):
    with pytest.raises(BadInput) as caught:
        parse_weights(text)
    assert "q4_k_m" in caught.value.hint
    assert "iq4_xs" in caught.value.hint


def test_rows_that_no_block_fits_stay_fp16():
    spec = spec_from_config({**CASES["llama"]["config"], "intermediate_size": 500}, "odd", "test")
    for mix in ("q4_0", "q4_k_m", "iq4_nl"):
        assert {tensor.dtype.name for tensor in mixed_tensors(spec, Mix(mix)).high if "ffn_down" in tensor.name} == {"fp16"}


def test_block_types_named_as_types_are_mixes_too():
    spec = read(CASES["llama"])
    assert weight_bytes(spec, dtypes.PLAIN["q8_0"]).resident_bytes == CASES["llama"]["mixes"]["q8_0"][0]


def test_the_equation_can_be_redone():
    spec = presets.load("mixtral-8x7b").spec()
    for mix in ("q4_k_m", "iq4_xs", "q8_0"):
        plan = build(PlanRequest(spec, Workload(100, 1), policy("ideal", EngineOptions()), weights=Mix(mix)))
        for item, amount in (("weights", plan.weights.resident_bytes), ("weights_read", plan.weights.read_bytes_per_step)):
            text = equation(weights_line(spec, plan.weights, item).formula)
            parts = re.findall(r"([\d,]+) x ([\d.]+) bits", text)
            assert sum(int(elements.replace(",", "")) * float(bits) for elements, bits in parts) / 8 == amount, text


def test_families_are_kvclis_own():
    assert set(FAMILIES) <= set(READERS)
