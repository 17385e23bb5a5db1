"""What a verdict depends on and stands beside the command: nothing of it goes unsaid."""

import datetime

import pytest

from kvcli.check.run import check

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DAY = datetime.date(2026, 11, 29)
POD = """apiVersion: apps/v1
kind: Deployment
metadata: { name: x }
spec:
  replicas: 1
  template:
    spec:
      containers:
        - name: c
          image: vllm/vllm-openai:v0.9.2
          args: [ARGS]
          resources: { limits: { nvidia.com/gpu: 1 } }
"""


def pod(*args, **changes):
    text = POD.replace("ARGS", ", ".join(f"--model={MODEL}" if each is None else each for each in (None, *args)))
    for key, value in changes.items():
        text = text.replace(*value) if isinstance(value, tuple) else text.replace(key, value)
    return text


@pytest.fixture
def said(tmp_path):
    """(level, message) of what a rule says of files, for each target."""

    def run(rule, given=".", device="l4", **files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_yaml", ".yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        report, _ = check([tmp_path / given], DAY, devices=[device] if device else ())
        return [(each.level, each.message) for cell in report.cells for each in cell.outcomes if each.rule == rule]

    return run


def test_a_variable_hides_devices_of_a_container_that_its_image_starts(said):
    text = pod("--max-model-len=4096", "--tensor-parallel-size=2", gpus=("gpu: 1", "gpu: 2"))
    assert said("KV014", a_yaml=text) == [("passed", "")]
    hidden = text.replace("          args", '          env: [{ name: CUDA_VISIBLE_DEVICES, value: "0" }]\n          args')
    ((level, message),) = said("KV014", a_yaml=hidden)
    assert (level, message) == ("error", "the engine uses 2 devices (tp 2), and 1 is visible")
    assert said("KV014", a_yaml=hidden.replace('"0"', '"0,1"')) == [("passed", "")]
    # a word that is no list of devices hides none
    assert said("KV014", a_yaml=hidden.replace("CUDA", "NVIDIA").replace('"0"', "all")) == [("passed", "")]


SCRIPT = "for i in 0 1 2 3; do CUDA_VISIBLE_DEVICES=$i vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len %s %s & done; wait"


def test_copies_of_a_loop_each_see_a_device_of_their_own(said):
    """Four of them on four GPUs: which one each sees is only known where it runs, so that none is said to stay idle."""

    def looped(length, more=""):
        text = pod("--max-model-len=4096", gpus=("gpu: 1", "gpu: 4"))
        head, _, tail = text.partition("args:")
        rest = tail.partition("\n")[2]
        return f"{head}command: [bash, -c, '{SCRIPT % (length, more)}']\n{rest}"

    assert [level for level, _ in said("KV014", a_yaml=looped(4096))] == ["passed"]
    # more than the container has stays certain
    assert [level for level, _ in said("KV014", a_yaml=looped(4096, "--tensor-parallel-size 8"))] == ["error"]
    # without the variable three do stay idle
    plain = looped(4096).replace("CUDA_VISIBLE_DEVICES=$i ", "")
    assert [level for level, _ in said("KV014", a_yaml=plain)] == ["warning"]


def test_replicas_that_the_pool_cannot_hold_together(said):
    head = "version: 1\nfleet: { p: { device: l4, devices: 2 } }\ntargets: [{ name: a, from: a.yaml, on: [p] }]\n"
    text = pod("--max-model-len=4096", replicas=("replicas: 1", "replicas: 4"))
    ((level, message),) = said("KV014", "kvcli.yaml", None, kvcli_yaml=head, a_yaml=text)
    assert (level, message) == ("warning", "4 replicas use 4 devices (tp 1 each), and the pool p has 2")
    assert said("KV014", "kvcli.yaml", None, kvcli_yaml=head.replace("devices: 2", "devices: 4"), a_yaml=text) == [("passed", "")]


def test_a_warning_hides_no_failure(said):
    head = "version: 1\nfleet: { p: { device: l4, devices: 2 } }\ntargets: [{ name: a, from: a.yaml, on: [p] }]\n"
    text = pod("--max-model-len=4096", "--tensor-parallel-size=2", replicas=("replicas: 1", "replicas: 4"))
    ((level, message),) = said("KV014", "kvcli.yaml", None, kvcli_yaml=head, a_yaml=text)
    assert (level, message) == ("error", "the engine uses 2 devices (tp 2), and 1 is requested")


def test_devices_of_another_maker(said):
    amd = pod("--max-model-len=4096", gpus=("nvidia.com/gpu", "amd.com/gpu"))
    ((level, message),) = said("KV014", a_yaml=amd)
    assert (level, message) == ("warning", "amd.com/gpu is requested, and l4 is a part of NVIDIA")
    assert said("KV014", device="mi300x", a_yaml=amd) == [("passed", "")]
    assert said("KV014", device="mi300x", a_yaml=pod("--max-model-len=4096"))[0][0] == "warning"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("patches: [{ path: p.yaml }]", "warning"),
        ("components: [../more]", "warning"),
        # another version, or more replicas, do not make it fit
        ("images: [{ name: x }]", "error"),
        ("replicas:\n  - { name: x, count: 2 }", "error"),
    ],
)
def test_a_kustomization_that_changes_manifests_is_said_and_patches_leave_nothing_certain(said, change, expected):
    files = {"base__a_yaml": pod("--max-model-len=100000"), "prod__kustomization_yaml": f"resources: [../base]\n{change}\n"}
    assert [level for level, _ in said("KV001", **files)] == [expected]
    ((level, message),) = said("KV016", **files)
    assert level == "warning" and "kustomize build" in message
    # one that only lists them changes nothing
    files["prod__kustomization_yaml"] = "resources: [../base]\n"
    assert [level for level, _ in said("KV001", **files)] == ["error"]


CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: cfg }\ndata: { LEN: 'LENGTH' }\n"
FROM = ("          args", "          envFrom: [{ configMapRef: { name: cfg } }]\n          args")


def test_a_config_map_of_the_own_folder_counts(said):
    files = {}
    for folder, length in (("dev", "4096"), ("prod", "100000")):
        files[f"{folder}__a_yaml"] = pod('"--max-model-len=$(LEN)"', source=FROM)
        files[f"{folder}__c_yaml"] = CONFIG.replace("LENGTH", length)
    assert [level for level, _ in said("KV001", **files)] == ["passed", "error"]


def test_a_config_map_of_another_namespace_is_not_there(said):
    a = pod('"--max-model-len=$(LEN)"', source=FROM, own=("{ name: x }", "{ name: x, namespace: one }"))
    other = CONFIG.replace("LENGTH", "100000").replace("{ name: cfg }", "{ name: cfg, namespace: two }")
    assert [level for level, _ in said("KV001", a_yaml=a, c_yaml=other)] == ["warning"]
    assert [level for level, _ in said("KV001", a_yaml=a, c_yaml=other.replace("two", "one"))] == ["error"]
    # where none is said, it is the one that kubectl is in
    assert [level for level, _ in said("KV001", a_yaml=a, c_yaml=other.replace(", namespace: two", ""))] == ["error"]


def test_an_image_that_nobody_knows_and_that_is_told_a_length_is_mentioned(said):
    unknown = pod("--max-model-len=4096", image=("vllm/vllm-openai:v0.9.2", "registry.example/llm:3"))
    ((level, message),) = said("KV016", a_yaml=unknown + "---\n" + pod("--max-model-len=4096", name=("name: x", "name: y")))[:1]
    assert level == "warning"
    assert message.startswith("--max-model-len=4096 is an option of an engine, and registry.example/llm:3 is none that kvcli knows")


def test_a_baseline_that_is_named_and_missing_is_mentioned(kvcli, tmp_path):
    (tmp_path / "kvcli.yaml").write_text(f"version: 1\nbaseline: b.json\ntargets: [{{ name: a, model: {MODEL}, ctx: 4k, on: [l4] }}]\n")
    done = kvcli("check", "kvcli.yaml", cwd=tmp_path)
    assert (done.code, "there is no baseline b.json yet" in done.err) == (0, True)
    assert "no baseline" not in kvcli("check", "kvcli.yaml", "--update-baseline", cwd=tmp_path).err
    assert kvcli("check", "kvcli.yaml", cwd=tmp_path).err == ""


@pytest.mark.parametrize("extends", ["{ file: missing.yaml, service: base }", "{ service: base }"])
def test_a_service_whose_base_is_missing_does_not_vanish(said, extends):
    own = f"    extends: {extends}\n    command: --model {MODEL} --max-model-len 4096\n    gpus: all\n"
    whole = f"services:\n  llm:\n{own}  other:\n    image: vllm/vllm-openai:v0.9.2\n    command: --model {MODEL} --max-model-len 4096\n"
    found = [message for level, message in said("KV016", compose_yaml=whole) if level == "warning"]
    assert any("extended" in each for each in found)
    assert any("is not checked" in each for each in found)
    # the base may say all of it
    bare = whole.replace(f"    command: --model {MODEL} --max-model-len 4096\n    gpus: all\n", "    environment: [A=b]\n", 1)
    assert any("is not checked" in message for level, message in said("KV016", compose_yaml=bare) if level == "warning")
    # one with an image of its own that is no engine's stays silent
    quiet = bare.replace("    environment: [A=b]\n", "    image: redis:7\n", 1)
    assert [level for level, _ in said("KV016", compose_yaml=quiet)] == ["passed"]


def test_a_service_whose_base_is_missing_is_mentioned_where_it_is_alone(said):
    alone = "services:\n  llm:\n    extends: { file: missing.yaml, service: z }\n"
    assert any("is not checked" in message for level, message in said("KV016", compose_yaml=alone) if level == "warning")
