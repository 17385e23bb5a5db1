"""A ConfigMap that is one of several of its name: what they say alike is known, and the rest is not."""

import pytest

from kvcli.check.run import check
from tests.check.test_doubts import DAY, TGI, M, said


def pod(body, image="vllm/vllm-openai:v0.9.2", namespace=""):
    meta = f"{{name: x{namespace and f', namespace: {namespace}'}}}"
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {meta}\nspec:\n  containers:\n    - name: c\n      image: {image}\n"
        f"      {body}\n      resources: {{limits: {{nvidia.com/gpu: 1}}}}\n"
    )


def config(length, namespace="", more=""):
    meta = f"{{name: c{namespace and f', namespace: {namespace}'}}}"
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {meta}\ndata: {{ML: '{length}'{more}}}\n"


FROM = f"args: [--model={M}, --max-model-len=$(ML)]\n      envFrom: [{{configMapRef: {{name: c}}}}]"
KEY = f"args: [--model={M}, --max-model-len=$(ML)]\n      env: [{{name: ML, valueFrom: {{configMapKeyRef: {{name: c, key: ML}}}}}}]"


@pytest.fixture
def cell(tmp_path):
    def run(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        return check([tmp_path], DAY, ["l4"])[0].cells[0]

    return run


def problem(found):
    return " ".join(each.message for each in found.outcomes if each.rule == "KV016" and each.level == "warning")


@pytest.mark.parametrize("way", [FROM, KEY])
@pytest.mark.parametrize(("dev", "prod"), [(8192, 131072), (131072, 8192), (131072, 100000)])
def test_two_folders_as_near(cell, way, dev, prod):
    """Which of them is applied with the base is not said: 131,072 tokens do not fit an L4, 8,192 do."""
    found = cell(base__a=pod(way), dev__cm=config(dev), prod__cm=config(prod))
    assert found.verdict == "warn"
    assert "2 ConfigMaps called c may be meant" in problem(found)
    assert "dev/cm.yaml" in problem(found) and "prod/cm.yaml" in problem(found)
    assert said(found, "KV001").level == "warning"


@pytest.mark.parametrize("way", [FROM, KEY])
def test_they_say_the_same_of_what_is_read(cell, way):
    found = cell(base__a=pod(way), dev__cm=config(131072), prod__cm=config(131072))
    assert (said(found, "KV001").level, problem(found)) == ("error", "")


def test_a_key_that_nothing_reads_may_differ(cell):
    found = cell(base__a=pod(KEY), dev__cm=config(131072, more=", URL: a"), prod__cm=config(131072, more=", URL: b"))
    assert (said(found, "KV001").level, problem(found)) == ("error", "")


def test_the_one_of_the_same_folder_is_meant(cell):
    found = cell(base__a=pod(FROM), base__cm=config(131072), prod__cm=config(8192))
    assert (said(found, "KV001").level, problem(found)) == ("error", "")


@pytest.mark.parametrize("way", [FROM, KEY])
def test_one_of_a_namespace_that_is_not_named(cell, way):
    found = cell(a=pod(way), cm=config(131072, "other"))
    assert "ConfigMap c is of namespace other, and Pod x names none" in problem(found)
    assert said(found, "KV001").level == "warning"
    assert said(cell(a=pod(way, namespace="other"), cm=config(131072, "other")), "KV001").level == "error"


def test_variables_of_tgi(cell):
    body = f"args: [--model-id, {M}]\n      envFrom: [{{configMapRef: {{name: c}}}}]"
    maps = [config(1, more=f", MAX_TOTAL_TOKENS: '{each}'") for each in (100000, 8192)]
    found = cell(base__a=pod(body, TGI), dev__cm=maps[0], prod__cm=maps[1])
    assert said(found, "KV001").level == "warning"
    assert "MAX_TOTAL_TOKENS" in problem(found)


def test_a_script_that_differs(cell):
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata:\n  run.sh: vllm serve {} --max-model-len {}\n"
    body = "command: [sh, /s/run.sh]\n      volumeMounts: [{name: s, mountPath: /s}]\n"
    base = pod(body) + "  volumes: [{name: s, configMap: {name: c}}]\n"
    found = cell(base__a=base, dev__cm=text.format(M, 131072), prod__cm=text.format(M, 8192))
    assert found.verdict == "warn", found.outcomes
    assert "2 ConfigMaps called c" in problem(found)
