"""docker compose. The table of interpolation is the one compose documents; the rest are its documented rules of files and devices."""

import pytest

from kvcli.check.launch import OPEN
from kvcli.check.manifests.interpolation import interpolate
from kvcli.check.nodes import Place, Word

HERE = Place("f", 1)
KNOWN = {"SET": Word("v", HERE), "EMPTY": Word("", HERE), "OTHER": Word("o", HERE)}


@pytest.mark.parametrize(
    ("text", "expected", "literal"),
    [
        ("${SET}", "v", True),
        ("$SET-x", "v-x", True),
        ("${SET:-d} ${EMPTY:-d} ${NOPE:-d}", "v d d", True),
        ("${SET-d}|${EMPTY-d}|${NOPE-d}", "v||d", True),
        ("${SET:+r}|${EMPTY:+r}|${NOPE:+r}", "r||", True),
        ("${SET+r}|${EMPTY+r}|${NOPE+r}", "r|r|", True),
        ("${SET:?e} ${SET?e} x${EMPTY?e}", "v v x", True),
        ("${NOPE:?e}", "${NOPE:?e}", False),
        ("${EMPTY:?e}", "${EMPTY:?e}", False),
        ("$$SET $${SET}", "$SET ${SET}", True),
        ("${NOPE:-${OTHER}} ${NOPE:-${EMPTY:-x y}}", "o x y", True),
        ("${NOPE}", "${NOPE}", False),
        ("--n=$NOPE", "--n=$NOPE", False),
        ("a $ b", "a $ b", True),
        ("${SET", "${SET", False),
    ],
)
def test_interpolation_is_composes_table(text, expected, literal):
    found = interpolate(Word(text, HERE), KNOWN)
    assert (found.text, found.literal) == (expected, literal)


def test_command_list_with_devices(files, helpers):
    texts, word = helpers
    (launch,) = files.launches(
        """\
services:
  chat:
    image: vllm/vllm-openai:${TAG:-v0.8.5}
    command:
      - --model
      - meta/x
      - --max-model-len=${LEN:-8192}
    environment:
      - A=b
      - HF_TOKEN
    deploy:
      replicas: 2
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ["0", "3"]
              capabilities: [gpu]
"""
    )
    assert (launch.name, launch.container, launch.replicas) == ("service/chat", "chat", 2)
    assert launch.image.text == "vllm/vllm-openai:v0.8.5"
    assert texts(launch) == ["--model", "meta/x", "--max-model-len=8192"]
    assert word(launch, "--max-model-len=8192").place.line == files.line("LEN:-8192")
    assert launch.environment["A"].text == "b"
    assert not launch.environment["HF_TOKEN"].literal
    assert (launch.gpus.amount, launch.gpus.resource, launch.gpus.place.line) == (2, "nvidia.com/gpu", files.line("device_ids"))


@pytest.mark.parametrize("style", [">", ">-", "|"])
def test_command_as_a_text_of_several_lines(files, helpers, style):
    texts, word = helpers
    (launch,) = files.launches(
        f"""\
services:
  chat:
    entrypoint: ["vllm", "serve"]
    command: {style}
      meta/x
      --max-model-len 8192
      --json '{{"a": 1}}'
"""
    )
    assert texts(launch) == ["vllm", "serve", "meta/x", "--max-model-len", "8192", "--json", '{"a": 1}']
    assert word(launch, "8192").place.line == files.line("8192")
    assert word(launch, '{"a": 1}').place.line == files.line("--json")


def test_a_shell_inside_compose_sees_its_own_variables(files, helpers):
    texts, word = helpers
    (launch,) = files.launches(
        """\
services:
  chat:
    environment: {LEN: 4096, MODEL: meta/x}
    command: >
      sh -c "exec vllm serve $$MODEL
      --max-model-len $${LEN:-1}
      --tag ${TAG:-t}"
"""
    )
    assert texts(launch) == ["vllm", "serve", "meta/x", "--max-model-len", "4096", "--tag", "t"]
    assert word(launch, "--max-model-len").place.line == files.line("--max-model-len")
    assert word(launch, "t").place.line == files.line("--tag")
    assert not launch.problems


@pytest.mark.parametrize(
    ("lines", "amount", "resource"),
    [
        ("gpus: all", None, "nvidia.com/gpu"),
        ("gpus: 2", 2, "nvidia.com/gpu"),
        ("gpus: [{driver: nvidia, count: 4}]", 4, "nvidia.com/gpu"),
        ("gpus: [{driver: amd, count: all}]", None, "amd.com/gpu"),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu], count: 1}]}}}", 1, "nvidia.com/gpu"),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}", None, "nvidia.com/gpu"),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu], count: '${N:-3}'}]}}}", 3, "nvidia.com/gpu"),
        ("{runtime: nvidia, environment: {NVIDIA_VISIBLE_DEVICES: '0,1'}}", 2, "nvidia.com/gpu"),
        ("devices: [/dev/kfd, /dev/dri]", None, "amd.com/gpu"),
        ("devices: ['nvidia.com/gpu=all']", None, "nvidia.com/gpu"),
    ],
)
def test_devices(files, lines, amount, resource):
    body = lines if lines.startswith("{") else "{image: a, " + lines + "}"
    (launch,) = files.launches(f"services:\n  chat: {body}\n")
    assert (launch.gpus.amount, launch.gpus.resource) == (amount, resource)


def test_no_devices_is_none(files):
    (launch,) = files.launches("services: {chat: {image: a}}\n")
    assert launch.gpus is None


def test_dotenv_env_files_extends_and_anchors(files, helpers):
    texts, _ = helpers
    files.write("# comment\nexport LEN=8192 # tokens\nNAME='a $LEN'\nBOTH=\"x-${LEN}\"\n", ".env")
    files.write("TP=2\nLEN=1\n", "engine.env")
    files.write("services:\n  base:\n    image: vllm/vllm-openai\n    environment: {A: base, B: base}\n", "base.yaml")
    (launch,) = files.launches(
        """\
x-args: &args
  restart: always
services:
  chat:
    <<: *args
    extends: {file: base.yaml, service: base}
    env_file: [engine.env, {path: gone.env, required: false}]
    environment: {B: "own", C: "${NAME}", D: "${BOTH}"}
    command: vllm serve meta/x --max-model-len ${LEN} --len=${LEN}
"""
    )
    assert texts(launch)[-3:] == ["--max-model-len", "8192", "--len=8192"]
    assert launch.image.text == "vllm/vllm-openai"
    assert {key: each.text for key, each in launch.environment.items()} == {
        OPEN: "",
        "TP": "2",
        "LEN": "1",
        "A": "base",
        "B": "own",
        "C": "a $LEN",
        "D": "x-8192",
    }
    assert launch.environment["TP"].place.label.endswith("engine.env:1")
    assert [(each.code, each.matters) for each in launch.problems] == [("environment_not_in_files", False)]


def test_scripts_and_configs_beside_the_file(files, helpers):
    texts, _ = helpers
    files.write("#!/bin/bash\nexec vllm serve meta/x \\\n  --max-model-len $LEN\n", "run.sh")
    launches = files.launches(
        """\
services:
  a:
    volumes: ["./run.sh:/run.sh:ro", "data:/data"]
    entrypoint: /run.sh
    environment: {LEN: "1"}
  b:
    command: [vllm, serve, --config, /c.yaml]
    configs: [{source: c, target: /c.yaml}]
configs:
  c:
    content: |
      model: meta/x
"""
    )
    assert texts(launches[0]) == ["vllm", "serve", "meta/x", "--max-model-len", "1"]
    assert launches[0].words[3].place.label.endswith("run.sh:3")
    assert launches[1].files["/c.yaml"][0].text == "model: meta/x"
    assert launches[1].files["/c.yaml"][0].place.line == files.line("model: meta/x")
