"""Text of a user that tries to be something else: every output is read back by its own reader, and the text is found as text."""

import json
import re
import string
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_forms import FORMS, validate
from report_readers import azure_command, github_command, markdown_tokens, squeezed, table_cells

from kvcli.check.nodes import Place
from kvcli.check.verdict import Cell, Measures, Outcome, Report, Waiver
from kvcli.report.check.markdown import escape
from kvcli.report.check.sarif import message, uri
from kvcli.report.check.shown import encodable, plain, repository_path

SNIPPETS = [
    "::error::x",
    "\n::add-mask::x",
    "##vso[task.setvariable variable=PATH]x",
    "##[error]x",
    "###[x",
    "]]>",
    "<script>alert(1)</script>",
    "<!--",
    "&lt;",
    "\x1b[31mred\x1b[0m",
    "\r\n",
    "\u2028",
    "\u202etxt",
    "\ud800",
    "\udc80\udfff",
    "\ufffe",
    "\uffff",
    "\x00",
    "\x85",
    "%0A",
    "%25",
    "%AZP25",
    "%3B;%5D]",
    ":,=",
    "|",
    "\\|",
    "``",
    "`a`",
    "**b**",
    "_c_",
    "~~d~~",
    "[l](https://x.y)",
    "![i](x)",
    "https://x.y",
    "$e$",
    '"',
    "'",
    "{0}",
    "é漢🙂",
    "\\",
    " ",
    "- x",
    "# x",
    "1. x",
]
ANY = st.characters(exclude_categories=()) | st.sampled_from(string.punctuation)
TEXTS = st.lists(st.sampled_from(SNIPPETS) | st.text(ANY, max_size=6), min_size=1, max_size=5).map("".join).filter(bool)
SETTINGS = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def report_of(target, device, said, formula, fix, file):
    place = Place(file, 3, 7)
    outcomes = (
        Outcome("KV001", "error", said, place, formula, fix),
        Outcome("KV002", "note", said, place, formula, fix, Waiver(said, fix)),
        Outcome("KV006", "skipped", said, place),
        Outcome("KV007", "warning", said, place, formula, fix),
    )
    cell = Cell(target, device, Place(file, 1), outcomes, Measures(5, 4, 0), Measures(3, 4, 1), (), (said,))
    return Report((cell,), fix, ((target, device),))


@SETTINGS
@given(TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)
def test_every_format_holds_hostile_text_as_text(target, device, said, formula, fix, file):
    report = report_of(target, device, said, formula, fix, file)
    outputs = {form: make(report) for form, make in FORMS.items()}
    for form, output in outputs.items():
        output.encode("utf-8")
        validate(form, output)
        if form != "color.txt":
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e\ufffe\uffff]", output), form
    path = plain(repository_path(file))
    where = f"{plain(target)} on {plain(device)}"

    lines = outputs["txt"].split("\n")
    assert lines[0].startswith(f"FAIL {where}: ")
    for words in (f"    problem: {plain(said)}", f"    formula: {plain(formula)}", f"    what passes: {plain(fix)}"):
        assert lines.count(words) == 3
    assert f"  assumed: {plain(said)}" in lines
    assert not [line for line in lines if line.lstrip().startswith("::") or re.search(r"##(\[|vso\[)", line, re.IGNORECASE)]

    commands = [github_command(line) for line in outputs["github.txt"].strip("\n").split("\n")]
    assert [each and each[0] for each in commands] == ["error", "warning", "notice", *[None] * 4]
    assert commands[0][1] == {"file": path, "line": "3", "col": "7", "title": f"KV001 does-not-fit: {where}"}
    assert commands[0][2].split("\n")[:3] == [plain(said), f"formula: {plain(formula)}", f"what passes: {plain(fix)}"]

    commands = [azure_command(line) for line in outputs["azure.txt"].strip("\n").split("\n")]
    assert [each and each[0] for each in commands] == ["task.logissue", "task.logissue", *[None] * 5]
    assert commands[0][1] == {"type": "error", "sourcepath": path, "linenumber": "3", "columnnumber": "7", "code": "KV001"}
    assert commands[0][2].split("\n")[1:4] == [plain(said), f"formula: {plain(formula)}", f"what passes: {plain(fix)}"]

    suite = ElementTree.fromstring(outputs["junit.xml"].encode())[0]
    assert suite.get("name") == plain(target)
    failure = suite.find("testcase/failure")
    assert failure.get("message") == plain(said)
    assert failure.text.split("\n")[1:4] == [plain(said), f"formula: {plain(formula)}", f"what passes: {plain(fix)}"]

    found = json.loads(outputs["json"])["targets"][0]
    assert (found["name"], found["rules"][0]["message"], found["assumed"]) == (encodable(target), encodable(said), [encodable(said)])
    result = json.loads(outputs["sarif.json"])["runs"][0]["results"][0]
    assert result["message"]["text"].split("\n")[0] == message(f"{where}: {plain(said)}")
    assert not re.search(r"\]\(", result["message"]["text"])
    assert json.loads(outputs["gitlab.json"])[0]["location"]["path"] == path


@SETTINGS
@given(TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)
def test_markdown_renders_text_of_a_user_as_text(target, device, said, formula, fix, file):
    output = FORMS["md"](report_of(target, device, said, formula, fix, file))
    tokens = markdown_tokens(output)
    assert {token.content for token in tokens if token.type in ("html_inline", "html_block")} <= {"<br>"}
    kinds = {token.type for token in tokens}
    assert not kinds & {"link_open", "image", "em_open", "s_open", "fence", "code_block", "softbreak", "hardbreak", "hr", "blockquote_open"}
    titles, row = table_cells(output)
    shown = dict(zip(titles, row, strict=True))
    assert squeezed(shown["target"]) == squeezed(plain(target))
    assert squeezed(shown["device"]) == squeezed(plain(device))
    waived = f"KV002 waived until {plain(fix)}: {plain(said)}"
    assert squeezed(shown["why"]) == squeezed(f"KV001: {plain(said)} KV007: {plain(said)} {waived}")
    codes = [squeezed(token.content) for token in tokens if token.type == "code_inline"]
    assert squeezed(plain(formula)) in codes
    text = [squeezed(token.content) for token in tokens if token.type == "inline"]
    assert f"what passes: {squeezed(escape(fix))}".strip() in text


@given(st.text(ANY, min_size=1))
def test_a_path_survives_the_way_into_a_uri(path):
    found = uri(path)
    assert re.fullmatch(r"(file://)?[A-Za-z0-9/._~%-]*", found)
    raw = unquote_to_bytes(found.removeprefix("file://") if path.startswith("/") else found)
    try:
        assert raw == path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        assert raw == plain(path).encode()


@given(st.text(ANY))
def test_plain_text_is_settled(said):
    once = plain(said)
    assert plain(once) == once
    assert len(once.splitlines()) <= 1


@pytest.mark.parametrize(
    ("path", "shown"),
    [("./deploy/a.yaml", "deploy/a.yaml"), ("deploy//b/../a.yaml", "deploy/a.yaml"), ("../a.yaml", "../a.yaml"), ("", "")],
)
def test_paths_are_told_from_the_root(path, shown):
    assert repository_path(path) == shown


def test_an_absolute_path_has_no_base():
    place = Place("/srv/a b.yaml", 3)
    output = json.loads(FORMS["sarif.json"](Report((Cell("a", "b", place, (Outcome("KV001", "error", "c", place),)),))))
    assert output["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "file:///srv/a%20b.yaml"}
