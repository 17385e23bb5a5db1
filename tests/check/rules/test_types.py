"""The compute type and the size of the pool, as the command line sets them: numbers worked by hand."""

import datetime

import pytest

from kvcli.check.run import check

DAY = datetime.date(2026, 11, 29)
#: Llama-3.1-8B: 8,030,261,248 parameters (model.safetensors.index.json: 16,060,522,496 B in bf16)
PARAMETERS = 8_030_261_248
SMALL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def gate(tmp_path):
    """The outcomes of a command line on a part, by rule, and the cell."""

    def run(command, device="l4", more=""):
        path = tmp_path / "kvcli.yaml"
        path.write_text(f"version: 1\ntargets:\n  - name: chat\n    command: >-\n      {command}\n    on: [{device}]\n{more}")
        (cell,) = check([path], DAY)[0].cells
        order = ("passed", "skipped", "note", "warning", "error")
        return {each.rule: each for each in sorted(cell.outcomes, key=lambda each: order.index(each.level))}

    return run


def vllm(options, model=SMALL):
    return f"vllm serve {model} {options}"


def sglang(options, model=SMALL):
    return f"python -m sglang.launch_server --model-path {model} {options}"


@pytest.mark.parametrize("command", [vllm("--max-model-len 8192 --dtype float32"), sglang("--context-length 8192 --dtype float32")])
def test_weights_are_of_the_type_asked_for(gate, command):
    """8,030,261,248 x 4 B = 32.1e9 B on a card of 23.65e9."""
    found = gate(command)["KV001"]
    assert found.level == "error"
    assert f"weights {PARAMETERS * 4:,}" in found.formula
    assert found.fix.startswith("--dtype auto")
    assert f"weights {PARAMETERS * 2:,}" in gate(command.replace("float32", "half"))["KV001"].formula


def test_a_quantised_file_keeps_its_own_type(gate):
    """gpt-oss: experts in mxfp4, so that 116.8e9 parameters take far less than 2 B each whatever the rest is computed in."""
    found = gate(vllm("--max-model-len 4096 --dtype float16", "openai/gpt-oss-120b"), "h100-sxm5-80")["KV001"]
    assert int(found.formula.replace(",", "").split("weights ")[1].split()[0]) < 70e9


@pytest.mark.parametrize(
    ("options", "device", "level"),
    [
        ("--dtype bfloat16", "t4", "error"),
        ("--dtype bfloat16", "v100-sxm2-32", "error"),
        ("--dtype half", "t4", "passed"),
        ("", "t4", "passed"),  # newer versions take fp16 by themselves, and which one it is is not known
        ("--dtype bfloat16", "l4", "passed"),
        ("--dtype bfloat16", "mi300x", "passed"),
    ],
)
def test_bf16_on_cards_without_it(gate, options, device, level):
    found = gate(vllm(f"--max-model-len 4096 {options}"), device)["KV013"]
    assert found.level == level
    assert found.fix == ("--dtype half" if level == "error" else "")


def test_older_versions_keep_the_type_of_the_file(gate):
    old = "    engine_version: 0.6.3\n"
    assert gate(vllm("--max-model-len 4096"), "t4", old)["KV013"].level == "error"
    assert gate(vllm("--max-model-len 4096"), "t4", old.replace("0.6.3", "0.9.2"))["KV013"].level == "passed"
    assert gate(vllm("--max-model-len 4096", "google/gemma-2-2b-it"), "t4", old)["KV013"].fix == ""  # vLLM refuses fp16 for it
    assert gate(sglang("--context-length 4096 --dtype bfloat16"), "t4")["KV013"].level == "passed"  # it takes fp16 with a warning


def test_files_in_float32_run_in_16_bits(gate):
    """gpt2: 124,439,808 parameters in float32 files."""
    formula = gate(vllm("--max-model-len 1024", "gpt2"))["KV001"].formula
    assert f"weights {124_439_808 * 2:,}" in formula
    whole = gate(vllm("--max-model-len 1024 --dtype float32", "gpt2"))["KV001"].formula
    assert f"weights {124_439_808 * 4:,}" in whole
