"""The option parser against Python's argparse, which is what vLLM and SGLang call."""

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcli.check.engines import llama_cpp_options, sglang_options, tgi, trtllm, vllm_options
from kvcli.check.engines.table import ARGPARSE, CLAP, FLEXIBLE, LLAMA, options_of, parse
from tests.check.engines.helpers import word, words_of

TEXT = "--max-model-len --max-num-seqs --tensor-parallel-size,-tp --pipeline-parallel-size,-pp --quantization,-q --model"
TEXT += " --enforce-eager~ --trust-remote-code! --enable-chunked? --served-model-name+ --data-parallel-size,-dp --disable-log!"
OPTIONS = options_of(TEXT)


class Refused(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(message)


def reference():
    """The same table in argparse; `rest` collects what is left."""
    parser = Parser(add_help=False)
    for option in dict.fromkeys(OPTIONS.values()):
        names = [name for name, each in OPTIONS.items() if each == option and name not in option.negated]
        action = {
            "one": {},
            "none": {"action": "store_true", "default": None},
            "bool": {"action": argparse.BooleanOptionalAction, "default": None},
            "maybe": {"nargs": "?", "const": "", "default": None},
            "many": {"nargs": "+"},
        }[option.arity]
        parser.add_argument(*names, dest=option.name, **action)
    return parser


def theirs(line):
    namespace, rest = reference().parse_known_args(line)
    return {name: value for name, value in vars(namespace).items() if value is not None}, rest


def ours(line):
    parsed = parse([word(text) for text in line], OPTIONS, ARGPARSE)
    found = {}
    for each in parsed.given:
        texts = [value.text for value in each.values]
        arity = OPTIONS[each.option].arity
        found[each.option] = not each.off if arity in ("none", "bool") else texts if arity == "many" else texts[0] if texts else ""
    return found, parsed


names = st.sampled_from([*OPTIONS, "--max-model", "--max", "--tens", "--trust", "--enf", "--unknown-thing", "-t", "-z"])
value = st.sampled_from(["1", "-1", "fp8", "32k", "a/b", "0.9", "-0.5", '{"a": 1}', "x y", ""])
piece = st.one_of(
    names.map(lambda name: [name]),
    st.tuples(names, value).map(list),
    st.tuples(names, value).map(lambda pair: ["=".join(pair)]),
    st.sampled_from(["-q8", "-tp4", "-tp=4", "-q=fp8"]).map(lambda text: [text]),
    value.map(lambda text: [text]),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(piece, max_size=7).map(lambda pieces: [text for each in pieces for text in each]))
def test_splits_as_argparse_does(line):
    try:
        expected, rest = theirs(line)
    except Refused:
        _, parsed = ours(line)
        assert any(problem.matters for problem in parsed.problems), line
        return
    found, parsed = ours(line)
    assert not any(problem.matters for problem in parsed.problems), (line, parsed.problems)
    assert found == expected, line
    if not any(text.startswith("-") and text not in ("-1", "-0.5") for text in rest):  # argparse lets unknown options keep no values
        assert [each.text for each in parsed.rest] == rest


def one(line, text="--ctx-size,-c --flag!", dialect=ARGPARSE):
    return parse(words_of(line), options_of(text), dialect)


def test_the_last_of_two_wins_and_both_are_told():
    parsed = one("--ctx-size 1 --ctx-size 2")
    assert parsed.given[0].values[0].text == "2"
    assert parsed.given[0].place.line == 13
    assert [(each.code, each.matters, each.place.line) for each in parsed.problems] == [("repeated_option", False, 10)]
    assert [each.matters for each in one("--ctx-size 1 --ctx-size 2", dialect=CLAP).problems] == [True]


def test_underscores_are_dashes_where_the_engine_makes_them_so():
    assert one("--ctx_size=4", dialect=FLEXIBLE).given[0].option == "--ctx-size"
    assert one("--ctx_size 4", dialect=LLAMA).given[0].option == "--ctx-size"
    assert [each.code for each in one("--ctx_size 4").problems] == ["misspelled_option"]


def test_llama_takes_no_equals_sign_and_no_prefix():
    assert not one("--ctx-size=4", dialect=LLAMA).given
    assert not one("--ctx 4", dialect=LLAMA).given
    assert one("-c -1", dialect=LLAMA).given[0].values[0].text == "-1"


@pytest.mark.parametrize("line", ["--ctx-size", "--ctx-size --flag", "--flag=1"])
def test_what_the_engine_refuses_is_told(line):
    assert [(each.code, each.matters) for each in one(line).problems] == [("bad_argument", True)]


@pytest.mark.parametrize(
    "options", [vllm_options.options, sglang_options.options, llama_cpp_options.options, tgi.options, lambda: trtllm.options(False)]
)
def test_no_option_has_two_meanings(options):
    """A name that two options had would silently be the later one's."""
    found = options()
    assert all(name == option.name or option.name in found for name, option in found.items())
    assert all(name.startswith("-") for name in found)


def test_lists_have_no_name_twice():
    for module in ("vllm_options", "sglang_options", "llama_cpp_options"):
        text = (Path(__file__).parents[3] / "kvcli/check/engines" / f"{module}.py").read_text()
        tokens = [token for block in text.split('"""')[3::2] for token in block.split() if token.startswith(("-", "^"))]
        listed = [name.lstrip("^") for token in tokens for name in token.partition("@")[0].rstrip("!?+~").split(",")]
        assert not [name for name in set(listed) if listed.count(name) > 1], module
    assert json.dumps(sorted(llama_cpp_options.variables())).count("LLAMA_ARG_CTX_SIZE") == 2
