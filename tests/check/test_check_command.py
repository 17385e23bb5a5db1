"""`kvcli check` as CI and people type it: misuse, files that cannot be read or written, exit codes; never a traceback."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: one target that passes on one part and cannot fit another
FITS = """\
version: 1
targets:
  - name: chat
    model: llama3.1-8b
    engine: vllm
    ctx: 8k
    on: h100-sxm5-80
"""
FAILS = FITS.replace("h100-sxm5-80", "t4")
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: chat}
spec:
  containers:
    - name: vllm
      image: vllm/vllm-openai:v0.9.2
      args: [--model=meta-llama/Llama-3.1-8B-Instruct, --max-model-len=8192]
      resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.fixture
def gate(kvcli, tmp_path):
    """`kvcli check …` in a folder with a capacity file that passes, one that fails, and a manifest."""
    (tmp_path / "kvcli.yaml").write_text(FITS)
    (tmp_path / "fails.yaml").write_text(FAILS)
    (tmp_path / "pod.yaml").write_text(POD)

    def call(*arguments, **more):
        return kvcli("check", *arguments, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), **more}, timeout=60)

    call.folder = tmp_path
    return call


def refused(answer, *words, code=2):
    """One sentence and a hint on stderr, nothing on stdout."""
    assert answer.code == code, answer
    assert answer.out == ""
    assert answer.err.startswith("kvcli: ")
    assert len(answer.err.splitlines()) <= 2, answer.err
    for word in words:
        assert word in answer.err, answer.err


def test_passing_and_failing(gate):
    assert gate("kvcli.yaml").code == 0
    failed = gate("fails.yaml")
    assert failed.code == 1
    assert failed.err == ""
    assert "KV001" in failed.out
    assert gate("kvcli.yaml", "fails.yaml").code == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "starts an engine"),
        (b"# nothing\n---\n", "starts an engine"),
        (b"version: 1\ntargets:\n  - {name: '\xff'}\n", "odd.yaml:3: not UTF-8"),
        (b"version: 1\ntargets: []\n", "odd.yaml:2: targets is empty"),
        (b"version: 1\ntargets:\n", "odd.yaml:1: the file has no targets"),
        (b"targets: [{name: a, model: llama3-8b}]\n", "odd.yaml:1: the file's version must be 1"),
        (b"version: 2\ntargets: [{name: a, model: llama3-8b}]\n", "odd.yaml:1: the file's version must be 1"),
        (b"version: 1\ntargts: [{name: a, model: llama3-8b}]\n", "odd.yaml:2: a capacity file has no key 'targts'|did you mean 'targets'?"),
        (b"version: 1\ntargets:\n- {name: a, modle: llama3-8b}\n", "odd.yaml:3: target a has no key 'modle'|did you mean 'model'?"),
        (b"version: 1\ntargets:\n- {name: a, model: llama3-8b, limits: {tpt: 1ms}}\n", "odd.yaml:3: |'tpt'|did you mean 'tpot'?"),
        (b"version: 1\ntargets:\n- {name: a, model: llama3-8b, load: {user: 1}}\n", "odd.yaml:3: |'user'|did you mean 'users'?"),
        (b"version: 1\nfleet: {p: {devices: 2}}\ntargets: [{name: a, model: m}]\n", "odd.yaml:2: the pool 'p' names no device"),
        (b"version: 1\ntargets:\n- {name: a}\n", "odd.yaml:3: target a says not what is deployed"),
        (b"version: 1\ntargets:\n- {name: a, model: llama3-8b}\n- {name: a, model: llama3-8b}\n", "odd.yaml:4: |twice|line 3"),
        (b"version: 1\ntargets:\n- {name: a, model: llama3-8b, limits: {tpot: 5 apples}}\n", "odd.yaml:3: |tpot"),
        (b"version: 1\ntargets:\n- {name: a, model: llama3-8b, ctx: lots}\n", "odd.yaml:3: |ctx"),
        (b"version: 1\ntargets:\n- {name: a, from: none.yaml}\n", "odd.yaml:3: none.yaml: cannot be read"),
        (b'version: 1\ntargets:\n- {name: a, from: "a\\0b.yaml"}\n', "odd.yaml:3: |cannot be read: embedded null byte"),
        (b"version: 1\ntargets:\n- {name: a, from: pod.yaml#Pod/x}\n", "odd.yaml:3: pod.yaml holds no Pod/x, only Pod/chat"),
        (b"version: 1\ntargets:\n- {name: a, command: echo hi}\n", "odd.yaml:3: 'echo hi' starts no engine"),
        (b"version: 1\nfiles: [none.yaml]\ntargets: [{name: a, from: pod.yaml}]\n", "odd.yaml:2: files: there is no none.yaml"),
        (b"version: 1\ntargets: [{name: a, model: llama3-8b}]\n---\na: 1\n", "odd.yaml:4: a capacity file is one document"),
        (b"version: 1\ntargets: [{name: a, model: llama3-8b, waive: [{rule: KV99, reason: r, expires: 2027-01-01}]}]\n", "no rule 'KV99'"),
        (b"version: 1\ntargets: [{name: a, model: llama3-8b, waive: [{rule: KV001, reason: r, expires: soon}]}]\n", "'soon' is no date"),
        (b"version: 1\ntargets: !!python/object/apply:os.system [exit]\n", "odd.yaml:2: tag "),
        (b"version: 1\ntargets: [\n", "odd.yaml:"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence(gate, content, words):
    (gate.folder / "odd.yaml").write_bytes(content)
    refused(gate("odd.yaml"), *words.split("|"))


def test_a_capacity_file_is_known_by_its_name(gate):
    (gate.folder / "kvcli.yaml").write_text("version: 1\ndefaults: {engine: vllm}\n")
    refused(gate("kvcli.yaml"), "kvcli.yaml:1: the file has no targets")


def test_what_is_no_file(gate):
    os.mkfifo(gate.folder / "pipe")
    os.mkfifo(gate.folder / "pipe.yaml")
    (gate.folder / "folder.yaml").mkdir()
    refused(gate(), "Missing argument", "kvcli check --help")
    refused(gate(""), "empty text", "variable")
    refused(gate("none.yaml"), "none.yaml: cannot be read: No such file")
    refused(gate("kvcli.yaml/x"), "cannot be read: Not a directory")
    refused(gate("pipe"), "pipe: not a regular file")
    refused(gate("pipe.yaml"), "pipe.yaml: not a regular file")
    refused(gate("folder.yaml"), "folder.yaml: nothing there starts an engine")
    refused(gate("/dev/zero"), "/dev/zero: not a regular file")
    refused(gate("x" * 5000), "cannot be read: File name too long")


def test_options_that_are_wrong(gate):
    refused(gate("kvcli.yaml", "--format", "x"), "--format 'x' is no format", "text, json, github, gitlab, azure")
    refused(gate("kvcli.yaml", "--fromat", "x"), "--fromat")
    refused(gate("kvcli.yaml", "--junit"), "--junit")
    refused(gate("kvcli.yaml", "--md", ""), "--md is an empty text")
    refused(gate("kvcli.yaml", "--device", "l4"), "--device is for manifests given directly")
    refused(gate("pod.yaml", "--device", "h100-sxm5-8"), "no device is called 'h100-sxm5-8'", "did you mean h100-sxm5-80?")
    refused(gate("kvcli.yaml", "--update-baseline"), "no file to write")
    refused(gate("kvcli.yaml", SOURCE_DATE_EPOCH="soon"), "SOURCE_DATE_EPOCH")


def test_outputs_overwrite_neither_each_other_nor_what_is_read(gate):
    refused(gate("kvcli.yaml", "--junit", "a", "--sarif", "./a"), "--sarif ./a is what --junit names too")
    refused(gate("kvcli.yaml", "--md", "kvcli.yaml"), "--md kvcli.yaml is what FILE names too")
    assert (gate.folder / "kvcli.yaml").read_text() == FITS
    assert not (gate.folder / "a").exists()
    assert gate("kvcli.yaml", "--junit", "/dev/null", "--sarif", "/dev/null").code == 0


def test_what_cannot_be_written(gate):
    (gate.folder / "folder").mkdir()
    refused(gate("kvcli.yaml", "--junit", "none/a.xml"), "none/a.xml cannot be written: No such file or directory")
    refused(gate("kvcli.yaml", "--sarif", "folder"), "folder cannot be written: Is a directory")
    assert not (gate.folder / "none").exists()
    for option in ("--md", "--sarif", "--junit", "--json"):
        refused(gate("kvcli.yaml", option, "/dev/full"), "/dev/full cannot be written: No space left on device", code=3)


def test_a_failure_leaves_whole_files_and_none_half_written(gate):
    answer = gate("kvcli.yaml", "--junit", "a.xml", "--sarif", "a.sarif", "--md", "/dev/full")
    assert answer.code == 3
    assert (gate.folder / "a.xml").read_text().endswith("</testsuites>\n")
    assert json.loads((gate.folder / "a.sarif").read_text())["version"] == "2.1.0"
    assert not [each.name for each in gate.folder.iterdir() if each.name.endswith(".tmp")]


def test_outputs_follow_links_replace_and_append(gate):
    (gate.folder / "real.xml").write_text("old")
    (gate.folder / "link.xml").symlink_to("real.xml")
    (gate.folder / "summary.md").write_text("before\n")
    for _ in range(2):
        assert gate("kvcli.yaml", "--junit", "link.xml", "--md", "summary.md").code == 0
    assert (gate.folder / "link.xml").is_symlink()
    assert (gate.folder / "real.xml").read_text().count("<testsuites") == 1
    text = (gate.folder / "summary.md").read_text()
    assert text.startswith("before\n")
    assert text.count("| chat |") == 2, text


@pytest.mark.parametrize("asked", [["--format", "json"], ["--format=json"], ["--json", "-"], ["--json=-"]])
def test_json_is_one_document_also_where_it_fails(gate, asked):
    assert json.loads(gate("kvcli.yaml", *asked).out)["passed"] is True
    failed = gate("fails.yaml", *asked)
    assert failed.code == 1
    assert json.loads(failed.out)["passed"] is False
    for arguments, code, exit_code in (
        (["none.yaml"], "unreadable_file", 2),
        (["kvcli.yaml", "--md", "none/x"], "unwritable_file", 2),
        (["kvcli.yaml", "--md", "/dev/full"], "disk_full", 3),
        (["kvcli.yaml", "--update-baseline"], "usage", 2),
        (["kvcli.yaml", "--update-baseline", "--baseline", "kvcli.yaml/x"], "baseline_unwritable", 2),
        (["kvcli.yaml", "--nonsense"], "usage", 2),
    ):
        answer = gate(*arguments, *asked)
        assert answer.code == exit_code, answer
        assert answer.out.count("\n") == 1
        document = json.loads(answer.out)
        assert document["schema_version"] == 1
        assert document["error"]["code"] == code
        assert document["error"]["message"] in answer.err


def test_json_into_a_file_leaves_stdout_to_the_format(gate):
    answer = gate("fails.yaml", "--json", "out.json", "--format", "github")
    assert answer.code == 1
    assert answer.out.startswith("::error ")
    assert json.loads((gate.folder / "out.json").read_text())["passed"] is False
    refused(gate("none.yaml", "--json", "out.json"), "cannot be read")


def test_baselines_that_cannot_be_used(gate):
    os.mkfifo(gate.folder / "pipe")
    (gate.folder / "broken.json").write_text("{")
    refused(gate("kvcli.yaml", "--baseline", "none.json"), "'none.json' cannot be read", "--update-baseline")
    refused(gate("kvcli.yaml", "--baseline", "broken.json"), "'broken.json' is not valid JSON", "--update-baseline")
    refused(gate("kvcli.yaml", "--baseline", "pipe"), "'pipe' is not a regular file")
    refused(gate("kvcli.yaml", "--baseline", ""), "--baseline is an empty text")
    refused(gate("kvcli.yaml", "--baseline", "x" * 5000), "File name too long")


def test_a_baseline_is_written_read_and_mended(gate):
    for before in (None, "{"):  # the hint says that a broken one is written anew
        if before:
            (gate.folder / "deep/base.json").write_text(before)
        assert gate("kvcli.yaml", "--baseline", "deep/base.json", "--update-baseline").code == 0
        answer = gate("kvcli.yaml", "--baseline", "deep/base.json")
        assert (answer.code, answer.out.splitlines()[0]) == (0, "1 of 1 unchanged since the baseline deep/base.json")
    held = (gate.folder / "deep/base.json").read_text()
    answer = gate("fails.yaml", "--baseline", "deep/base.json", "--update-baseline")
    assert answer.code == 1
    assert "the baseline is not updated, because chat on t4 fails" in answer.err
    assert (gate.folder / "deep/base.json").read_text() == held


def test_capacity_files_with_different_baselines_need_one_named(gate):
    for name in ("a", "b"):
        (gate.folder / f"{name}.yaml").write_text(f"{FITS}baseline: {name}.json\n".replace("name: chat", f"name: {name}"))
    refused(gate("a.yaml", "b.yaml"), "different baselines: a.json, b.json")
    assert gate("a.yaml", "b.yaml", "--baseline", "c.json", "--update-baseline").code == 0
    assert len(json.loads((gate.folder / "c.json").read_text())["targets"]) == 2


def verdicts(answer):
    return [(each["name"], each["device"], each["verdict"]) for each in json.loads(answer.out)["targets"]]


def test_manifests_given_directly(gate):
    unknown = gate("pod.yaml", "--format", "json")
    assert (unknown.code, verdicts(unknown)) == (0, [("Pod/chat", "unknown device", "warn")])
    strict = gate("pod.yaml", "--format", "json", "--strict")
    assert (strict.code, verdicts(strict)) == (1, [("Pod/chat", "unknown device", "fail")])
    both = gate("pod.yaml", "--format", "json", "--device", "h100-sxm5-80", "--device", "t4", "--device", "t4")
    assert both.code == 1
    assert verdicts(both) == [("Pod/chat", "h100-sxm5-80", "pass"), ("Pod/chat", "t4", "fail")]


def test_a_capacity_file_beside_manifests_and_files_given_twice(gate):
    answer = gate("pod.yaml", "./kvcli.yaml", "kvcli.yaml", "--device", "h100-sxm5-80", "--format", "json")
    assert verdicts(answer) == [("chat", "h100-sxm5-80", "pass"), ("Pod/chat", "h100-sxm5-80", "pass")]


def test_a_folder_with_a_capacity_file_is_that_file_others_are_their_manifests(gate):
    assert verdicts(gate(".", "--format", "json")) == [("chat", "h100-sxm5-80", "pass")]
    for overlay in ("prod", "staging"):
        (gate.folder / "overlays" / overlay).mkdir(parents=True)
        (gate.folder / "overlays" / overlay / "pod.yaml").write_text(POD)
    answer = gate("overlays", "--device", "h100-sxm5-80", "--format", "json", "--baseline", "b.json", "--update-baseline")
    assert answer.code == 0
    names = ["overlays/prod/pod.yaml#Pod/chat", "overlays/staging/pod.yaml#Pod/chat"]
    assert [each[0] for each in verdicts(answer)] == names
    # each has a place of its own in the baseline
    assert gate("overlays", "--device", "h100-sxm5-80", "--baseline", "b.json").out.startswith("2 of 2 unchanged")


def test_two_engines_in_one_pod_have_names_of_their_own(gate):
    second = POD.split("    - name: vllm")[1].replace("8192", "4096")
    (gate.folder / "two.yaml").write_text(f"{POD}    - name: other{second}")
    answer = gate("two.yaml", "--device", "h100-sxm5-80", "--format", "json")
    assert [each[0] for each in verdicts(answer)] == ["Pod/chat/vllm", "Pod/chat/other"]


def test_defaults_do_not_overrule_a_manifest(gate):
    """They say what targets without one have; a manifest has its own engine, length and types."""
    text = """\
version: 1
defaults: {engine: sglang, engine_version: "0.5", ctx: 4k, on: t4}
targets:
  - {name: manifest, from: pod.yaml}
  - {name: command, command: vllm serve meta-llama/Llama-3.1-8B-Instruct}
  - {name: told, from: pod.yaml, ctx: 2k}
  - {name: model, model: llama3.1-8b}
"""
    (gate.folder / "kvcli.yaml").write_text(text)
    document = json.loads(gate("kvcli.yaml", "--format", "json").out)
    fits = {each["name"]: next(rule["message"] for rule in each["rules"] if rule["id"] == "KV001") for each in document["targets"]}
    tokens = {name: message.split(" tokens")[0].split()[-1] for name, message in fits.items()}
    assert tokens == {"manifest": "8,192", "command": "131,072", "told": "2,048", "model": "4,096"}
    assumed = {each["name"]: " ".join(each["assumed"]) for each in document["targets"]}
    assert "vllm 0.9" in assumed["manifest"]
    assert "sglang" not in assumed["manifest"] + assumed["command"] + assumed["told"]


def test_the_help_says_what_it_does(gate):
    answer = gate("--help")
    assert answer.code == 0
    for words in ("Exit 1 if a rule fails", "kvcli.yaml", "--device NAME", "text, json, github, gitlab, azure", "Example: kvcli check"):
        assert words in " ".join(answer.out.split())


def process(gate, *arguments, **more):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kvcli", "check", *arguments]
    return subprocess.Popen(command, cwd=gate.folder, env=environment, stderr=subprocess.PIPE, text=True, **more)


def test_a_closed_pipe(gate):
    reader, writer = os.pipe()
    os.close(reader)
    with process(gate, "kvcli.yaml", stdout=writer) as running:
        os.close(writer)
        assert running.wait(60) == 141
        assert running.stderr.read() == ""


def test_a_full_disk_under_stdout(gate):
    with open("/dev/full", "w") as full, process(gate, "kvcli.yaml", stdout=full) as running:
        assert running.wait(60) == 3
        assert running.stderr.read() == "kvcli: no space left on device\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_ctrl_c(gate, form):
    os.mkfifo(gate.folder / "waits")  # nobody reads it, so the program waits there
    arguments = ("kvcli.yaml", "--junit", "a.xml", "--sarif", "waits", "--format", form)
    with process(gate, *arguments, stdout=subprocess.PIPE) as running:
        until = time.monotonic() + 60
        while not (gate.folder / "a.xml").exists() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (130, "")
    assert out == "" if form == "text" else json.loads(out)["error"]["code"] == "interrupted"
    assert (gate.folder / "a.xml").read_text().endswith("</testsuites>\n")


def test_a_folder_with_files_of_others(gate):
    (gate.folder / "all").mkdir()
    (gate.folder / "all" / "pod.yaml").write_text(POD)
    (gate.folder / "all" / "stack.yaml").write_text("Resources: {A: !Ref B}\n")
    answer = gate("all", "--device", "l4", "--format", "json")
    assert answer.code == 0
    assert answer.err.startswith("kvcli: passed over, since nothing in it starts an engine: all/stack.yaml:1: tag '!Ref'")
    assert len(answer.err.splitlines()) == 1
    alone = gate("all/stack.yaml", "--device", "l4")
    refused(alone, "all/stack.yaml:1")


@pytest.mark.parametrize("option", ["--md", "--junit", "--sarif"])
def test_a_dash_is_no_file(kvcli, tmp_path, option):
    (tmp_path / "kvcli.yaml").write_text("version: 1\ntargets: [{ name: a, model: gpt2, ctx: 512, engine: vllm, on: [l4] }]\n")
    answer = kvcli("check", "kvcli.yaml", option, "-", cwd=tmp_path)
    assert answer.code == 2
    assert f"{option} - names no file" in answer.err
    assert [each.name for each in tmp_path.iterdir()] == ["kvcli.yaml"]
