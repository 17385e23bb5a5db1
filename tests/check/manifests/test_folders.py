"""What a folder and a script hold: nothing that starts an engine is passed over."""

import datetime

import pytest

from kvcli.check.manifests.read import read_launches
from kvcli.check.run import check

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DAY = datetime.date(2026, 11, 29)
GOOD = "apiVersion: v1\nkind: Pod\nmetadata: { name: x }\nspec:\n  containers:\n    - name: c\n      image: vllm/vllm-openai:v0.9.2\n"
GOOD += f"      args: [--model={MODEL}, --max-model-len=4096]\n"


def verdicts(path):
    report, _ = check([path], DAY, devices=["l4"])
    return {cell.target: cell.verdict for cell in report.cells}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.sh", f"vllm serve {MODEL} --max-model-len 100000\n"),
        ("run.bash", f"vllm serve {MODEL} --max-model-len 100000\n"),
        ("Dockerfile", f'FROM vllm/vllm-openai:v0.9.2\nENTRYPOINT ["vllm", "serve", "{MODEL}", "--max-model-len", "100000"]\n'),
        ("Dockerfile.gpu", f'FROM vllm/vllm-openai:v0.9.2\nENTRYPOINT ["vllm", "serve", "{MODEL}", "--max-model-len", "100000"]\n'),
        ("chat.dockerfile", f"FROM vllm/vllm-openai:v0.9.2\nCMD vllm serve {MODEL} --max-model-len 100000\n"),
    ],
)
def test_scripts_and_dockerfiles_of_a_folder_are_read(tmp_path, name, text):
    (tmp_path / "pod.yaml").write_text(GOOD)
    (tmp_path / name).write_text(text)
    assert verdicts(tmp_path) == {"Pod/x": "pass", "command/1": "fail"}


def test_other_scripts_of_a_folder_say_nothing(tmp_path):
    (tmp_path / "pod.yaml").write_text(GOOD)
    (tmp_path / "build.sh").write_text("set -e\nmake all\ncurl http://vllm/v1/models\n")
    (tmp_path / ".hidden.sh").write_text(f"vllm serve {MODEL} --max-model-len 100000\n")
    (tmp_path / "notes.txt").write_text("vllm serve x\n")
    assert verdicts(tmp_path) == {"Pod/x": "pass"}


CONDITION = 'if [ "$1" = x ]; then vllm serve {0} --max-model-len 100000; fi\n'


def test_a_launch_under_a_condition_beside_a_plain_one_is_read_and_not_certain(tmp_path):
    (tmp_path / "s.sh").write_text(f"vllm serve {MODEL} --max-model-len 4096\n{CONDITION.format(MODEL)}")
    report, _ = check([tmp_path / "s.sh"], DAY, devices=["l4"])
    plain, other = report.cells
    assert (plain.verdict, other.verdict) == ("pass", "warn")
    found = {each.rule: each for each in other.outcomes}
    assert "100,000 tokens" in found["KV001"].message
    assert found["KV001"].level == "warning"
    assert "condition" in found["KV016"].message and found["KV016"].place.line == 2
    assert {each.rule for each in plain.outcomes if each.level == "warning"} == set()


def test_the_same_inside_a_pod(tmp_path):
    script = f"vllm serve {MODEL} --max-model-len 4096\n          {CONDITION.format(MODEL)}"
    pod = GOOD.replace(f"args: [--model={MODEL}, --max-model-len=4096]", f"command: [sh, -c]\n      args:\n        - |\n          {script}")
    (tmp_path / "pod.yaml").write_text(pod)
    assert sorted(verdicts(tmp_path).values()) == ["pass", "warn"]


def test_the_same_command_under_a_condition_is_said_once(tmp_path):
    (tmp_path / "s.sh").write_text(f"vllm serve {MODEL}\nif true; then vllm serve {MODEL}; fi\n")
    assert len(read_launches([tmp_path / "s.sh"])) == 1


@pytest.mark.parametrize(
    ("asked", "fix"),
    [
        ("gpus: 1", "gpus: 2"),
        ("deploy: { resources: { reservations: { devices: [{ driver: nvidia, count: 1, capabilities: [gpu] }] } } }", "count: 2"),
        ('deploy: { resources: { reservations: { devices: [{ device_ids: ["0"], capabilities: [gpu] }] } } }', "device_ids of 2 devices"),
        ("environment: [CUDA_VISIBLE_DEVICES=0]", "CUDA_VISIBLE_DEVICES with 2 devices"),
    ],
)
def test_the_devices_of_compose_are_asked_for_in_its_words(tmp_path, asked, fix):
    command = f"--model {MODEL} --max-model-len 4096 --tensor-parallel-size 2"
    service = f"    image: vllm/vllm-openai:v0.9.2\n    command: {command}\n    {asked}\n"
    (tmp_path / "compose.yaml").write_text(f"services:\n  llm:\n{service}")
    report, _ = check([tmp_path / "compose.yaml"], DAY, devices=["l4"])
    (found,) = (each for each in report.cells[0].outcomes if each.rule == "KV014")
    assert (found.level, found.fix) == ("error", fix)


def test_the_devices_of_docker_run_are_asked_for_in_its_words(tmp_path):
    run = "docker run --gpus 1 vllm/vllm-openai:v0.9.2 --model"
    (tmp_path / "s.sh").write_text(f"{run} {MODEL} --max-model-len 4096 --tensor-parallel-size 2\n")
    report, _ = check([tmp_path / "s.sh"], DAY, devices=["l4"])
    assert [each.fix for each in report.cells[0].outcomes if each.rule == "KV014"] == ["--gpus 2"]
