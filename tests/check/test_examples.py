"""The shipped examples as three readers meet them: the team that changes a manifest, who reviews the annotation, who reads the table."""

import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "report"))

from report_forms import validate
from report_readers import github_command, table_cells

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHIPPED, RAISED = "--max-model-len=8192", "--max-model-len=49152"
KV_TOKEN_BYTES = 32 * 2 * 8 * 128 * 2  # layers, keys and values, KV heads, head dimension, bytes of bf16
BLOCK = 16


@pytest.fixture
def examples(tmp_path):
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


def change(folder, new, old=SHIPPED, file="deploy/chat.yaml"):
    path = folder / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def line_of(path, words):
    (line,) = [n for n, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if words in text]
    return line


def rules_of(kvcli, folder, target):
    """rule -> what it found, of one target."""
    document = json.loads(kvcli("check", "kvcli.yaml", "--format", "json", cwd=folder).out)
    (found,) = [each for each in document["targets"] if each["name"] == target]
    return {each["id"]: each for each in found["rules"]}


def annotations(out):
    found = [command for line in out.splitlines() if (command := github_command(line))]
    return {level: [each for each in found if each[0] == level] for level in ("error", "warning", "notice")}


def test_the_examples_pass_and_nothing_changed_since_their_baseline(kvcli):
    """Where a rule changed on purpose: `kvcli check kvcli.yaml --update-baseline` in examples/ writes the baseline anew."""
    done = kvcli("check", "kvcli.yaml", cwd=EXAMPLES)
    assert done.code == 0 and done.err == ""
    assert "6 of 6 unchanged since the baseline" in done.out
    assert "kvcli check passed" in done.out


def test_every_example_manifest_is_a_target():
    named = (EXAMPLES / "kvcli.yaml").read_text(encoding="utf-8")
    assert all(f"deploy/{path.name}#" in named for path in (EXAMPLES / "deploy").iterdir())


def test_they_pass_from_another_folder_and_strictly(kvcli, tmp_path):
    for options in ((), ("--strict",)):
        done = kvcli("check", str(EXAMPLES / "kvcli.yaml"), *options, cwd=tmp_path)
        assert done.code == 0, done.out


def test_a_length_beyond_what_fits_is_annotated_in_its_line_with_the_ways_out(kvcli, examples):
    path = change(examples, RAISED)
    done = kvcli("check", "kvcli.yaml", "--format", "github", cwd=examples)
    assert done.code == 1 and done.err == ""
    found = annotations(done.out)
    ((_, place, text),) = found["error"]
    assert (place["file"], place["line"]) == ("deploy/chat.yaml", str(line_of(path, RAISED)))
    assert place["title"] == "KV001 does-not-fit: chat on l4-pool"
    assert "one request of 49,152 tokens need" in text and "l4 has 22.030 GiB" in text
    formula = re.search(r"formula: (.*) = ([\d,]+) B > ([\d,]+) B usable", text)
    terms = {name: int(amount.replace(",", "")) for name, amount in re.findall(r"(\w+) ([\d,]+)", formula[1])}
    total, usable = (int(formula[number].replace(",", "")) for number in (2, 3))
    assert sum(terms.values()) == total > usable
    assert terms["kv_cache"] == 49_152 * KV_TOKEN_BYTES
    assert re.search(
        r"what passes: --max-model-len \d+ \(up to \d+ with a warning, if overheads stay low\), "
        r"or --kv-cache-dtype fp8 \(with a warning, if overheads stay low\), "
        r"or --tensor-parallel-size 2 on 2 x l4",
        text,
    )


def proposed(kvcli, folder):
    return int(re.search(r"--max-model-len (\d+)", rules_of(kvcli, folder, "chat")["KV001"]["fix"])[1])


def test_the_length_that_is_named_passes_and_one_block_more_does_not(kvcli, examples):
    change(examples, RAISED)
    longest = proposed(kvcli, examples)
    assert 8192 < longest < 49_152
    change(examples, f"--max-model-len={longest}", RAISED)
    assert "KV001" not in rules_of(kvcli, examples, "chat")
    change(examples, f"--max-model-len={longest + BLOCK}", f"--max-model-len={longest}")
    assert rules_of(kvcli, examples, "chat")["KV001"]["level"] == "warning"


def test_the_other_changes_that_are_named_pass_too(kvcli, examples):
    path = change(examples, RAISED)
    raised = path.read_text(encoding="utf-8")
    change(examples, f"{RAISED}\n            - --kv-cache-dtype=fp8", RAISED)
    assert rules_of(kvcli, examples, "chat")["KV001"]["level"] == "warning"  # as named: if overheads stay low
    assert kvcli("check", "kvcli.yaml", cwd=examples).code == 0
    path.write_text(raised, encoding="utf-8")
    change(examples, f"{RAISED}\n            - --tensor-parallel-size=2", RAISED)
    assert rules_of(kvcli, examples, "chat")["KV014"]["fix"] == "nvidia.com/gpu: 2"
    change(examples, "nvidia.com/gpu: 2", "nvidia.com/gpu: 1")
    assert {rule for rule, each in rules_of(kvcli, examples, "chat").items() if each["level"] in ("error", "warning")} == set()


@pytest.mark.parametrize(
    ("old", "new", "target", "rule", "words"),
    [
        # more users than both replicas run, and than they hold: more replicas, not more sequences, pass
        ("users: 6,", "users: 600,", "chat", "KV007", "each of 2 replicas runs at most 16 sequences together -> 67 replicas"),
        ("on: [l4-pool]\n    load: { users: 6", "on: [l4-pol]\n    load: { users: 6", "chat", "KV008", "did you mean l4-pool?"),
        ("device: l4, devices: 8", "device: t4, devices: 8", "chat", "KV001", "--tensor-parallel-size 2 on 2 x t4"),
        ("tp: 2", "tp: 3", "summaries", "KV004", "the nearest that does: tp: 2 or 4"),
        ("memory: 95%", "memory: 70%", "chat", "KV002", "--tensor-parallel-size 2 on 2 x l4"),
    ],
)
def test_what_the_platform_team_gets_wrong_names_the_way_out(kvcli, examples, old, new, target, rule, words):
    change(examples, new, old, "kvcli.yaml")
    found = rules_of(kvcli, examples, target)[rule]
    assert words in f"{found['message']} -> {found['fix']}"


def test_a_cause_is_said_once(kvcli, examples):
    """Where not even one request fits, neither the headroom nor the users are a second failure."""
    change(examples, "device: t4, devices: 8", "device: l4, devices: 8", "kvcli.yaml")
    found = rules_of(kvcli, examples, "chat")
    assert {rule for rule, each in found.items() if each["level"] == "error"} == {"KV001"}
    assert found["KV002"]["level"] == found["KV007"]["level"] == "skipped"


def test_the_length_that_leaves_the_headroom_is_the_largest(kvcli, examples):
    change(examples, "memory: 70%", "memory: 95%", "kvcli.yaml")
    longest = int(re.search(r"--max-model-len (\d+)", rules_of(kvcli, examples, "chat")["KV002"]["fix"])[1])
    change(examples, f"--max-model-len={longest}")
    assert rules_of(kvcli, examples, "chat").get("KV002", {"level": "passed"})["level"] != "error"
    change(examples, f"--max-model-len={longest + BLOCK}", f"--max-model-len={longest}")
    assert rules_of(kvcli, examples, "chat")["KV002"]["level"] == "error"


def test_a_slip_of_the_pen_in_an_option_is_warned_of(kvcli, examples):
    path = change(examples, "--context-lenght", "--context-length", "deploy/reasoner.yaml")
    found = rules_of(kvcli, examples, "reasoner")["KV016"]
    assert (found["level"], found["line"]) == ("warning", line_of(path, "--context-lenght"))
    assert found["message"] == "kvcli does not know the option --context-lenght: is it --context-length?"


def test_the_same_change_within_the_limits_passes(kvcli, examples):
    change(examples, "--max-model-len=12288")
    done = kvcli("check", "kvcli.yaml", "--format", "github", cwd=examples)
    assert done.code == 0
    assert not any(annotations(done.out).values())


def test_only_what_changed_is_shown(kvcli, examples):
    change(examples, RAISED)
    shown = kvcli("check", "kvcli.yaml", cwd=examples).out
    assert "FAIL chat on l4-pool" in shown and "5 of 6 unchanged" in shown
    assert "since the baseline: memory 18.368 GiB -> 22.868 GiB (+24.5%)" in shown
    assert not any(name in shown for name in ("assistant", "reasoner", "summaries"))
    (examples / ".kvcli" / "baseline.json").unlink()
    whole = kvcli("check", "kvcli.yaml", cwd=examples).out
    assert all(f"{name} on" in whole for name in ("chat", "assistant", "reasoner", "house", "desk", "summaries"))


def test_a_baseline_is_refused_on_failure_and_written_otherwise(kvcli, examples):
    kept = examples / ".kvcli" / "baseline.json"
    before = kept.read_bytes()
    change(examples, RAISED)
    refused = kvcli("check", "kvcli.yaml", "--update-baseline", cwd=examples)
    assert refused.code == 1 and kept.read_bytes() == before
    assert "the baseline is not updated, because chat on l4-pool fails" in refused.err
    change(examples, "--max-num-seqs=4", "--max-num-seqs=16")
    change(examples, SHIPPED, RAISED)
    assert rules_of(kvcli, examples, "chat")["KV012"]["level"] == "warning"  # 18 sequences before, 8 now
    assert kvcli("check", "kvcli.yaml", "--update-baseline", cwd=examples).code == 0
    assert kept.read_bytes() != before
    assert "6 of 6 unchanged" in kvcli("check", "kvcli.yaml", cwd=examples).out


def test_all_outputs_of_one_run_meet_their_schemas(kvcli, examples):
    path = change(examples, RAISED)
    files = {"sarif.json": "--sarif", "junit.xml": "--junit", "json": "--json", "md": "--md"}
    options = [word for form, option in files.items() for word in (option, f"out.{form}")]
    done = kvcli("check", "kvcli.yaml", "--format", "gitlab", *options, cwd=examples)
    assert done.code == 1
    validate("gitlab.json", done.out)
    outputs = {form: (examples / f"out.{form}").read_text(encoding="utf-8") for form in files}
    for form, output in outputs.items():
        validate(form, output)
    (alert,) = [each for each in json.loads(outputs["sarif.json"])["runs"][0]["results"] if each["level"] == "error"]
    where = alert["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "deploy/chat.yaml"
    assert where["region"]["startLine"] == line_of(path, RAISED)
    head, *rows = table_cells(outputs["md"])
    (row,) = [dict(zip(head, each, strict=True)) for each in rows if "chat" in each]
    assert row["verdict"] == "FAIL" and "KV001" in row["why"] and "--max-model-len" in row["what passes"]
    assert "22.868 GiB of 22.030 GiB" in row["memory"] and "was 18.368 GiB" in row["memory"]


def test_manifests_of_one_name_are_told_apart(kvcli, examples):
    shutil.copy(examples / "deploy" / "chat.yaml", examples / "deploy" / "copy.yaml")
    both = (examples / "deploy" / "copy.yaml").read_text(encoding="utf-8").partition("---")[0]
    (examples / "deploy" / "copy.yaml").write_text(f"{both}---\n{both}", encoding="utf-8")
    given = ("check", "deploy", "--device", "h100-sxm5-80", "--baseline", "all.json")
    assert kvcli(*given, "--update-baseline", cwd=examples).code == 0
    done = kvcli(*given, "--format", "json", cwd=examples)
    names = [each["name"] for each in json.loads(done.out)["targets"]]
    copy = "deploy/copy.yaml#Deployment/chat"
    assert {"deploy/chat.yaml#Deployment/chat", copy, f"{copy} (2)"} <= set(names) and len(names) == len(set(names))


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "transformers", "pandas", "gguf", "safetensors", "tokenizers", "pynvml", "jinja2"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
from kvcli.cli.app import main
sys.argv = ["kvcli", *sys.argv[1:]]
main()
"""


def test_the_base_install_is_enough(examples):
    change(examples, RAISED)
    command = [sys.executable, "-c", BLOCKED, "check", "kvcli.yaml", "--format", "github"]
    done = subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert len(annotations(done.stdout)["error"]) == 1


def test_fifty_targets_take_less_than_a_second(examples, record_property):
    """Of the processor: 0.6 s on a core of 2024. The bound leaves room for a loaded machine."""
    models = ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B", "mistralai/Mistral-7B-Instruct-v0.3", "Qwen/Qwen3-4B", "Qwen/Qwen2.5-7B"]
    targets = []
    chat = (examples / "deploy" / "chat.yaml").read_text(encoding="utf-8").partition("---")[0]
    for number in range(50):
        own = chat.replace("name: chat\n", f"name: chat-{number}\n").replace(SHIPPED, f"--max-model-len={8192 + 256 * number}")
        own = own.replace(models[0], models[number % len(models)])
        (examples / "deploy" / f"chat-{number}.yaml").write_text(own, encoding="utf-8")
        load = "load: { users: 6, ctx_p99: 4k, prompt: 1k }, limits: { memory: 95%, ttft: 500ms, tpot: 80ms }"
        targets.append(f"  - {{ name: chat-{number}, from: deploy/chat-{number}.yaml, on: [l4-pool], {load} }}")
    fleet = "fleet: { l4-pool: { device: l4, devices: 8, price_hour: 5.60 } }"
    (examples / "fifty.yaml").write_text("\n".join(["version: 1", fleet, "targets:", *targets, ""]), encoding="utf-8")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "kvcli", "check", "fifty.yaml", "--format", "json"]
    done = subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=120, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    record_property("cpu_seconds", spent)
    assert len(json.loads(done.stdout)["targets"]) == 50 and done.returncode == 0
    assert spent < 2, f"{spent:.2f} s of the processor"
