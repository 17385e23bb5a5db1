"""What is not known leaves a failure open only where it could really undo it: bits, devices and hosts worked by hand."""

import pytest

from kvcli.check.run import check
from tests.check.test_doubts import BIG, DAY, H100, NOT_THERE, TGI, M, pod, said, shell

NEWEST = "vllm/vllm-openai:v0.40.0"
KNOWN = "vllm/vllm-openai:v0.11.0"
UNSAID = "vllm/vllm-openai:latest"


@pytest.fixture
def cell(tmp_path):
    def run(text, device="l4"):
        (tmp_path / "a.yaml").write_text(text)
        return check([tmp_path / "a.yaml"], DAY, [device])[0].cells[0]

    return run


def level(cell, rule="KV001"):
    return said(cell, rule).level


@pytest.mark.parametrize("image", [KNOWN, NEWEST, UNSAID])
@pytest.mark.parametrize("option", ["--some-new-log-flag", "--maxModelLen=8192", "--max-model-lenght=8192"])
def test_an_unknown_option_of_a_known_version_undoes_nothing(cell, image, option):
    """Llama 70B has 141e9 B of weights, and an L4 23.65e9."""
    found = cell(pod(f"args: [--model={BIG}, {option}]", image))
    assert level(found) == ("error" if image == KNOWN else "warning")


@pytest.mark.parametrize(
    ("option", "image", "levels"),
    [
        ("--gpu-memory-utilization=90", KNOWN, ("error", "error")),
        ("--gpu-memory-utilization=1.2", KNOWN, ("error", "error")),
        ("--max-model-len=abc", KNOWN, ("error", "error")),
        ("--max-model-len=auto", KNOWN, ("error", "error")),
        ("--max-model-len", KNOWN, ("error", "error")),
        ('"--speculative-config={method: ngram}"', KNOWN, ("error", "error")),
        # the newest may take it, or what the tag means today
        ("--max-model-len=abc", UNSAID, ("error", "warning")),
        ("--max-model-len=abc", NEWEST, ("warning", "warning")),
        ("--max-model-len=0", KNOWN, ("warning", "warning")),
    ],
)
def test_what_an_engine_refuses_fails_and_undoes_nothing(cell, option, image, levels):
    found = cell(pod(f"args: [--model={BIG}, {option}]", image))
    assert (level(found), level(found, "KV016")) == levels
    assert ("so it does not start" in said(found, "KV016").message) == (levels[1] == "error")
    fits = cell(pod(f"args: [--model={M}, {option}]", image), H100)
    assert (level(fits), level(fits, "KV016")) == ("passed", levels[1])


def test_refused_lengths_of_tgi(cell):
    text = pod(f"args: [--model-id, {M}, --max-input-tokens, '9000', --max-total-tokens, '8192']", TGI)
    assert level(cell(text), "KV016") == "error"
    assert level(cell(text.replace("9000", "8191")), "KV016") in ("passed", "note")


def test_what_a_branch_that_may_not_run_is_refused_only_warns(cell):
    text = shell(f"if x; then vllm serve {M} --max-model-len abc; else vllm serve {M} --max-model-len 8192; fi")
    assert level(cell(text), "KV016") == "warning"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--device=cuda", "error"),
        ("--device=auto", "error"),
        ("--device=cpu", "warning"),
        ("--disable-sliding-window", "error"),
        ("--enable-eplb", "error"),
        ("--performance-mode=throughput", "error"),
        ("--kv-cache-dtype=turboquant_4bit_nc", "error"),
        # 4 bits of 70.6e9 parameters are 35e9 B
        ("--qlora-adapter-name-or-path=x/y", "error"),
        ("--offload-group-size=8", "warning"),
        ("--hf-overrides.num_hidden_layers=2", "warning"),
        ("--max-model-len=$(ML)", "error"),
    ],
)
def test_an_option_undoes_what_it_could(cell, option, expected):
    more = f"\n{NOT_THERE}" if "$(" in option else ""
    assert level(cell(pod(f"args: [--model={BIG}, '{option}']{more}", KNOWN))) == expected


@pytest.mark.parametrize("option", ["--disable-sliding-window", "--kv-cache-dtype=turboquant_4bit_nc", "--max-model-len=$(ML)"])
def test_what_changes_the_cache_leaves_a_failure_of_the_cache_open(cell, option):
    """8B weights are 16.1e9 B; the cache of 131,072 tokens is 17.2e9 more."""
    assert level(cell(pod(f"args: [--model={M}, '{option}']\n{NOT_THERE}", KNOWN))) == "warning"


@pytest.mark.parametrize(
    ("variable", "expected"), [("VLLM_USE_V1, value: '0'", "error"), ("VLLM_PP_LAYER_PARTITION, value: '40,40'", "error")]
)
def test_a_variable_undoes_what_it_could(cell, variable, expected):
    assert level(cell(pod(f"args: [--model={BIG}]\nenv: [{{name: {variable}}}]"))) == expected
    assert level(cell(pod(f"args: [--model={M}]\nenv: [{{name: {variable}}}]"))) == "warning"


@pytest.mark.parametrize(
    ("gpus", "device", "expected"),
    [
        (1, "l4", "error"),  # 35e9 B in 4 bits
        (1, H100, "warning"),
        (2, "l4", "warning"),  # 17.6e9 B on each
    ],
)
@pytest.mark.parametrize("source", [NOT_THERE, "envFrom: [{secretRef: {name: hf-token}}]"])
def test_variables_that_are_not_among_the_files(cell, source, gpus, device, expected):
    text = pod(f"env: [{{name: MODEL_ID, value: {BIG}}}]\n{source}", TGI, gpus)
    assert level(cell(text, device)) == expected


def test_llama_server_may_be_told_to_leave_layers_on_the_host(cell):
    args = "args: [-m, /m/Llama-3.3-70B-Instruct-Q4_K_M.gguf, -c, '8192', --fit, 'off']"
    found = cell(pod(f"{args}\nenvFrom: [{{secretRef: {{name: s}}}}]", "ghcr.io/ggml-org/llama.cpp:server-cuda-b8000"))
    assert level(found) == "warning"


@pytest.mark.parametrize(("device", "expected"), [("l4", "warning"), ("t4", "error")])
def test_files_of_a_type_that_is_not_known_have_two_bits_at_least(cell, device, expected):
    """70.6e9 parameters / 4 = 17.6e9 B: more than a T4 has, less than an L4 has."""
    text = pod("args: [--model=/m/Llama-3.3-70B-Instruct, --quantization=gptq, --max-model-len=1024]")
    assert level(cell(text, device)) == expected
