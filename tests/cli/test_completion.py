"""Completion as shells ask for it: through their environment variables, and by bash itself."""

import os
import pty
import resource
import shutil
import subprocess
import sys
import time

import pytest

from kvcli.cli.complete import rejoin
from kvcli.hardware.accelerators import table
from kvcli.model.presets import names
from kvcli.plan.answers.solve import UNKNOWNS
from kvcli.plan.storage.policy import ENGINES

PARTS = [part.id for part in table()]


def bash(kvcli, words, last=None):
    """COMPREPLY for a line, the word under the cursor being its last; words are apart as in COMP_WORDS."""
    answer = kvcli(
        env={
            "_KVCLI_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ") if last is None else last),
        }
    )
    assert (answer.code, answer.err) == (0, "")
    return answer.out.split()


def others(kvcli, shell, line, action="get-args"):
    return kvcli(env={"_KVCLI_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": action})


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("kvcli dev", ["devices"]),
        ("kvcli plan llama3-", [name for name in names() if name.startswith("llama3-")]),
        ("kvcli plan ", names()),
        ("kvcli plan gpt2 llama3-8", ["llama3-8b"]),
        ("kvcli plan gpt2 --device h100", [part for part in PARTS if part.startswith("h100")]),
        ("kvcli plan gpt2 --device l", ["local", *(part for part in PARTS if part.startswith("l"))]),
        ("kvcli plan gpt2 --device l4 --device b2", ["b200"]),
        ("kvcli plan gpt2 --engine ", [*ENGINES]),
        ("kvcli plan gpt2 --kv-dtype q", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]),
        ("kvcli plan gpt2 --kv-dtype bf16,i", ["bf16,int8", "bf16,int4", "bf16,iq4_nl"]),
        ("kvcli plan gpt2 --weights q4_k", ["q4_k_s", "q4_k_m"]),
        ("kvcli plan gpt2 --weights int4-", ["int4-g32", "int4-g64", "int4-g128"]),
        ("kvcli plan gpt2 --solve ", [*UNKNOWNS]),
        ("kvcli plan gpt2 --emit s", ["sglang"]),
        ("kvcli plan gpt2 --slo mlperf:llama3.1-8b", ["mlperf:llama3.1-8b", "mlperf:llama3.1-8b-interactive"]),
        ("kvcli plan --spec", ["--speculative"]),
        ("kvcli devices ", ["show", "match"]),
        ("kvcli devices match h200", ["h200-sxm", "h200-nvl"]),
        ("kvcli devices show h200-s", ["h200-sxm"]),
        ("kvcli devices match h200-sxm h", []),
        ("kvcli presets show gemma3-2", [name for name in names() if name.startswith("gemma3-2")]),
        ("kvcli run smollm2-135m --cache d", ["dynamic"]),
        ("kvcli pull smollm2-135", [name for name in names() if name.startswith("smollm2-135")]),
        ("kvcli verify --dtype b", ["bf16"]),
        ("kvcli check --format j", ["json"]),
        ("kvcli check --device l40", ["l40", "l40s"]),
        # paths, and names that nobody knows, are left to the shell
        ("kvcli plan ./con", []),
        ("kvcli plan models/x", []),
        ("kvcli check k", []),
    ],
)
def test_what_bash_is_offered(kvcli, words, wanted):
    assert sorted(bash(kvcli, words)) == sorted(wanted)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        # bash takes words apart at = and :, and replaces what comes after the last of them
        ("kvcli plan gpt2 --device = h200-s", ["h200-sxm"]),
        ("kvcli plan gpt2 --solve =", [*UNKNOWNS]),
        ("kvcli plan gpt2 --slo mlperf : llama3.1-8b-i", ["llama3.1-8b-interactive"]),
        ("kvcli plan gpt2 --slo = mlperf : llama3.1-8b-i", ["llama3.1-8b-interactive"]),
        ("kvcli plan gpt2 --kv-dtype q8_0 : q4_0", ["q4_0"]),
        ("kvcli plan gpt2 --kv-dtype q8_0 :", ["auto", "fp32", "fp16", "bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4"]),
    ],
)
def test_words_that_bash_took_apart(kvcli, words, wanted):
    found = bash(kvcli, words)
    assert found[: len(wanted)] == wanted


def test_words_are_put_together_as_they_were_typed():
    def joined(*words, at):
        environment = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(at)}
        cut = rejoin(environment)
        return environment["COMP_WORDS"].split("\n"), int(environment["COMP_CWORD"]), cut

    assert joined("k", "plan", "a", at=2) == (["k", "plan", "a"], 2, "")
    assert joined("k", "plan", "", at=2) == (["k", "plan", ""], 2, "")
    assert joined("k", "--a", "=", "b", ":", "c", at=5) == (["k", "--a=b:c"], 1, "b:")
    # what follows a word with a colon stays apart; so do words after the cursor
    assert joined("k", "--a", "b", ":", "c", "d", at=5) == (["k", "--a", "b:c", "d"], 3, "")
    assert joined("k", "a", "b", ":", "c", at=1) == (["k", "a"], 1, "")


def test_zsh_and_fish(kvcli):
    assert others(kvcli, "zsh", "kvcli plan llama3-8").out == "_arguments '*: :((\"llama3-8b\"))'\n"
    assert (
        others(kvcli, "zsh", "kvcli plan gpt2 --slo mlperf:gpt-oss-120b-").out
        == "_arguments '*: :((\"mlperf\\\\:gpt-oss-120b-interactive\"))'\n"
    )
    assert others(kvcli, "zsh", "kvcli plan ./con").out == "_files\n"
    assert others(kvcli, "fish", "kvcli plan gpt2 --device=h200-").out.split() == ["h200-sxm", "h200-nvl"]
    assert others(kvcli, "fish", "kvcli plan gpt2 --solve ").out.split() == [*UNKNOWNS]
    assert others(kvcli, "fish", "kvcli plan llama3-8", "is-args").code == 0
    assert others(kvcli, "fish", "kvcli plan ./con", "is-args").code == 1  # fish then offers paths


def test_each_shell_has_its_script(kvcli):
    for shell, mark in (("bash", "complete -o default -F"), ("zsh", "#compdef kvcli"), ("fish", "complete --command kvcli")):
        answer = kvcli("--show-completion", shell, env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
        assert answer.code == 0
        assert mark in answer.out


def test_completion_is_fast_and_loads_nothing_of_the_measuring_half():
    code = (
        "import sys\nfrom kvcli.cli.app import run\n"
        "try:\n    run([])\nexcept SystemExit:\n    pass\n"
        "print(' '.join(sys.modules), file=sys.stderr)\n"
    )
    for words in ("kvcli ", "kvcli plan llama", "kvcli plan gpt2 --device h", "kvcli plan gpt2 --solve ", "kvcli run smol"):
        env = {**os.environ, "_KVCLI_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        taken = []
        for _ in range(4):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.stdout
        assert not {"torch", "numpy", "rich", "yaml", "pandas"} & set(done.stderr.split())
        assert min(taken) < 0.3


@pytest.fixture
def script(tmp_path):
    """A folder with the program under its name, and what bash is told to source."""
    program = tmp_path / "kvcli"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvcli "$@"\n')
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    text = subprocess.run(["kvcli", "--show-completion", "bash"], capture_output=True, text=True, env=env, check=True).stdout
    (tmp_path / "complete.sh").write_text(text)
    return tmp_path, env


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("kvcli plan llama3-8", "kvcli plan llama3-8b "),
        ("kvcli plan gpt2 --slo mlperf:llama3.1-8b-i", "kvcli plan gpt2 --slo mlperf:llama3.1-8b-interactive "),
        ("kvcli plan gpt2 --device=h200-s", "kvcli plan gpt2 --device=h200-sxm "),
        ("kvcli plan ./a-con", "kvcli plan ./a-config.json "),
        ("kvcli plan a-con", "kvcli plan a-config.json "),
    ],
)
def test_a_tab_in_bash(script, typed, becomes):
    folder, env = script
    (folder / "a-config.json").write_text("{}")
    parent, child = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=child,
        stdout=child,
        stderr=child,
        cwd=folder,
        env={**env, "TERM": "dumb", "PS1": "READY> ", "HISTFILE": ""},
        start_new_session=True,
    )
    os.close(child)
    said = b""

    def until(text, seconds=20):
        nonlocal said
        deadline = time.monotonic() + seconds
        while text not in said:
            assert time.monotonic() < deadline, said
            said += os.read(parent, 65536)
        said = said.partition(text)[2]

    try:
        os.write(parent, b"bind 'set bell-style none'; stty -echo; source ./complete.sh; echo sour''ced\n")
        until(b"sourced\r\n")
        until(b"READY> ")
        # what stands on the line after the tab becomes an argument of printf; quotes keep its words from matching as they are typed
        os.write(parent, typed.encode() + b"\t\x01printf 'GO''T<%s>EN''D' '\x05'\n")
        until(b"GOT<")
        while b">END" not in said:
            said += os.read(parent, 65536)
        assert said.decode().partition(">END")[0] == becomes
    finally:
        os.close(parent)
        shell.kill()
        shell.wait()
