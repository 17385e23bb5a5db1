"""References, folders, command files, and that no text brings a traceback or takes long."""

import gc
import random
import time
from pathlib import Path

import pytest

from kvcli.check.manifests.read import launch_of_command, launches_at, read_launches
from kvcli.check.nodes import Place
from kvcli.errors import BadInput

TWO = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec: {template: {spec: {containers: [{name: engine, args: [a]}, {name: proxy, args: [b]}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: batch}
spec: {containers: [{name: engine, args: [c]}]}
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", ["a", "b", "c"]),
        ("#Deployment/chat", ["a", "b"]),
        ("#deployment/chat/proxy", ["b"]),
        ("#Pod/batch", ["c"]),
        ("#batch", ["c"]),
    ],
)
def test_references(files, helpers, name, expected):
    texts, _ = helpers
    files.write(TWO, "deploy/chat.yaml")
    found = launches_at(f"./deploy/chat.yaml{name}", files.folder)
    assert [word for each in found for word in texts(each)] == expected
    assert found[0].place.file == (files.folder / "deploy/chat.yaml").as_posix()


def test_an_unknown_reference_lists_what_there_is(files):
    files.write(TWO, "chat.yaml")
    with pytest.raises(BadInput, match=r"holds no Deployment/chta, only Deployment/chat, Pod/batch") as caught:
        launches_at("chat.yaml#Deployment/chta", files.folder)
    assert caught.value.code == "unknown_reference"
    for reference in ("chat.yaml#", "gone.yaml#Pod/x"):
        with pytest.raises(BadInput):
            launches_at(reference, files.folder)


def test_a_folder_is_its_yaml_files(files):
    files.write(TWO, "d/b.yaml")
    files.write(TWO.replace("chat", "other"), "d/a.yml")
    files.write("nothing: here", "d/values.yaml")
    files.write(TWO, "d/.hidden/x.yaml")
    assert [each.name for each in read_launches([files.folder / "d"])][::3] == ["Deployment/other", "Deployment/chat"]


@pytest.mark.parametrize("name", ["a.yaml", "b.yaml"])
def test_names_that_repeat_take_the_near_config(files, name):
    """A base and an overlay hold a ConfigMap of one name: each pod reads the one of its own file."""
    for each, length in (("a.yaml", "1"), ("b.yaml", "2")):
        files.write(
            f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{LEN: '{length}'}}\n---\napiVersion: v1\nkind: Pod\n"
            "metadata: {name: p}\nspec: {containers: [{name: e, args: [$(LEN)], envFrom: [{configMapRef: {name: c}}]}]}\n",
            each,
        )
    (launch,) = read_launches([files.folder / name], also=[files.folder])
    assert launch.words[0].text == {"a.yaml": "1", "b.yaml": "2"}[name]


def test_shell_scripts(files, helpers):
    texts, word = helpers
    first, second = files.launches(
        """\
#!/usr/bin/env bash
set -euo pipefail
MODEL=${1:-meta/x}
export CUDA_VISIBLE_DEVICES=0,1
nohup vllm serve "$MODEL" \\
  --max-model-len 32k > log 2>&1 &
docker run -d --rm --gpus '"device=0,1"' --ipc=host -p 80:80 -v /m:/m -e A=b \\
  --name x ghcr.io/huggingface/text-generation-inference:3.0 \\
  --model-id m --max-total-tokens 4096
""",
        "run.sh",
    )
    assert (first.name, second.name) == ("command/1", "command/2")
    assert texts(first) == ["vllm", "serve", "meta/x", "--max-model-len", "32k"]
    assert word(first, "32k").place.line == files.line("32k", "run.sh")
    assert first.gpus.amount == 2
    assert texts(second) == ["--model-id", "m", "--max-total-tokens", "4096"]
    assert second.image.text == "ghcr.io/huggingface/text-generation-inference:3.0"
    assert (second.gpus.amount, second.environment["A"].text) == (2, "b")
    assert word(second, "4096").place.line == files.line("4096", "run.sh")


def test_dockerfiles(files, helpers):
    texts, word = helpers
    (launch,) = files.launches(
        'FROM a AS build\nENTRYPOINT ["x"]\nFROM vllm/vllm-openai:v0.8.5\nENV LEN=8192 B="c d"\n'
        'ENTRYPOINT ["vllm", "serve", \\\n  "meta/x"]\nCMD ["--max-model-len", \\\n   "4096"]\n',
        "Dockerfile",
    )
    assert texts(launch) == ["vllm", "serve", "meta/x", "--max-model-len", "4096"]
    assert word(launch, "4096").place.line == files.line("4096", "Dockerfile")
    assert launch.image.text == "vllm/vllm-openai:v0.8.5"
    (launch,) = files.launches("FROM x\nENV LEN=8192\nCMD vllm serve m \\\n  --max-model-len $LEN\n", "Dockerfile")
    assert texts(launch)[-1] == "8192"


def test_a_command_line(helpers):
    texts, _ = helpers
    launch = launch_of_command("sudo docker run --gpus=all img:1 vllm serve a --x=$Y", Place("kvcli.yaml", 7, 3))
    assert texts(launch) == ["vllm", "serve", "a", "--x=$Y"]
    assert not launch.words[-1].literal
    assert (launch.image.text, launch.gpus.amount, launch.place.line) == ("img:1", None, 7)
    assert launch_of_command("", Place("k", 1)).words == ()


SEEDS = [
    TWO,
    """\
services:
  a:
    command: sh -c "vllm serve $$A ${B:-c}"
    gpus: all
    extends: {service: a}
    environment: [A=b]
""",
    """\
#!/bin/sh
A=(x); if a; then vllm serve ${A:-b} \\
 --c 'd'; fi
docker run -e A=b --gpus all img --m
""",
    """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims: [{name: c, resourceClaimTemplateName: t}]
  containers:
    - name: e
      command: [sh, -c, 'vllm serve $(A) ${B}']
      env: [{name: A, value: $(A)}]
      resources: {limits: {nvidia.com/gpu: 1}}
""",
    """\
apiVersion: ray.io/v1
kind: RayService
metadata: {name: r}
spec:
  serveConfigV2: |
    applications:
    - args: {llm_configs: [{engine_kwargs: {a: 1}}]}
""",
    """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: i}
spec: {predictor: {model: {modelFormat: {name: x}, args: [a]}}}
""",
    """\
apiVersion: kaito.sh/v1
kind: Workspace
metadata: {name: w}
inference: {preset: {name: p}, config: c}
resource: {count: 2}
""",
    """\
apiVersion: x/v1
kind: LeaderWorkerSet
metadata: {name: l}
spec: {leaderWorkerTemplate: {size: 2, workerTemplate: {spec: {containers: [{name: a}]}}}}
""",
    """\
apiVersion: x/v1
kind: LLMInferenceService
metadata: {name: l}
spec: {model: {uri: hf://a}, parallelism: {tensor: 2}, prefill: {}, baseRefs: [{name: b}]}
""",
]


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_mutated_files_are_read_or_refused(files, seed):
    """Characters, values and lines are dropped, doubled, swapped and replaced: never a traceback, never over a second."""
    rng = random.Random(seed)
    words = "null {} [] 'x' &a *a $( ${ true 1.5 <<:"
    pieces = [*"{}[]:,-|>&*!'\"$()`\\#\n \t%@a1", *words.split(), "- ", ": ", "\n  "]
    name = "f.sh" if SEEDS[seed].startswith("#!") else "f.yaml"
    for _ in range(250):
        text = SEEDS[seed]
        for _ in range(rng.randint(1, 4)):
            at, end = rng.randrange(len(text) + 1), rng.randint(0, 8)
            text = text[:at] + rng.choice([rng.choice(pieces), "", text[at : at + end] * 2]) + text[at + rng.choice([0, 1, end]) :]
        start = time.process_time()
        try:
            files.launches(text, name)
        except BadInput as error:
            assert error.message.startswith(str(files.folder / name)), (text, error.message)
        assert time.process_time() - start < 1, text


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  a:\n    command: " + "${" * 50_000 + "\n",
        "services:\n  a:\n    command: |\n" + "      $A x\n" * 10_000,
        "services:\n  a: {command: '" + "${A:-" * 5000 + "}" * 5000 + "'}\n",
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - args:\n        - |\n" + "          $(A) 'b\n          c'\n" * 30_000,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - command: [sh, -c]\n      args:\n        - |\n"
        + "          a $(A) 'b\n          c'\n" * 5_000,
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - command: [sh, -c, '" + "sh -c " * 5000 + "']\n",
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a\n    env:\n"
        + "".join(f"    - {{name: A{i}, value: $(A{i - 1})$(A{i - 1})x}}\n" for i in range(60)),
        'a: "' + "x\\\n  " * 60_000 + '"\n',
        "a: '" + "x y\n  " * 60_000 + "'\n",
    ],
)
def test_large_odd_files_take_no_time(files, text):
    path = files.write(text)
    start = time.process_time()
    try:
        read_launches([path])
    except BadInput as error:
        assert error.message.startswith(path.as_posix())
    assert time.process_time() - start < 1


def test_fifty_files_read_fast(files):
    from kvcli.check.manifests.read import read_launches as read

    paths = [files.write(TWO.replace("args: [a]", "args: [--model, m, --max-model-len, '8192']"), f"{n}.yaml") for n in range(50)]
    gc.freeze()  # what other tests left is not looked through
    start = time.process_time()
    assert len(read(paths)) == 150
    spent_s = time.process_time() - start
    gc.unfreeze()
    assert spent_s < 0.5


def test_the_place_is_the_path_as_given(files, monkeypatch):
    files.write(TWO, "x/y.yaml")
    monkeypatch.chdir(files.folder)
    (launch, *_) = read_launches([Path("x/y.yaml")])
    assert launch.place.file == "x/y.yaml"
