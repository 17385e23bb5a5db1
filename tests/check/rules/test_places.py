"""Where a finding stands: on the line that holds the value at fault, in the file that holds it."""

import datetime

import pytest

from kvcli.check.run import check

DAY = datetime.date(2026, 11, 29)
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def places(tmp_path):
    """`FILE:LINE:COLUMN` of what a rule says of files that are written, and the text at that place."""

    def run(rule, devices=(), main=None, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        path = tmp_path / f"{main or next(iter(files))}.yaml" if main != "." else tmp_path
        report, _ = check([path], DAY, devices=devices)
        found = []
        for each in (each for cell in report.cells for each in cell.outcomes if each.rule == rule):
            name = each.place.file.rpartition("/")[2]
            line = (tmp_path / name).read_text().splitlines()[each.place.line - 1]
            found.append((name, each.place.line, line[each.place.column - 1 :]))
        return found

    return run


HEAD = "version: 1\ntargets:\n  - name: a\n    on: [l4]\n    command: "


@pytest.mark.parametrize("style", ["|", ">-", ">", "|-"])
def test_a_command_of_several_lines_in_a_capacity_file(places, style):
    end = "" if style.startswith(">") else " \\"
    text = f"{HEAD}{style}\n      vllm serve {MODEL}{end}\n      --max-model-len 100000\n"
    assert places("KV001", kvcli=text) == [("kvcli.yaml", 7, "100000")]
    # blank lines before the command
    assert places("KV001", kvcli=text.replace(f": {style}\n", f": {style}\n\n")) == [("kvcli.yaml", 8, "100000")]


@pytest.mark.parametrize("quote", ['"', ""])
def test_a_command_over_several_lines_in_quotes_or_none(places, quote):
    text = f"{HEAD}{quote}vllm serve {MODEL}\n      --max-model-len 100000{quote}\n"
    assert places("KV001", kvcli=text) == [("kvcli.yaml", 6, f"100000{quote}")]


POD = """apiVersion: v1
kind: Pod
metadata: { name: x }
spec:
  containers:
    - name: c
      image: vllm/vllm-openai:v0.9.2
      COMMAND
      env:
        - name: ML
          VALUE
---
apiVersion: v1
kind: ConfigMap
metadata: { name: lengths }
data:
  short: "8192"
  long: "100000"
"""
CONTEXT = f"vllm serve {MODEL} --max-model-len"


@pytest.mark.parametrize(
    "command",
    [
        f'args: ["--model={MODEL}", "--max-model-len=$(ML)"]',
        f'args: ["--model={MODEL}", "--max-model-len", "$(ML)"]',
        f"command: [sh, -c]\n      args: ['{CONTEXT}=$ML']",
        f"command: [sh, -c]\n      args: ['{CONTEXT}=\"$ML\"']",
        f"command: [sh, -c, '{CONTEXT} ${{ML}}']",
        f"command: [sh, -c, '{CONTEXT}=$(ML)']",
        f"command: [sh, -c]\n      args:\n        - |\n          {CONTEXT}=$ML \\\n            --enforce-eager",
    ],
)
def test_a_length_out_of_a_variable_stands_where_its_value_does(places, command):
    """A pull request that changes the value alone shows the annotation in its diff."""
    pod = POD.replace("COMMAND", command)
    (found,) = places("KV001", ["l4"], pod=pod.replace("VALUE", 'value: "100000"'))
    assert found[2] == '"100000"'
    (found,) = places("KV001", ["l4"], pod=pod.replace("VALUE", "valueFrom: { configMapKeyRef: { name: lengths, key: long } }"))
    assert found[2] == '"100000"'
    assert places("KV001", ["l4"], pod=pod.replace("VALUE", 'value: "4096"'))[0][0] == "pod.yaml"


def test_a_length_out_of_composes_variables_stands_in_its_file(places, tmp_path):
    (tmp_path / ".env").write_text("# lengths\nML=100000\n")
    text = f"services:\n  llm:\n    image: vllm/vllm-openai:v0.9.2\n    command: --model {MODEL} --max-model-len=${{ML}}\n"
    assert places("KV001", ["l4"], compose=text) == [(".env", 2, "100000")]
    assert places("KV001", ["l4"], compose=text.replace("${ML}", "${LM:-100000}"))[0][:2] == ("compose.yaml", 4)
