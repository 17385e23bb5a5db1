"""Arguments that are set to what nothing here understands: said for what they are, and not as if they were absent."""

import datetime
import re

import pytest

from kvcli.check.run import check

DAY = datetime.date(2026, 11, 29)
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
POD = """apiVersion: v1
kind: Pod
metadata: { name: x }
spec:
  containers:
    - name: c
      image: vllm/vllm-openai:v0.9.2
      ARGS
"""


@pytest.fixture
def cell(tmp_path):
    def run(args, text=POD):
        (tmp_path / "a.yaml").write_text(text.replace("ARGS", args))
        return check([tmp_path / "a.yaml"], DAY, devices=["l4"])[0].cells[0]

    return run


def said(cell, rule):
    return [each for each in cell.outcomes if each.rule == rule]


def listed(*args):
    return "args: [" + ", ".join(f'"{each}"' for each in (f"--model={MODEL}", *args)) + "]"


@pytest.mark.parametrize("value", ["${ML}", "$ML", "8k tokens", "{{ length }}", "auto"])
def test_a_length_that_is_not_understood_is_not_called_absent(cell, value):
    found = cell(listed(f"--max-model-len={value}"))
    assert "the length that is set is not known: the model's own, 131,072 tokens" in found.assumed
    assert not [each for each in found.assumed if "no length is set" in each]
    assert [each.level for each in said(found, "KV001")] == ["warning"]
    (why,) = [each for each in said(found, "KV016") if each.level in ("warning", "error")]
    refused = value in ("8k tokens", "auto")
    assert ("refuses" in why.message, why.level == "error") == (refused, refused)


def test_no_length_is_still_called_so(cell):
    assert "no length is set: the model's own, 131,072 tokens" in cell(listed()).assumed


def test_a_compose_variable_that_nothing_sets_is_not_refused_by_the_engine(cell):
    text = f"services:\n  llm:\n    image: vllm/vllm-openai:v0.9.2\n    command: --model {MODEL} --max-model-len ${{ML}}\n"
    found = cell("", text)
    assert "the length that is set is not known: the model's own, 131,072 tokens" in found.assumed
    assert not [each.message for each in said(found, "KV016") if "refuses" in each.message]


def test_a_model_that_is_to_be_filled_in(cell):
    (found,) = said(cell('args: ["--model=${MODEL}", "--max-model-len=4096"]'), "KV009")
    assert "only known where it runs" in found.message


@pytest.mark.parametrize("length", ["4096", "100000"])
def test_an_option_and_its_value_in_one_word(cell, length):
    """vLLM takes the word for a model's name, and does not start; it is held against what it means beside that."""
    found = cell(listed(f"--max-model-len {length}"))
    (why,) = [each for each in said(found, "KV016") if each.level == "error"]
    assert "is one word" in why.message
    assert [each.level for each in said(found, "KV001")] == ["passed" if length == "4096" else "error"]
    assert not [each for each in found.assumed if "length" in each]


def test_arguments_as_a_text_are_no_models_name(cell):
    found = cell(f"args: --model={MODEL} --max-model-len=100000")
    assert "a text, and Kubernetes takes a list" in " ".join(each.message for each in said(found, "KV016"))
    assert said(found, "KV009")[0].level == "passed"
    assert "one request of 100,000 tokens" in said(found, "KV001")[0].message


@pytest.mark.parametrize("value", ["${N}", "many"])
def test_the_same_of_llama_server(cell, value):
    found = cell(
        f'command: [llama-server, -m, /m/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf, -c, "{value}"]',
        POD.replace("vllm/vllm-openai:v0.9.2", "x"),
    )
    assert "the length that is set is not known: the model's own, 131,072 tokens" in found.assumed


@pytest.mark.parametrize(
    ("command", "weights"),
    [
        ("llama-server -hf unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL -c 8192 -ngl 99", "q4_k_s"),
        ("llama-server -hf bartowski/Qwen2.5-7B-Instruct-GGUF:Q6_K_L -c 8192", "q6_k"),
        ("llama-server -m Qwen3-8B-UD-Q8_K_XL.gguf -c 8192", "q8_0"),
    ],
)
def test_a_mix_that_kvcli_has_no_rule_for_fails_nothing(tmp_path, command, weights):
    """Unsloth and bartowski name files so; the type is of the weights, and says nothing about the cache."""
    path = tmp_path / "kvcli.yaml"
    path.write_text(f"version: 1\ntargets:\n  - name: a\n    command: {command}\n    on: [l4]\n")
    report, _ = check([path], datetime.date(2026, 11, 30))
    outcomes = report.cells[0].outcomes
    assert not [each for each in outcomes if each.level == "error"]
    assert any(f"counts {weights}" in each.message for each in outcomes)


def test_positions_that_an_option_gives_a_model(tmp_path):
    path = tmp_path / "kvcli.yaml"
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 131072"
    for option, level in (("", "error"), (""" --hf-overrides '{"max_position_embeddings":131072}'""", "warning")):
        path.write_text(f"version: 1\ntargets:\n  - name: a\n    command: |\n      {command}{option}\n    on: [h100-sxm5-80]\n    tp: 2\n")
        report, _ = check([path], datetime.date(2026, 11, 30))
        assert {each.rule: each.level for each in report.cells[0].outcomes}["KV003"] == level


@pytest.mark.parametrize(
    ("line", "weights_bytes"),
    [
        (
            "docker run --gpus all -e MODEL_ID=mistralai/Mistral-7B-Instruct-v0.3 ghcr.io/huggingface/text-generation-inference:2",
            14_496_047_104,
        ),
        ("docker run -d --gpus all -e LLAMA_ARG_MODEL=/m/Qwen3-8B-Q4_K_M.gguf ghcr.io/ggml-org/llama.cpp:server-cuda", 4_900_000_000),
    ],
)
def test_an_image_that_variables_tell_what_to_serve(tmp_path, line, weights_bytes):
    path = tmp_path / "run.sh"
    path.write_text(line + "\n")
    report, _ = check([path], datetime.date(2026, 11, 30), ["l4"])
    (cell,) = report.cells
    found = next(each for each in cell.outcomes if each.rule == "KV001")
    assert int(re.search(r"weights ([\d,]+)", found.formula)[1].replace(",", "")) == pytest.approx(weights_bytes, rel=0.03)
    assert not [each for each in cell.outcomes if each.level == "error"]
