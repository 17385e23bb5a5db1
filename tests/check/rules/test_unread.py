"""Arguments that are set to what nothing here understands: said for what they are, and not as if they were absent."""

import datetime

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
