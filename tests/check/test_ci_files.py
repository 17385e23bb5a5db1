"""The manual's workflow files, the action and the pre-commit hook: their commands are run as the platforms run them, offline.

`pip` and the creation of an environment are stood in for; `.ci/run` installs the real wheel.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FITS = "--max-model-len=8192"


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def shell(tmp_path, manual_files):
    """Runs a script in the folder of the manual's files, with kvcli and a pip that only notes its arguments on the PATH."""
    tools = tmp_path / "tools"
    script(tools / "kvcli", f'exec "{sys.executable}" -m kvcli "$@"')
    script(tools / "pip", f'echo "$@" >> "{tmp_path}/installed"')

    def call(text, *interpreter, **more):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tools}:{os.environ['PATH']}", **more}
        command = [*interpreter, text]
        return subprocess.run(command, cwd=manual_files, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return call


def fix(folder):
    path = folder / "deploy/chat.yaml"
    path.write_text(path.read_text().replace("--max-model-len=65536", FITS))


def line_of_length(folder):
    lines = (folder / "deploy/chat.yaml").read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if "--max-model-len" in line)


BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")


@pytest.mark.parametrize("fitting", [False, True])
def test_the_github_workflow(shell, manual_files, tmp_path, fitting):
    if fitting:
        fix(manual_files)
    workflow = yaml.safe_load((manual_files / ".github/workflows/capacity.yml").read_text())
    assert set(workflow) == {"name", True, "permissions", "jobs"}  # YAML 1.1 reads `on` as true
    assert workflow["permissions"] == {"contents": "read", "security-events": "write"}
    (job,) = workflow["jobs"].values()
    summary = tmp_path / "summary.md"
    codes = []
    for step in job["steps"]:
        assert set(step) <= {"name", "uses", "with", "run", "if"}
        if "run" in step:
            assert "${{" not in step["run"]
            answer = shell(step["run"], "bash", "-e", "-c", GITHUB_STEP_SUMMARY=str(summary))
            codes.append(answer.returncode)
    assert codes == [0, 0 if fitting else 1]
    assert (tmp_path / "installed").read_text() == "install kvcli\n"
    where = f"::error file=deploy/chat.yaml,line={line_of_length(manual_files)},"
    assert answer.stdout.startswith(where) is not fitting, answer.stdout
    assert summary.read_text().startswith("## kvcli check passed" if fitting else "## kvcli check failed")
    uploads = next(step for step in job["steps"] if step.get("uses", "").startswith("github/codeql-action/upload-sarif@"))
    results = json.loads((manual_files / uploads["with"]["sarif_file"]).read_text())["runs"][0]["results"]
    assert [each["ruleId"] for each in results if each["level"] == "error"] == ([] if fitting else ["KV001"])


@pytest.mark.parametrize("fitting", [False, True])
def test_the_gitlab_pipeline(shell, manual_files, tmp_path, fitting):
    if fitting:
        fix(manual_files)
    (job,) = yaml.safe_load((manual_files / ".gitlab-ci.yml").read_text()).values()
    assert shell("\n".join(job["before_script"]), "sh", "-e", "-c").returncode == 0
    answer = shell("\n".join(job["script"]), "sh", "-e", "-c")
    assert (answer.returncode, answer.stdout) == (0 if fitting else 1, "")
    after = shell("\n".join(job["after_script"]), "sh", "-e", "-c")
    assert after.stdout.startswith("## kvcli check passed" if fitting else "## kvcli check failed")
    reports = job["artifacts"]["reports"]
    assert job["artifacts"]["when"] == "always"
    quality = json.loads((manual_files / reports["codequality"]).read_text())
    blockers = [each["location"] for each in quality if each["check_name"].startswith("KV001")]
    assert blockers == ([] if fitting else [{"path": "deploy/chat.yaml", "lines": {"begin": line_of_length(manual_files)}}])
    assert (manual_files / reports["junit"]).read_text().endswith("</testsuites>\n")
    assert all((manual_files / path).is_file() for path in job["artifacts"]["paths"])


ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INPUT = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")


def run_action(shell, tmp_path, **inputs):
    """The steps of the action one after the other, with the defaults of its inputs."""
    given = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | inputs
    # an interpreter whose environments hold a kvcli and a pip that only notes
    made = f"""if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin" && cp "{tmp_path}/tools/kvcli" "$3/bin/kvcli" && cp "$0" "$3/bin/python"
else echo "$@" >> "{tmp_path}/installed"; fi"""
    python = script(tmp_path / "python", made)
    exported = tmp_path / "exported"
    exported.write_text("")
    runner = {
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_ENV": str(exported),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    for step in ACTION["runs"]["steps"]:
        if "run" not in step:
            continue
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
        own = {}
        for name, value in step["env"].items():
            value = value.replace("${{ steps.python.outputs.python-path }}", str(python))
            own[name] = INPUT.sub(lambda found: given[found[1]], value)
            assert "${{" not in own[name] or own[name] in given.values()
        before = dict(line.split("=", 1) for line in exported.read_text().splitlines())
        answer = shell(step["run"], *BASH, **runner, **before, **own)
    return answer


def test_the_action_has_what_the_platform_asks_for():
    assert set(ACTION) == {"name", "description", "inputs", "runs"}
    assert ACTION["runs"]["using"] == "composite"
    assert set(ACTION["inputs"]) == {"files", "format", "sarif", "args"}
    for each in ACTION["inputs"].values():
        assert set(each) == {"description", "default"}
        assert isinstance(each["default"], str)
    used = set(INPUT.findall((ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])


@pytest.mark.parametrize("fitting", [False, True])
def test_the_action(shell, manual_files, tmp_path, fitting):
    if fitting:
        fix(manual_files)
    answer = run_action(shell, tmp_path, sarif="kvcli.sarif", args="--strict --junit\nkvcli.xml")
    assert answer.returncode == (0 if fitting else 1), answer.stderr
    assert answer.stdout.startswith("::error file=deploy/chat.yaml,") is not fitting
    assert (tmp_path / "installed").read_text() == f"-m pip install --quiet {ROOT}\n"
    assert (tmp_path / "summary.md").read_text().startswith("## kvcli check ")
    assert json.loads((manual_files / "kvcli.sarif").read_text())["version"] == "2.1.0"
    assert (manual_files / "kvcli.xml").is_file()


def test_the_action_takes_several_files_and_runs_none_of_its_inputs(shell, manual_files, tmp_path):
    fix(manual_files)
    (manual_files / "a b.yaml").write_text((manual_files / "deploy/chat.yaml").read_text())
    answer = run_action(shell, tmp_path, files="a b.yaml\n\nkvcli.yaml\n", args="--device l4", format="text")
    assert answer.returncode == 0, answer.stderr
    assert " chat on l4-pool" in answer.stdout
    assert " Deployment/chat on l4" in answer.stdout
    hostile = '$(touch owned) `touch owned` "; touch owned; #'
    for name in ("files", "format", "sarif", "args"):
        answer = run_action(shell, tmp_path, **{name: hostile})
        assert answer.returncode in (0, 2), answer
        assert not (manual_files / "owned").exists()
    (manual_files / "x.yaml").write_text("")
    assert "*" in run_action(shell, tmp_path, args="*").stderr  # not the names of the folder
    assert "cannot be read" in run_action(shell, tmp_path, files="--strict").stderr


def test_the_pre_commit_hook(shell, manual_files):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert set(hook) == {"id", "name", "description", "entry", "args", "language", "files", "pass_filenames"}
    assert (hook["language"], hook["pass_filenames"]) == ("python", False)
    pattern = re.compile(hook["files"])
    for name in ("kvcli.yaml", "deploy/chat.yml", "run.sh", "Dockerfile", "a/Dockerfile.gpu", "models/x/config.json", "a/.env"):
        assert pattern.search(name), name
    for name in ("README.md", "kvcli.py", "yaml", "Dockerfiles/readme.txt"):
        assert not pattern.search(name), name
    (repository,) = yaml.safe_load((manual_files / ".pre-commit-config.yaml").read_text())["repos"]
    assert [each["id"] for each in repository["hooks"]] == [hook["id"]]
    command = shlex.join([*shlex.split(hook["entry"]), *hook["args"]])
    assert shell(command, "sh", "-c").returncode == 1
    fix(manual_files)
    assert shell(command, "sh", "-c").returncode == 0


def test_the_change_that_the_manual_shows_passes(shell, manual_files):
    """Each change named under `what passes` does pass, and one block more than the length does not fit for certain."""
    said = shell("kvcli check kvcli.yaml", "sh", "-c").stdout
    length = int(re.search(r"what passes: --max-model-len (\d+)", said)[1])
    manifest = manual_files / "deploy/chat.yaml"
    for change, verdict in ((str(length), "PASS"), (str(length + 16), "WARN")):
        manifest.write_text(re.sub(r"--max-model-len=\d+", f"--max-model-len={change}", manifest.read_text()))
        assert shell("kvcli check kvcli.yaml", "sh", "-c").stdout.startswith(verdict)
