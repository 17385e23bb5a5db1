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


LOAD = "    load: { users: 8, ctx_p99: 4k }\n"


@pytest.mark.parametrize(
    ("engine", "pool"),
    [
        (sglang, "--max-total-tokens 4096"),
        (vllm, "--num-gpu-blocks-override 256"),  # 256 x 16 = 4,096 tokens
        (vllm, "--num-gpu-blocks-override 128 --block-size 32"),  # 128 x 32
    ],
)
def test_a_pool_of_4096_tokens_holds_one_sequence(gate, engine, pool):
    length = "--context-length 4096" if engine is sglang else "--max-model-len 4096"
    found = gate(engine(f"{length} {pool}"), "h100-sxm5-80", LOAD)
    assert (found["KV007"].level, found["KV001"].level) == ("warning", "passed")
    assert found["KV007"].formula == "floor(pool / request) x instances = 1 to 1 < 8"
    assert found["KV007"].place.line < 6  # the command's, not the load's
    assert found["KV007"].fix == f"leave {pool.partition(' --block')[0]} out"


def test_a_pool_of_32768_tokens_holds_eight(gate):
    assert gate(vllm("--max-model-len 4096 --num-gpu-blocks-override 2048"), "h100-sxm5-80", LOAD)["KV007"].level == "passed"
    assert gate(vllm("--max-model-len 4096 --num-gpu-blocks-override 2047"), "h100-sxm5-80", LOAD)["KV007"].level == "warning"
    assert gate(sglang("--context-length 4096 --max-total-tokens 32768"), "h100-sxm5-80", LOAD)["KV007"].level == "passed"


def test_a_pool_is_no_larger_than_the_memory(gate):
    """(84.98e9 B x 0.9 - 16.06e9 B) / (4,096 x 131,072 B) is 112 sequences at most, whatever SGLang is told."""
    found = gate(sglang("--context-length 4096 --max-total-tokens 4096000"), "h100-sxm5-80", "    load: { users: 500, ctx_p99: 4k }\n")
    assert int(found["KV007"].message.split("at most ")[1].split()[0]) < 113
    assert "leave" not in found["KV007"].fix


@pytest.mark.parametrize(
    ("command", "version", "level"),
    [
        (sglang("--context-length 8192 --max-total-tokens 4096"), "0.5.2", "warning"),
        (vllm("--max-model-len 8192 --num-gpu-blocks-override 256"), "0.9.2", "warning"),
        (vllm("--max-model-len 8192 --num-gpu-blocks-override 256"), "0.6.3", "error"),
        (vllm("--max-model-len 8192 --num-gpu-blocks-override 512"), "0.6.3", "passed"),
    ],
)
def test_a_pool_without_room_for_one_request(gate, command, version, level):
    found = gate(command, "h100-sxm5-80", f"    engine_version: {version}\n")["KV001"]
    assert found.level == level
    if level != "passed":
        assert "4,096 tokens does not hold one request of 8,192" in found.message


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.11.0", "vllm starts, and requests of more than 1,600 never finish"), ("0.9.2", "vllm may start"), ("0.33", "vllm may start")],
)
def test_a_small_pool_says_whether_the_engine_starts(gate, version, words):
    """100 x 16 tokens."""
    command = vllm("--max-model-len 8192 --num-gpu-blocks-override 100")
    found = gate(command, "h100-sxm5-80", f"    engine_version: '{version}'\n")["KV001"]
    assert (found.level, words in found.message) == ("warning", True)


@pytest.mark.parametrize(
    ("options", "version", "level"),
    [
        ("--max-num-batched-tokens 64 --max-num-seqs 256", "0.9.2", "error"),
        ("--max-num-batched-tokens 64 --max-num-seqs 256", "0.33", "error"),
        ("--max-num-batched-tokens 256 --max-num-seqs 256", "0.9.2", "passed"),
        ("--max-num-batched-tokens 64", "0.9.2", "passed"),  # newer versions lower what is not said
        ("--max-num-batched-tokens 4096 --max-model-len 8192", "0.6.3", "error"),
        ("--max-num-batched-tokens 4096 --max-model-len 8192 --enable-chunked-prefill", "0.6.3", "passed"),
        ("--max-num-batched-tokens 4096 --max-model-len 65536", "0.6.3", "passed"),  # it takes chunks by itself
        ("--max-num-batched-tokens 4096 --max-model-len 8192", "0.9.2", "passed"),
    ],
)
def test_a_step_that_the_scheduler_refuses(gate, options, version, level):
    found = gate(vllm(options), "h100-sxm5-80", f"    engine_version: '{version}'\n")["KV016"]
    assert found.level == level, found
    if level == "error":
        assert "refuses --max-num-batched-tokens" in found.message


AWQ = "Qwen/Qwen2.5-7B-Instruct-AWQ"


@pytest.mark.parametrize(
    ("model", "options", "device", "version", "level"),
    [
        (AWQ, "--quantization awq --dtype bfloat16", "l4", "0.11.0", "error"),
        (AWQ, "--quantization awq --dtype half", "l4", "0.11.0", "passed"),
        (AWQ, "--quantization awq", "l4", "0.11.0", "passed"),
        (AWQ, "--quantization awq_marlin --dtype bfloat16", "l4", "0.11.0", "passed"),
        (AWQ, "--dtype bfloat16", "l4", "0.11.0", "passed"),  # awq_marlin computes in it
        (AWQ, "--quantization awq --dtype bfloat16", "l4", "0.30", "passed"),  # not known
        (AWQ, "--quantization awq", "t4", "0.11.0", "passed"),
        (AWQ, "--quantization awq", "v100-sxm2-32", "0.11.0", "error"),
        (SMALL, "--quantization fp8 --dtype half", "t4", "0.11.0", "error"),
        (SMALL, "--quantization fp8 --dtype half", "v100-sxm2-32", "0.9.2", "error"),
        (SMALL, "--quantization fp8 --dtype half", "a100-sxm4-80", "0.9.2", "warning"),  # by its weights alone
        (SMALL, "--quantization fp8 --dtype half", "t4", "0.30", "warning"),
    ],
)
def test_methods_that_vllm_refuses(gate, model, options, device, version, level):
    found = gate(vllm(f"--max-model-len 2048 {options}", model), device, f"    engine_version: '{version}'\n")["KV013"]
    assert found.level == level, found
    if level == "error":
        assert "vllm does not start" in found.message
        assert (found.fix == "--dtype half") == ("bfloat16" in options)


def test_tgi_ignores_the_size_of_its_pool(gate):
    command = f"text-generation-launcher --model-id {SMALL} --max-total-tokens 4096 --max-batch-total-tokens 2048"
    assert gate(command, "h100-sxm5-80")["KV001"].level == "passed"


def tgi(options, model=SMALL):
    return f"text-generation-launcher --model-id {model} {options}"


@pytest.mark.parametrize(
    ("options", "device", "level"),
    [
        # 100,000 x 131,072 B = 13.1e9 B beside 16.06e9 of weights on 23.65e9
        ("--max-total-tokens 100000", "l4", "error"),
        ("--max-total-tokens 16000", "l4", "warning"),  # only what cannot be derived decides
        ("--max-total-tokens 8000", "l4", "passed"),
        ("", "l4", "warning"),  # it takes what fits
        ("--max-total-tokens 100000", "t4", "error"),  # the weights alone
        ("--max-total-tokens 100000 --quantize bitsandbytes", "t4", "warning"),  # without paged attention no length is checked
    ],
)
def test_tgi_checks_the_length_that_it_is_told(gate, options, device, level):
    found = gate(tgi(options), device)["KV001"]
    assert found.level == level
    if level == "error" and device == "l4":
        longest = int(found.fix.split("--max-total-tokens ")[1].split()[0].rstrip(","))
        assert gate(tgi(f"--max-total-tokens {longest}"), device)["KV001"].level in ("passed", "warning")
