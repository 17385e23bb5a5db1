"""The README is the manual: its commands are run here, and outputs that do not depend on the machine are compared.

KVCLI_UPDATE_README=1 writes the compared outputs anew.
"""

import os
import re
import shlex
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"```console\n\$ (kvcli [^\n]*)\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall(README.read_text(encoding="utf-8"))
#: what depends on the machine: times, and the memory that is left to the test
MACHINE = re.compile(r"\d[\d,.]*\s?(us|ms|s|x)\b|\d+\.\de-\d+|\d[\d.]*e-\d+")


DOCS = README.parent / "docs"


def same_picture(made, shown):
    """Byte for byte with the library that drew what is shown; others place glyphs a little differently."""
    import matplotlib

    by = re.search(rb"Matplotlib v([\d.]+)", shown.read_bytes())[1].decode()
    if matplotlib.__version__ == by:
        assert made.read_bytes() == shown.read_bytes(), "KVCLI_UPDATE_README=1 draws it anew"
    else:
        print(f"the picture of the manual was drawn by matplotlib {by} and is not compared with that of {matplotlib.__version__}")
        assert made.read_bytes().startswith(b"<?xml")


def masked(text):
    return [re.sub(r"\s+", " ", MACHINE.sub("#", line)).strip() for line in text.strip().splitlines() if not set(line.strip()) <= set("─ ")]


def test_the_readme_shows_the_verbs():
    verbs = [shlex.split(command)[1] for command, _ in BLOCKS]
    assert verbs.count("plan") >= 3
    assert {"run", "verify", "check"} <= set(verbs)


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_command_of_the_readme(kvcli, request, command, shown):
    arguments = shlex.split(command)[1:]
    if arguments[0] in ("run", "verify"):
        pytest.importorskip("torch", reason="this example needs the extra `run`")
    if arguments[0] == "run" and "--random-weights" not in arguments:
        request.getfixturevalue("default_gguf")
    where = {}
    if arguments[0] == "check":
        where = {"cwd": request.getfixturevalue("manual_files")}
    picture = arguments[arguments.index("--plot") + 1] if "--plot" in arguments else None
    if picture or "--html" in arguments:
        where = {"cwd": request.getfixturevalue("tmp_path")}
    answer = kvcli(*arguments, env={"CUDA_VISIBLE_DEVICES": "", **({"PYTHONPATH": str(README.parent)} if where else {})}, **where)
    # the gate is shown as it fails
    assert answer.code == (1 if arguments[0] == "check" else 0), answer.err
    if os.environ.get("KVCLI_UPDATE_README"):
        text = README.read_text(encoding="utf-8")
        tidy = "\n".join(line.rstrip() for line in answer.out.rstrip().splitlines())
        README.write_text(text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{tidy}\n```"), encoding="utf-8")
        if picture:
            (DOCS / picture).write_bytes((where["cwd"] / picture).read_bytes())
        return
    if picture:
        same_picture(where["cwd"] / picture, DOCS / picture)
    if arguments[0] in ("plan", "check"):
        assert [line.rstrip() for line in answer.out.rstrip().splitlines()] == shown.rstrip().splitlines()
    elif arguments[0] == "verify" or "--compare" in arguments:
        assert masked(answer.out) == masked(shown)
    else:
        # another machine may round to another token: the beginning must agree
        if "--random-weights" in arguments:
            assert len(answer.out.split()) == len(shown.split())
            assert answer.out.replace(" ", "").strip().isdigit()
        else:
            assert answer.out.split()[:4] == shown.split()[:4]


def test_inline_commands_exist(kvcli):
    """Commands in running text: each parses, as far as `--help` can tell."""
    text = README.read_text(encoding="utf-8")
    for verb in set(re.findall(r"`kvcli ([a-z]+)", text)):
        assert kvcli(verb, "--help").code == 0
    options = set(re.findall(r"`(--[a-z-]+)", text)) - {"--help"}
    helps = "".join(kvcli(verb, "--help").out for verb in ("plan", "run", "verify", "devices", "check"))
    assert not {option for option in options if option not in helps}
    for target in ("demo", "test"):
        assert re.search(rf"^{target}:", (README.parent / "Makefile").read_text(), re.MULTILINE)


def rows(heading):
    """The cells of the table that begins with that line."""
    table = README.read_text(encoding="utf-8").split(f"\n{heading}\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[1:]]


def test_the_rules_are_those_of_the_program():
    from kvcli.check.verdict import RULES

    assert rows("| rule | name | what must hold |") == [[rule, *RULES[rule]] for rule in sorted(RULES)]


def test_the_keys_are_those_that_the_reader_knows():
    from kvcli.check import capacity_file as reader

    told = {}
    for of, keys, _ in rows("| of | keys | meaning |"):
        told.setdefault(of, []).extend(re.findall(r"`([^`]+)`", keys))
    known = {"file": reader._TOP, "pool": reader._POOL, "target": reader._TARGET, "load": reader._LOAD}
    known |= {"limits": reader._LIMITS, "waiver": reader._WAIVER}
    assert {of: sorted(keys) for of, keys in told.items()} == {of: sorted(keys) for of, keys in known.items()}
    # what the row of `defaults` says
    assert set(reader._TARGET) - set(reader._DEFAULTS) == {"name", "from", "command", "model", "waive"}


def test_the_changelog_has_the_version_or_unreleased():
    from kvcli import __version__

    text = (README.parent / "CHANGELOG.md").read_text()
    assert "## Unreleased" in text or f"## {__version__}" in text
