"""Pods and what is around them. Expectations are Kubernetes' documented rules, written down by hand; places are asked of the text."""

import pytest

from kvcli.check.manifests.environment import expand
from kvcli.check.manifests.read import read_launches
from kvcli.check.nodes import Place, Word
from kvcli.errors import BadInput

POD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 3
  template:
    spec:
      containers:
        - name: engine
          image: vllm/vllm-openai:v0.8.5
"""


@pytest.mark.parametrize(
    ("text", "expected", "literal"),
    [
        # the table of Kubernetes' own documentation of $(VAR): known, unknown, escaped, doubled, unclosed
        ("$(A)", "one", True),
        ("x-$(A)-y", "x-one-y", True),
        ("$(NOPE)", "$(NOPE)", True),
        ("$$(A)", "$(A)", True),
        ("$$$(A)", "$one", True),
        ("$$$$(A)", "$$(A)", True),
        ("$A ${A}", "$A ${A}", True),
        ("$(A", "$(A", True),
        ("$", "$", True),
        ("a$$b", "a$b", True),
        ("$(A)$(B)", "onetwo", True),
        ("$(SECRET)", "$(SECRET)", False),
        ("--k=$(SECRET)", "--k=$(SECRET)", False),
        ("$(X_SERVICE_HOST)", "$(X_SERVICE_HOST)", False),
        ("$()", "$()", True),
    ],
)
def test_references_expand_as_kubernetes_documents(text, expected, literal):
    place = Place("f", 1)
    variables = {"A": Word("one", place), "B": Word("two", place), "SECRET": Word("$(SECRET)", place, False)}
    found = expand(Word(text, place), variables, False)
    assert (found.text, found.literal) == (expected, literal)


def test_a_reference_may_come_from_what_is_not_in_the_files():
    assert not expand(Word("$(NOPE)", Place("f", 1)), {}, True).literal


def test_command_and_args_with_places(files, helpers):
    texts, word = helpers
    (launch,) = files.launches(
        POD
        + """\
          command: ["vllm", "serve"]
          args:
            - meta/x
            - --max-model-len
            - "8192"
            - --kv-cache-dtype=fp8
            - '{"a": 1}'
"""
    )
    assert (launch.name, launch.container, launch.replicas) == ("Deployment/chat", "engine", 3)
    assert launch.image.text == "vllm/vllm-openai:v0.8.5"
    assert texts(launch) == ["vllm", "serve", "meta/x", "--max-model-len", "8192", "--kv-cache-dtype=fp8", '{"a": 1}']
    assert word(launch, "8192").place.line == files.line('"8192"')
    assert word(launch, "--kv-cache-dtype=fp8").place.line == files.line("--kv-cache-dtype")
    assert launch.problems == ()


def test_args_alone_are_the_words(files, helpers):
    texts, _ = helpers
    (launch,) = files.launches(POD + '          args: ["--model=meta/x", "--tensor-parallel-size", "2"]\n')
    assert texts(launch) == ["--model=meta/x", "--tensor-parallel-size", "2"]


@pytest.mark.parametrize("style", ["|", "|-", "|+"])
def test_a_script_in_a_block_scalar_keeps_lines(files, helpers, style):
    texts, word = helpers
    end = " \\"
    (launch,) = files.launches(
        POD
        + f"""\
          env:
            - name: LEN
              value: "4096"
          command: ["/bin/sh", "-c"]
          args:
            - {style}
              exec python3 -u -m vllm.entrypoints.openai.api_server{end}
                --model meta/x{end}
                --max-model-len ${{LEN:-32k}}{end}
                --block-size $(BLOCK){end}
                --port 80
"""
    )
    assert texts(launch)[:5] == ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "meta/x"]
    assert word(launch, "--max-model-len").place.line == files.line("--max-model-len")
    assert word(launch, "4096").place.line == files.line('"4096"'), "a word that is one variable stands where its value does"
    assert not word(launch, "$(BLOCK)").literal, "to the shell this is a substitution"
    assert word(launch, "80").place.line == files.line("--port 80")


def test_a_folded_script_keeps_lines(files, helpers):
    _, word = helpers
    (launch,) = files.launches(
        POD
        + """\
          command:
            - bash
            - -lc
            - >-
              vllm serve meta/x
              --max-model-len 8192
              --seed 1
"""
    )
    assert word(launch, "8192").place.line == files.line("8192")
    assert word(launch, "1").place.line == files.line("--seed")


def test_script_with_variables_of_kubernetes_in_it(files, helpers):
    texts, word = helpers
    (launch,) = files.launches(
        POD
        + """\
          command: ["sh", "-c"]
          args:
            - |
              set -e
              # warm up
              pip install x && export EXTRA="--seed 1 --port 80"
              vllm serve $(MODEL) --max-model-len=$LEN \\
                --name $$(hostname) $EXTRA "$@"
            - sh
            - --last
          env:
            - {name: MODEL, value: meta/x}
            - {name: LEN, value: "8192"}
"""
    )
    assert texts(launch) == [
        *("vllm", "serve", "meta/x", "--max-model-len=8192", "--name", "$(hostname)"),
        *("--seed", "1", "--port", "80", "--last"),
    ]
    assert word(launch, "--port").place.line == files.line("export EXTRA")
    assert word(launch, "meta/x").place.line == files.line("name: MODEL")
    assert word(launch, "--max-model-len=8192").place.line == files.line("--max-model-len")
    assert word(launch, "--last").place.line == files.line("- --last")
    assert not word(launch, "$(hostname)").literal


CONFIG = """\
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  LEN: "8192"
  run.sh: |
    #!/bin/sh
    exec vllm serve meta/x \\
      --max-model-len "$1" --kv $KV
  engine.yaml: |
    model: meta/x
    max-model-len: 2048
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {TOKEN: hunter2}
"""


def test_config_maps_give_variables_and_scripts(files, helpers):
    texts, word = helpers
    (launch,) = files.launches(
        POD
        + """\
          command: ["sh", "/scripts/run.sh", "$(CM_LEN)"]
          envFrom:
            - configMapRef: {name: settings}
              prefix: CM_
            - secretRef: {name: keys}
          env:
            - name: KV
              valueFrom: {configMapKeyRef: {name: settings, key: LEN}}
            - name: S
              valueFrom: {secretKeyRef: {name: keys, key: TOKEN}}
            - {name: BOTH, value: "$(KV)-$(LATER)-$(S)"}
            - {name: LATER, value: x}
          volumeMounts:
            - {name: v, mountPath: /scripts}
            - {name: v, mountPath: /etc/engine.yaml, subPath: e.yaml}
      volumes:
        - name: v
          configMap:
            name: settings
            items: [{key: run.sh, path: run.sh}, {key: engine.yaml, path: e.yaml}]
"""
        + CONFIG
    )
    assert texts(launch) == ["vllm", "serve", "meta/x", "--max-model-len", "8192", "--kv", "8192"]
    assert word(launch, "--max-model-len").place.line == files.line('--max-model-len "$1"')
    assert launch.words[4].place.line == files.line("  LEN:"), "the value is what has to change"
    assert launch.environment["CM_LEN"].text == "8192"
    assert launch.environment["BOTH"].text == "8192-$(LATER)-$(S)", "only variables before it are known to a variable"
    assert not launch.environment["S"].literal
    assert [line.text for line in launch.files["/etc/engine.yaml"]] == ["model: meta/x", "max-model-len: 2048"]
    assert launch.files["/etc/engine.yaml"][1].place.line == files.line("max-model-len: 2048")
    assert set(launch.files) == {"/scripts/run.sh", "/scripts/e.yaml", "/etc/engine.yaml"}
    assert "hunter2" not in repr(launch)
    assert launch.problems == ()


def test_config_maps_of_another_file_of_the_set(files):
    config = files.write(CONFIG.removeprefix("---\n"), "config.yaml")
    text = POD + "          envFrom: [{configMapRef: {name: settings}}]\n"
    (launch,) = read_launches([files.write(text)], also=[config])
    assert launch.environment["LEN"].place.label == f"{config.as_posix()}:{files.line('LEN:', 'config.yaml')}"


def test_missing_config_maps_are_problems(files):
    (launch,) = files.launches(
        POD
        + """\
          command: [sh, /scripts/run.sh]
          envFrom:
            - configMapRef: {name: gone}
            - configMapRef: {name: maybe, optional: true}
          env:
            - name: A
              valueFrom: {configMapKeyRef: {name: gone2, key: k}}
            - name: B
              value: $(A)
          volumeMounts: [{name: v, mountPath: /scripts}]
      volumes: [{name: v, configMap: {name: gone3}}]
"""
    )
    found = {(each.code, each.message.split()[1], each.matters) for each in launch.problems}
    missing = {("environment_not_in_files", "gone", True), ("environment_not_in_files", "maybe", False), ("key_not_found", "gone2", True)}
    assert missing <= found
    assert "script_not_found" in {each.code for each in launch.problems if each.matters}
    assert not launch.environment["B"].literal
    assert next(each for each in launch.problems if " gone " in each.message).place.line == files.line("name: gone}")


def test_numbers_where_kubernetes_wants_strings(files):
    (launch,) = files.launches(POD + "          args: [--max-model-len, 8192]\n          env: [{name: A, value: 1}]\n")
    assert [each.code for each in launch.problems] == ["not_a_string", "not_a_string"]
    assert launch.words[1].text == "8192"


def test_all_containers_are_launches_with_roles(files):
    launches = files.launches(
        POD
        + """\
          args: [--model, a]
        - name: second
          command: [sglang, serve, b]
        - name: proxy
          image: envoy
      initContainers:
        - name: fetch
          command: [huggingface-cli, download, a]
        - name: side
          restartPolicy: Always
          image: tokenizer
"""
    )
    assert [(each.container, each.role) for each in launches] == [
        ("engine", "main"),
        ("second", "main"),
        ("proxy", "main"),
        ("fetch", "init"),
        ("side", "sidecar"),
    ]


def test_two_engines_of_one_script(files, helpers):
    texts, _ = helpers
    first, second = files.launches(
        POD
        + """\
          command: [bash, -c]
          args:
            - |
              CUDA_VISIBLE_DEVICES=0 vllm serve a --port 1 &
              CUDA_VISIBLE_DEVICES=1,2 vllm serve b --port 2 &
              wait
"""
    )
    assert texts(first)[2] == "a"
    assert texts(second)[2] == "b"
    assert (first.container, second.container) == ("engine", "engine#2")
    assert (first.gpus.amount, second.gpus.amount) == (1, 2)
    assert second.place.line == files.line("serve b")


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "Rollout"])
def test_kinds_with_a_template(files, kind):
    (launch,) = files.launches(POD.replace("Deployment", kind) + "          args: [--model, a]\n")
    assert launch.name == f"{kind}/chat"


def test_pod_cronjob_list_and_unknown_kinds(files):
    launches = files.launches("""\
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: a, args: [x]}]}}
  - apiVersion: batch/v1
    kind: CronJob
    metadata: {name: c}
    spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: b, args: [y]}]}}}}}
  - {apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{port: 80}]}}
  - apiVersion: apiextensions.k8s.io/v1
    kind: CustomResourceDefinition
    metadata: {name: d}
    spec: {x: {containers: [{image: a}]}}
---
# nothing here
---
just text
""")
    assert [each.name for each in launches] == ["Pod/p", "CronJob/c"]


def test_anchors_merge_keys_bom_and_crlf(files, helpers):
    texts, word = helpers
    text = (
        POD.replace("replicas: 3", "replicas: 1").replace("        - name: engine", "        - &base\n          name: engine")
        + "          args: &args\n            - --model\n            - meta/x\n        - <<: *base\n          name: other\n"
    )
    launches = files.launches(("\ufeff" + text.replace("\n", "\r\n")).encode())
    assert [each.container for each in launches] == ["engine", "other"]
    assert texts(launches[1]) == ["--model", "meta/x"]
    assert word(launches[1], "meta/x").place.line == text.split("\n").index("            - meta/x") + 1


def test_a_template_inside_quotes_is_refused(files):
    with pytest.raises(BadInput) as caught:
        files.launches(POD + '          args: ["--model", "{{ .Values.model }}"]\n')
    assert caught.value.code == "unrendered_template"
    assert f":{files.line('.Values')}:" in caught.value.message


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("[nohup, vllm, serve, a]", ["vllm", "serve", "a"]),
        ("[/usr/bin/tini, --, /opt/venv/bin/vllm, serve, a]", ["/opt/venv/bin/vllm", "serve", "a"]),
        ("[uv, run, --no-sync, vllm, serve, a]", ["vllm", "serve", "a"]),
        ("[env, A=b, python, -m, sglang.launch_server, --tp, '2']", ["python", "-m", "sglang.launch_server", "--tp", "2"]),
        ("[torchrun, --nproc_per_node, '2', -m, sglang.launch_server, --tp, '2']", ["python", "-m", "sglang.launch_server", "--tp", "2"]),
        (
            "[python3, /app/vllm/api_server.py, --model, a]",
            ["python3", "/app/vllm/api_server.py", "--model", "a"],
        ),
        ("[sh, -c, 'ray start --head && vllm serve a']", ["vllm", "serve", "a"]),
        ("[bash, -euo, pipefail, -c, 'vllm serve a 2>&1 | tee log']", ["vllm", "serve", "a"]),
        ("[sh, -c, 'while true; do llama-server -m a; done']", ["llama-server", "-m", "a"]),
        ("[text-generation-launcher, --model-id, a]", ["text-generation-launcher", "--model-id", "a"]),
        ("[vllm, bench, serve, a]", ["vllm", "bench", "serve", "a"]),
        ("[sh, -c, 'pip install vllm; my-server --x']", ["my-server", "--x"]),
        ("['/bin/sh', '-c', 'exec \"$0\" \"$@\"', vllm, serve, a]", ["$0", "vllm", "serve", "a"]),
    ],
)
def test_prefixes_and_shells(files, helpers, command, expected):
    texts, _ = helpers
    (launch,) = files.launches(POD + f"          command: {command}\n")
    if expected[0] == "$0":
        expected = ["vllm", "serve", "a"]
    assert texts(launch) == expected
    assert not [each for each in launch.problems if each.matters]


def test_one_of_several_commands_is_a_problem(files):
    launches = files.launches(POD + "          command: [sh, -c, 'if [ $A = 1 ]; then vllm serve a; else vllm serve b; fi']\n")
    assert len(launches) == 2
    assert [(each.code, each.matters) for each in launches[0].problems] == [("conditional_command", True)]


def test_programs_of_one_container_share_or_divide_its_devices(files):
    script = "          command: [sh, -c, '%svllm serve a & %svllm serve b & wait']\n          resources: {limits: {nvidia.com/gpu: 4}}\n"
    apart = files.launches(POD + script % ("CUDA_VISIBLE_DEVICES=0 ", "CUDA_VISIBLE_DEVICES=1,2,3 "))
    assert [(each.gpus.amount, each.gpus.shared, each.gpus.resource) for each in apart] == [
        (1, False, "nvidia.com/gpu"),
        (3, False, "nvidia.com/gpu"),
    ]
    together = files.launches(POD + script % ("", ""))
    assert [(each.gpus.amount, each.gpus.shared) for each in together] == [(4, True), (4, True)]


def test_a_chat_template_is_no_helm_template(files, helpers):
    texts, _ = helpers
    (launch,) = files.launches(POD + "          args: [--chat-template, '{% for m in messages %}{{ m.content }}{% endfor %}']\n")
    assert len(texts(launch)) == 2
