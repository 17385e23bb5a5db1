"""Shell words. The oracle is sh itself: the same script run with a program that prints its arguments."""

import shutil
import subprocess

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvcli.check.manifests.fileset import text_word
from kvcli.check.nodes import Place, Word
from kvcli.check.shell.script import run_script, split_words

SH = shutil.which("sh")
BASH = shutil.which("bash")
needs_sh = pytest.mark.skipif(SH is None, reason="sh is not installed")
VARIABLES = {"ONE": "v", "TWO": "a b", "EMPTY": "", "DASH": "--k 1  --q", "QUOTE": "it's"}


def run(text, environment=None, params=(), find=lambda path: None):
    known = {name: Word(value, Place("env", 1)) for name, value in (environment or {}).items()}
    return run_script(text_word(text, "f.sh"), known, [Word(each, Place("p", 1)) for each in params], find)


def words(text, environment=None, params=()):
    commands, _ = run(text, environment, params)
    return [word.text for word in commands[-1].words]


def by_shell(shell, text, params=()):
    """The arguments that `show` gets in the script, each ended by NUL."""
    program = 'show() { for each in "$@"; do printf \'%s\\0\' "$each"; done; }\n'
    done = subprocess.run([shell, "-c", "set -f\n" + program + text, "sh", *params], env=VARIABLES, capture_output=True, timeout=10)
    return done.returncode, done.stdout.decode().split("\0")[:-1]


PIECES = [
    *("a", "-b=c", "'x y'", '"x y"', "$ONE", "$TWO", '"$TWO"', "${ONE}", "${NOPE:-d}", "${NOPE:-'e f'}", '"${NOPE:-g h}"', "$EMPTY", '""'),
    *("''", "\\ ", "\\\n", "\\$", '"\\$"', '"\\a"', "=", "{", "}", "#", " ", "  ", "\t", "${EMPTY:+z}", "${TWO:+'q r'}", '"$QUOTE"', "$@"),
    *('"$@"', "$1", "${2}", "$#", '"$*"', "${EMPTY:-$TWO}", "%", ",", "[", "]", ":", "~", "@", '"${ONE:-"x"}"', "\\'", "'\"'"),
]

CASES = [
    "show a b  c",
    "show --max-model-len=8192 \\\n  --tp 2 \\\n  # not reached",
    "show a \\\n# a comment ends nothing before it\n",
    "show 'a b' \"c d\" e\\ f 'g'\"h\"i",
    "show ${NOPE:-32k} ${ONE:-x} ${EMPTY:-y} ${EMPTY-z} ${NOPE-w}",
    'show $DASH "$DASH" x$DASH',
    'show "" \'\' $EMPTY "$EMPTY" end',
    "show ${ONE:+set} ${EMPTY:+set} ${EMPTY+set} end",
    'show ${NOPE:-a b} "${NOPE:-a b}" ${NOPE:-"a b"} ${NOPE:-\'c d\'}',
    "show ${NOPE:-${ONE}} ${NOPE:-${EMPTY:-deep}}",
    "A=b; show $A; ",
    "export A=b C='d e'; show $A $C \"$C\"",
    "A=b show x",
    'show \'{"a": "b c"}\' {"a":1} "{\\"a\\": 1}"',
    "true && show a && true",
    "show a#b '#c' \\#d # e",
    'show $ONE$TWO"$TWO"$ONE',
    'show "a\\b\\$\\"\\`" a\\b',
    "show a;true",
    "show a|cat",
    "show a 2>/dev/null",
    "show a >&2 b 2>&1 | cat",
    'set -- p \'q r\'; show "$@" $2 "$#" x"$@"y',
    'show "$@" "${1}" $2',
    'set -eu; cd /; show "a\nb"',
    "show $'",
    "show ~ok x~y $ 'a'$ a$",
    'show ${ONE}x "${ONE}"y',
    "cat <<EOF >/dev/null\nshow no $A 'x\nEOF\nshow yes",
    "cat <<-'E' >/dev/null\n\tfoo\n\tE\nshow yes",
    "C='show a b'; $C c",
    'eval "show $TWO" x',
    "show a\\\nb",
    "\\\nshow x",
    "show \"a\\\nb\" 'a\\\nb'",
    'show $ON\\\nE $\\\nONE "$TW\\\nO" $ONE\\\n x',
    "( show x )",
    "{ show x; }",
    ': "${NEW:=fresh one}"; show $NEW "$NEW"',
    'shift; show "$@"',
]


@needs_sh
@pytest.mark.parametrize("text", CASES)
def test_words_are_those_of_sh(text):
    code, expected = by_shell(SH, text + "\n", ["p1", "p 2"])
    commands, problems = run(text + "\n", VARIABLES, ["p1", "p 2"])
    if code == 2 and not expected:
        assert [each.code for each in problems] == ["bad_shell"]
        return
    shown = [command for command in commands if command.words[0].text == "show"]
    if text.startswith("A=b; show"):
        assert shown
    assert [word.text for command in shown for word in command.words[1:]] == expected if ">&2" not in text else shown


@needs_sh
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(PIECES),
        max_size=12,
    )
)
def test_generated_words_are_those_of_sh(pieces):
    text = "show " + "".join(pieces)
    code, expected = by_shell(SH, text + "\n", ["p1", "p 2"])
    assume(code == 0)
    commands, _ = run(text, VARIABLES, ["p1", "p 2"])
    assume(all(word.literal for word in commands[-1].words))  # `$ONEa` is a variable that nothing sets
    assert [word.text for word in commands[-1].words[1:]] == expected, text


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    "text",
    [
        'A=(a "b c" $TWO); show "${A[@]}" ${A[@]} "${A[0]}"',
        'A=(a\n  # note\n  --k=v \\\n  "x")\nA+=(z); show "${A[@]}"',
        'A=(); show "${A[@]}" end',
        "X=a; X+=b; show $X",
        'A=(--m x); show "pre" "${A[@]}" post',
        "declare -x V='q r'; show \"$V\"",
    ],
)
def test_arrays_are_those_of_bash(text):
    code, expected = by_shell(BASH, text)
    assert code == 0
    assert words(text, VARIABLES)[1:] == expected


def test_places_are_those_of_the_words():
    text = "set -e\nexport LEN=8192\nexec vllm serve m \\\n  --max-model-len $LEN \\\n  --a=${LEN} \\\n  # note\n"
    commands, _ = run(text)
    lines = {word.text: word.place.line for word in commands[-1].words}
    assert lines == {"vllm": 3, "serve": 3, "m": 3, "--max-model-len": 4, "8192": 2, "--a=8192": 5}
    column = {word.text: word.place.column for word in commands[-1].words}
    assert column["vllm"] == 6
    assert column["--a=8192"] == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "vllm serve $(cat /x) --n `nproc` --m $((1 + 2)) --k ${A%b} --u $UNSET",
            ["$(cat /x)", "`nproc`", "$((1 + 2))", "${A%b}", "$UNSET"],
        ),
        ("if [ -n x ]; then A=1; fi; vllm serve --a $A", ["$A"]),
        ("for i in 1 2; do B=$i; done; vllm serve $B", ["$B"]),
        ("[ -f x ] && C=1\nvllm serve $C", ["$C"]),
        ("read D; vllm serve $D", ["$D"]),
        ('A=(x); if true; then A+=(y); fi; vllm serve "${A[@]}"', ["y"]),
    ],
)
def test_what_only_the_shell_knows_is_not_literal(text, expected):
    commands, _ = run(text)
    assert [word.text for word in commands[-1].words if not word.literal] == expected


def test_commands_under_a_condition_are_marked():
    text = "if x; then\n  a 1\nelse\n  b 2\nfi\nc || d\nwhile y; do e; done\ncase z in q) f;; *) g;; esac\nh() { i; }\nj && k\n"
    commands, problems = run(text)
    assert {each.words[0].text: each.guarded for each in commands} == {
        **dict.fromkeys("xabdyefgi", True),
        **dict.fromkeys("cjk", False),
    }
    assert not problems


def test_environment_is_what_the_command_sees():
    commands, _ = run("export A=1\nB=2\nC=3 D=4 vllm serve\n", {"E": "5"})
    seen = {name: word.text for name, word in commands[-1].environment.items()}
    assert seen == {"A": "1", "C": "3", "D": "4", "E": "5"}


def test_nothing_runs_after_exec_and_exit():
    assert [each.words[0].text for each in run("a; exec b; c")[0]] == ["a", "b"]
    assert [each.words[0].text for each in run("a; exit 0; c")[0]] == ["a"]


def test_a_sourced_script_sets_variables():
    files = {"/env.sh": text_word("export LEN=9\n", "env.sh")}
    commands, problems = run(". /env.sh; vllm serve $LEN; source /no.sh", find=files.get)
    assert [(word.text, word.place.label) for word in commands[0].words][-1] == ("9", "env.sh:1")
    assert [each.code for each in problems] == ["other_script_not_found"]


@pytest.mark.parametrize(
    "text", ["echo 'a", 'echo "a', "echo `a", "echo $(a", "echo ${a", "A=(b", "x=" + "${a:-" * 50 + "}" * 50, "if " * 500]
)
def test_what_the_shell_refuses_is_a_problem(text):
    _, problems = run(text)
    assert [each.code for each in problems] == ["bad_shell"]


def test_words_that_double_are_bounded():
    _, problems = run("A=xxxxxxxxxx\n" + "A=$A$A\n" * 60 + "show $A\n")
    assert [each.code for each in problems] == ["bad_shell"]


def test_split_words_expands_nothing():
    text = Word("--a 'b c' $X ${Y:-z} \\\n --d=\"e f\"", Place("f", 3))
    assert [word.text for word in split_words(text)] == ["--a", "b c", "$X", "${Y:-z}", "--d=e f"]


@settings(max_examples=400, deadline=1000)
@given(
    st.lists(st.sampled_from([*"ab'\"\\$(){}`;&|<>#= \n\t~*![]@:-+?%1", "if ", "fi\n", "case ", " in ", "esac", "<<a", "${a"]), max_size=60)
)
def test_any_text_is_read(pieces):
    text = "".join(pieces)
    run(text, VARIABLES, ["x"])
    split_words(Word(text, Place("f", 1)))
