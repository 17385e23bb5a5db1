"""What was not understood makes a failure uncertain, whichever rule fails; what it cannot change stays a failure."""

import ast
import datetime
from pathlib import Path

import pytest

import kvcli.check
from kvcli.check.doubts import OPENS
from kvcli.check.run import check

DAY = datetime.date(2026, 11, 29)
H100 = "h100-sxm5-80"
BIG = "meta-llama/Llama-3.1-70B-Instruct"
M = "meta-llama/Llama-3.1-8B-Instruct"
TGI = "ghcr.io/huggingface/text-generation-inference:3.3.4"
LONG = f"args: [--model={M}, --max-model-len=131072]"
NOT_THERE = "envFrom: [{configMapRef: {name: gone}}]"


def pod(body, image="vllm/vllm-openai:v0.9.2", gpus=1):
    lines = "\n".join("      " + line for line in body.splitlines())
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n    - name: c\n"
        f"      image: {image}\n{lines}\n      resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}\n"
    )


def shell(command, more="", image="vllm/vllm-openai:v0.11.0"):
    return pod(f"command: [sh, -c]\nargs:\n  - |\n    {command}\n{more}", image)


def kserve(spec):
    return f"apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {{name: x}}\nspec: {{predictor: {{model: {spec}}}}}\n"


@pytest.fixture
def gate(tmp_path):
    def run(text, device="l4", limits=None, name="a.yaml"):
        path = tmp_path / name
        path.write_text(text)
        if limits is None:
            return check([path], DAY, [device])[0].cells
        capacity = tmp_path / "kvcli.yaml"
        capacity.write_text(f"version: 1\ntargets:\n  - {{name: x, from: {name}, on: [{device}], limits: {limits}}}\n")
        return check([capacity], DAY)[0].cells

    return run


def said(cell, rule):
    found = [each for each in cell.outcomes if each.rule == rule]
    return max(found, key=lambda each: ("passed", "skipped", "note", "warning", "error").index(each.level))


def codes():
    """Every code that a Problem is made with: the first argument, or a name called `code`."""
    for path in Path(kvcli.check.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in ("Problem", "problem", "_problem"):
                    yield from (each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant))


def test_every_code_says_what_it_leaves_open():
    found = set(codes())
    assert "not_literal" in found
    assert found <= set(OPENS)


@pytest.mark.parametrize(
    ("text", "device", "why"),
    [
        (
            pod(f"env: [{{name: MODEL_ID, value: {M}-X}}]".replace("8B-Instruct-X", "70B-Instruct") + f"\n{NOT_THERE}", TGI),
            H100,
            "ConfigMap gone",
        ),
        (
            pod("env: [{name: MODEL_ID, value: meta-llama/Llama-3.1-70B-Instruct}]\nenvFrom: [{secretRef: {name: gone}}]", TGI),
            H100,
            "Secret gone",
        ),
        (shell(f"vllm serve {M} --max-model-len ${{LEN:-131072}}", NOT_THERE), "l4", "${LEN:-131072}"),
        (shell(f"export $(cat /env); vllm serve {M} --max-model-len ${{LEN:-131072}}"), "l4", "${LEN:-131072}"),
        (
            kserve("{runtime: own, modelFormat: {name: vLLM}, storageUri: hf://meta-llama/Llama-3.3-70B-Instruct}"),
            H100,
            "the runtime own",
        ),
        (
            "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata: {name: x}\n"
            f"spec: {{baseRefs: [{{name: base}}], model: {{uri: hf://{M}}}}}\n",
            "l4",
            "the base configuration base",
        ),
        (pod(f"args: [--model={M}, --weight-offload-ratio=0.9]", "vllm/vllm-openai:v0.40.0"), "l4", "--weight-offload-ratio"),
        (pod("args: [--model=/m/Llama-3.3-70B-Instruct, --quantization=awq_marlin, --max-model-len=8192]"), H100, "awq_marlin"),
        (
            pod("command: [python, -m, sglang.launch_server, --model-path, /m/Llama-3.3-70B-Instruct, --quantization, gptq_marlin]"),
            H100,
            "gptq_marlin",
        ),
        (
            pod("env: [{name: MODEL_ID, value: /m/Llama-3.3-70B-Instruct}, {name: QUANTIZE, value: awq}]", TGI),
            H100,
            "QUANTIZE awq",
        ),
        (
            shell(
                f"if nvidia-smi -L | grep -q H100; then vllm serve {M} --max-model-len 131072; else vllm serve {M} --max-model-len 8192; fi"
            ),
            "l4",
            "one of 2",
        ),
        (shell(f"case $X in a) vllm serve {M} --max-model-len 131072;; *) vllm serve {M} --max-model-len 8192;; esac"), "l4", "one of 2"),
        (shell(f"vllm serve {M} --max-model-len 131072 || vllm serve {M} --max-model-len 8192"), "l4", "one of 2"),
        (shell(f"vllm serve {M} --max-model-len 131072 || {{ sleep 1; vllm serve {M} --max-model-len 8192; }}"), "l4", "one of 2"),
        (pod("command: [llama-server, -m, /m/Llama-3.1-8B-Instruct-Q8_0.gguf, -c, '0', -np, '4', -ngl, '99']", "x/y"), "l4", "4 slots"),
    ],
)
def test_what_was_not_read_makes_a_fit_failure_a_warning(gate, text, device, why):
    found = said(gate(text, device)[0], "KV001")
    assert found.level == "warning", found
    assert found.message.startswith("not certain: ")
    assert "It may be otherwise, because" in found.message
    assert why in found.message


@pytest.mark.parametrize(
    "text",
    [
        pod(LONG),
        # vLLM takes no setting of memory from the environment
        pod(f"{LONG}\n{NOT_THERE}"),
        pod(f"{LONG}\nenv: [{{name: X, valueFrom: {{configMapKeyRef: {{name: gone, key: k}}}}}}]"),
        # a token is what a Secret holds
        shell(f"vllm serve {M} --max-model-len ${{LEN:-131072}}", "envFrom: [{secretRef: {name: gone}}]"),
        shell(f"vllm serve {M} --max-model-len ${{LEN:-131072}}"),
        # a slip is refused
        pod(f"args: [--model={M}, --max-modle-len=4096]"),
        shell(f"vllm serve {M} --max-model-len 131072 || exit 1"),
        shell(f"if [ -d /x ]; then vllm serve {M} --max-model-len 131072; fi"),
        shell(f"bash /prepare.sh && vllm serve {M} --max-model-len 131072"),
        pod(f"args: [--model={M}, --quantization=fp8, --max-model-len=131072, --kv-cache-dtype=bfloat16]"),
        pod("env: [{name: MODEL_ID, value: meta-llama/Llama-3.1-70B-Instruct}]", TGI),
    ],
)
def test_what_changes_nothing_leaves_the_failure(gate, text):
    assert said(gate(text)[0], "KV001").level == "error"


@pytest.mark.parametrize(
    "way", ["if x; then vllm serve {0} --max-model-len 131072; else {1}; fi", "vllm serve {0} --max-model-len 131072 || {1}"]
)
def test_a_script_of_which_every_branch_fails_fails(gate, way):
    def levels(last):
        return [said(each, "KV001").level for each in gate(shell(way.format(M, last)))]

    assert levels(f"vllm serve {M} --max-model-len 8192") == ["warning", "passed"]
    assert levels(f"vllm serve {M} --max-model-len 100000") == ["error", "error"]
    assert levels(f"vllm serve {M} --max-model-len 100000 $MORE") == ["warning", "warning"]


@pytest.mark.parametrize(
    ("rule", "limits", "options", "device"),
    [
        # 15.0e9 B at 300e9 B/s are 50 ms, and 16.1e9 B of 85e9 B are 19 %
        ("KV006", "{tpot: 12ms}", "--max-model-len 8192", "l4"),
        ("KV005", "{ttft: 12ms}", "--max-model-len 8192", "l4"),
        ("KV002", "{memory: 10%}", "--max-model-len 8192", H100),
        ("KV014", "{tpot: 1s}", "--max-model-len 8192 -tp 2", "l4"),
        ("KV004", "{tpot: 1s}", "--max-model-len 8192 -tp 3", "l4"),
        ("KV003", "{tpot: 1s}", "--max-model-len 200000", H100),
        ("KV011", "{tpot: 1s}", "--max-model-len 8192 --gpu-memory-utilization 1.0", "l4"),
    ],
)
def test_words_that_may_set_anything_soften_every_rule(gate, rule, limits, options, device):
    plain = said(gate(shell(f"vllm serve {M} {options}"), device, limits)[0], rule)
    assert plain.level == "error", plain
    open_ended = said(gate(shell(f"vllm serve {M} {options} $EXTRA_ARGS"), device, limits)[0], rule)
    assert open_ended.level == "warning"
    assert "$EXTRA_ARGS is only known where it runs" in open_ended.message


def test_a_cost_is_softened_too(tmp_path):
    path = tmp_path / "kvcli.yaml"
    path.write_text(
        "version: 1\nfleet: {pool: {device: l4, devices: 1, price_hour: 0.70}}\ntargets:\n  - name: x\n"
        f"    command: vllm serve {M} --max-model-len 8192 $EXTRA\n    on: [pool]\n    load: {{users: 1}}\n"
        "    limits: {cost_per_mtok: 1}\n"
    )
    assert said(check([path], DAY)[0].cells[0], "KV015").level == "warning"


def test_an_option_of_storage_does_not_excuse_missing_devices(gate):
    found = gate(pod(f"args: [--model={M}, --max-model-len=131072, --enable-eplb, -tp=2]"))[0]
    assert said(found, "KV014").level == "error"
    assert said(found, "KV001").level in ("passed", "warning")


def without_gpu(text):
    return text.replace("      resources: {limits: {nvidia.com/gpu: 1}}\n", "")


LLAMA = "args: [-m, /m/Llama-3.3-70B-Instruct-Q4_K_M.gguf, -c, '8192', -ngl, '99', --fit, 'off']"


@pytest.mark.parametrize(
    ("body", "image"),
    [
        (LLAMA, "ghcr.io/ggml-org/llama.cpp:server"),
        (LLAMA, "ghcr.io/ggml-org/llama.cpp:server-b6000"),
        (f"command: [vllm, serve, {M}]", "vllm-cpu-env"),
        (f"args: [--model, {M}]", "vllm/vllm-openai-cpu:v0.11.0"),
        (f"args: [--model, {M}]", "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.10.2"),
        (f"command: [vllm, serve, {M}]\nenv: [{{name: VLLM_CPU_KVCACHE_SPACE, value: '40'}}]", "acme/chat:1"),
    ],
)
def test_a_build_for_processors_is_not_held_against_a_device(gate, body, image):
    cell = gate(without_gpu(pod(body, image)))[0]
    assert cell.verdict == "pass", cell.outcomes
    assert said(cell, "KV001").level == "skipped"
    assert (said(cell, "KV008").level, "uses no accelerator" in said(cell, "KV008").message) == ("note", True)
    if "env:" not in body:
        assert "stay idle" in said(gate(pod(body, image))[0], "KV016").message


@pytest.mark.parametrize("tag", ["server", "server-b6000"])
def test_a_mirror_of_a_build_for_processors(gate, tag):
    """Without a device it is one; with one it may be the owner's own build, so that nothing of memory is certain."""
    image = f"registry.corp/llama.cpp:{tag}"
    assert said(gate(without_gpu(pod(LLAMA, image)))[0], "KV001").level == "skipped"
    asked = gate(pod(LLAMA, image))[0]
    assert said(asked, "KV001").level == "warning"
    assert "build for processors" in said(asked, "KV001").message
    assert said(gate(pod(LLAMA, "registry.corp/llama.cpp:server-cuda"))[0], "KV001").level == "error"


@pytest.mark.parametrize(
    "image", ["ghcr.io/ggml-org/llama.cpp:server-cuda", "ghcr.io/ggml-org/llama.cpp:server-vulkan-b6000", "acme/llama"]
)
def test_other_builds_are(gate, image):
    assert said(gate(without_gpu(pod(LLAMA.replace("args: [", "command: [llama-server, "), image)))[0], "KV001").level == "error"


@pytest.mark.parametrize(
    ("engine", "variable", "level"),
    [
        ("vllm", "{name: VLLM_ALLOW_LONG_MAX_MODEL_LEN, value: '1'}", "warning"),
        ("vllm", "{name: VLLM_ALLOW_LONG_MAX_MODEL_LEN, value: 'True'}", "warning"),
        ("vllm", "{name: VLLM_ALLOW_LONG_MAX_MODEL_LEN, valueFrom: {secretKeyRef: {name: s, key: k}}}", "warning"),
        ("vllm", "{name: VLLM_ALLOW_LONG_MAX_MODEL_LEN, value: '0'}", "error"),
        ("vllm", "{name: SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN, value: '1'}", "error"),
        ("sglang", "{name: SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN, value: 'true'}", "warning"),
        ("sglang", "{name: HOME, value: x}", "error"),
    ],
)
def test_a_variable_allows_more_than_the_trained_positions(gate, engine, variable, level):
    command = {
        "vllm": f"[vllm, serve, {M}, --max-model-len=200000]",
        "sglang": f"[python, -m, sglang.launch_server, --model-path={M}, --context-length=200000]",
    }[engine]
    cell = gate(pod(f"command: {command}\nenv: [{variable}]"), H100)[0]
    assert said(cell, "KV003").level == level
    # what does not fit does not fit: 200,000 x 131,072 B = 26.2e9 B beside 16.1e9 B
    if engine == "vllm":
        assert said(gate(pod(f"command: {command}\nenv: [{variable}]"))[0], "KV001").level == "error"


SERVE = "vllm serve meta-llama/Llama-3.1-405B-Instruct -tp 8 -pp 2 --max-model-len 8192"


@pytest.mark.parametrize(
    ("command", "level"),
    [
        (f"ray start --head --port=6379; sleep 60; {SERVE}", "warning"),
        (f"bash /vllm-workspace/multi-node-serving.sh leader --ray_cluster_size=2; {SERVE}", "warning"),
        (f"{SERVE}", "error"),
        (f"ray start --head; {SERVE.replace('-pp 2', '')}", "passed"),
    ],
)
def test_ray_may_have_the_other_devices(gate, command, level):
    assert said(gate(pod(f"command: [sh, -c]\nargs:\n  - |\n    {command}", gpus=8), H100)[0], "KV014").level == level


@pytest.mark.parametrize(
    ("tag", "share", "level"),
    [("v0.6.3", "1.0", "warning"), ("v0.10.2", "1.0", "warning"), ("v0.11.0", "1.0", "error"), ("v0.11.0", "0.98", "warning")],
)
def test_the_whole_memory_is_refused_where_the_free_memory_is_checked(gate, tag, share, level):
    text = pod(f"args: [--model={M}, --max-model-len=8192, --enforce-eager, --gpu-memory-utilization={share}]", f"vllm/vllm-openai:{tag}")
    assert said(gate(text)[0], "KV011").level == level


@pytest.mark.parametrize(
    ("command", "level"),
    [
        # 16 bit: 16.1e9 B and 100,000 x 131,072 B = 13.1e9 B; four bits would leave room for them
        ("[vllm, serve, bartowski/Meta-Llama-3.1-8B-Instruct-GGUF, --max-model-len=100000]", "warning"),
        ("[llama-server, -hf, bartowski/Meta-Llama-3.1-8B-Instruct-GGUF, -c, '100000', -np, '1', -ngl, '99', -fit, 'off']", "warning"),
        ("[llama-server, -hf, 'bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:F16', -c, '100000', -np, '1', -ngl, '99', -fit, 'off']", "error"),
        (f"[vllm, serve, {M}, --max-model-len=100000]", "error"),
    ],
)
def test_gguf_files_of_a_type_that_no_name_tells(gate, command, level):
    found = said(gate(pod(f"command: {command}"))[0], "KV001")
    assert found.level == level, found
    assert ("names GGUF files and not their type" in found.message) == (level == "warning")


COMPOSE = "services:\n  a:\n    image: {}\n    gpus: {}\n    command: {}\n"
ON_ALL = "-m /m/Llama-3.3-70B-Instruct-Q4_K_M.gguf -c 8192 -np 1 -ngl 99 -fit off"


@pytest.mark.parametrize(
    ("image", "command"),
    [("ghcr.io/ggml-org/llama.cpp:server-cuda", ON_ALL), (TGI, f"--model-id {BIG} --max-total-tokens 8192")],
)
def test_engines_that_take_every_device_are_not_held_against_one(gate, tmp_path, image, command):
    found = said(gate(COMPOSE.format(image, "all", command), name="compose.yaml")[0], "KV001")
    assert (found.level, "takes every device it sees" in found.message) == ("warning", True)
    assert said(gate(COMPOSE.format(image, "1", command), name="compose.yaml")[0], "KV001").level == "error"
    # a pool of one has no others
    (tmp_path / "compose.yaml").write_text(COMPOSE.format(image, "all", command))
    (tmp_path / "kvcli.yaml").write_text(
        "version: 1\nfleet: {one: {device: l4, devices: 1}}\ntargets: [{name: x, from: compose.yaml, on: [one]}]\n"
    )
    assert said(check([tmp_path / "kvcli.yaml"], DAY)[0].cells[0], "KV001").level == "error"


@pytest.mark.parametrize(
    ("image", "gpus", "level"),
    [
        ("acme/vllm:0.9-cpu", False, "skipped"),
        # what is no build of the engine's own is believed where devices are requested for it
        ("acme/vllm:0.9-cpu", True, "error"),
        ("acme/vllm:cuda-cpu-offload", False, "error"),
        ("vllm/vllm-openai-cpu:v0.11.0", True, "skipped"),
    ],
)
def test_an_image_that_says_cpu(gate, image, gpus, level):
    text = pod(f"command: [vllm, serve, {M}, --max-model-len=131072]", image)
    assert said(gate(text if gpus else without_gpu(text))[0], "KV001").level == level


def test_a_build_for_processors_is_held_against_a_processor(gate):
    text = without_gpu(pod(f"command: [vllm, serve, {M}, --max-model-len=131072]", "vllm-cpu-env"))
    assert said(gate(text, "cpu-ddr5-5600-2")[0], "KV008").level == "passed"
