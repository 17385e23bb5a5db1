"""YAML with places. Oracles: PyYAML's own safe_load for values and types; the source text for positions."""

import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcli.check.nodes import Mapping, Scalar, Sequence, place_at
from kvcli.check.yaml_reader import MAX_BYTES, load_documents, load_embedded, read_text
from kvcli.errors import BadInput

TYPES = {str: "str", int: "int", float: "float", bool: "bool", type(None): "null"}


def value(node):
    if isinstance(node, Mapping):
        return {key.text: value(each) for key, each in node.pairs}
    if isinstance(node, Sequence):
        return [value(each) for each in node.items]
    return node.text


def one(text):
    (node,) = load_documents(text, "f.yaml")
    return node


def refused(text, code="bad_yaml"):
    with pytest.raises(BadInput) as caught:
        load_documents(text, "f.yaml")
    assert caught.value.code == code, caught.value.message
    name, line, _ = caught.value.message.split(":", 2)
    assert name == "f.yaml"
    assert "\n" not in caught.value.message
    return int(line)


PLAIN = "8192 0x1F 0o17 017 1_000 1.5 .5 1e5 1.0e+5 .inf -3 yes No on OFF true null ~ 2026-01-01 1:30 v0.8.5 fp8 32k '8' \"yes\" <"


@pytest.mark.parametrize("text", PLAIN.split())
def test_scalar_types_are_those_of_yaml_1_1(text):
    node = one(f"a: {text}").get("a") if text not in ("null", "~") else None
    parsed = yaml.safe_load(f"a: {text}")["a"]
    expected = TYPES.get(type(parsed), "str")  # a timestamp is text to us
    found = one(f"a: {text}").pairs[0][1]
    assert found.type == expected
    assert node is None or node.text == text.strip("'\"")


def test_keys_are_their_text():
    node = one("on: 1\n8: 2\nnull: 3\n1.10: 4\n")
    assert [key.text for key, _ in node.pairs] == ["on", "8", "null", "1.10"]


def test_positions_of_scalars_and_documents():
    text = "# first\na: 1\nb:\n  - x\n  - {c: 'y', d: z}\n---\n---\ne: |\n  p\n"
    first, second = load_documents(text, "f.yaml")
    assert first.get("b").items[0].place[1:] == (4, 5)
    assert first.get("b").items[1].get("c").place[1:] == (5, 9)
    assert second.get("e").place[1:] == (8, 4)
    assert second.get("e").word.text == "p\n"


@pytest.mark.parametrize("style", ["|", ">", "|-", ">-", "|2", ">+", "# plain", '"', "'"])
def test_lines_inside_a_scalar_of_several_lines(style):
    """Each of its source lines is found again in the text, at its own line and column."""
    lines = ["vllm serve meta/x", "--max-model-len 8192", "", "--port 80 ", "--last"]
    if style == "# plain":
        lines.remove("")
        text = "k:\n  a: 1\n  s: " + "\n     ".join(lines) + "\n"
        first = 3
    elif style in "\"'":
        text = f"k:\n  a: 1\n  s: {style}" + "\n     ".join(lines) + style + "\n"
        first = 3
    else:
        text = f"k:\n  a: 1\n  s: {style}\n" + "\n".join("    " + line if line else "" for line in lines) + "\n"
        first = 4
    scalar = one(text).at("k", "s")
    assert scalar.text == yaml.safe_load(text)["k"]["s"]
    source = text.split("\n")
    for needle in ("vllm", "--max-model-len", "--port", "--last"):
        place = place_at(scalar.spots, scalar.place, scalar.text.index(needle))
        assert source[place.line - 1][place.column - 1 :].startswith(needle), (needle, place)
        assert place.line >= first


def test_merge_keys_and_anchors():
    text = "base: &b {x: 1, y: 2}\nother: &o\n  y: 3\n  z: 4\nm:\n  <<: [*b, *o]\n  x: 9\nn: {<<: *b}\nlist: [*b, *b]\n"
    node = one(text)
    assert value(node) == _strings(yaml.safe_load(text))
    assert node.at("m", "z").place.line == 4, "a merged value stays where it is written"


def _strings(node):
    if isinstance(node, dict):
        return {str(key): _strings(each) for key, each in node.items()}
    return [_strings(each) for each in node] if isinstance(node, list) else str(node)


def test_bom_and_crlf(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: |\r\n  x\r\n  y\r\n")
    node = one(read_text(path))
    assert node.get("b").text == "x\ny\n"
    assert node.get("b").place.line == 2


def test_embedded_yaml_keeps_outer_places():
    text = "spec:\n  conf: |\n    a: 1\n    b:\n      - q: 2\n"
    (node,) = load_embedded(one(text).at("spec", "conf"))
    place = node.get("b").items[0].get("q").place
    assert (place.line, place.column) == (5, 12)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: !!python/object/apply:os.system [id]\n", 2),
        ("a: !!binary aGk=\n", 1),
        ("a: !Ref x\n", 1),
        ("a: 1\nb: 2\na: 3\n", 3),
        ("a:\n\t- 1\n", 2),
        ("a: &x\n  - *x\n", 2),
        ("a: 1\nb: *nowhere\n", 2),
        ("a: 1\nb: \x00\n", 2),
        ("a: [1, 2\n", 2),
        ("? [1, 2]\n: 3\n", 1),
        ("a: 1\n<<: 3\n", 2),
        ("[" * 5000, 1),
        ("a: " + "{b: " * 3000, 1),
        ("- " * 3000 + "a", 1),
        ("a: 'x\n", 2),
        ("%YAML 9.9\n---\na: 1\n", 1),
    ],
)
def test_hostile_text_is_refused_with_its_line(text, line):
    assert refused(text) == line


def test_alias_bombs_are_refused_before_they_are_expanded():
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    merges = "m0: &m0 {k: v}\n" + "".join(f"m{i}: &m{i} {{a: *m{i - 1}, b: *m{i - 1}, c: *m{i - 1}}}\n" for i in range(1, 40))
    for text in (bomb, merges):
        start = time.process_time()
        refused(text)
        assert time.process_time() - start < 0.5


def test_many_aliases_to_one_small_node_are_fine():
    node = one("base: &b [1, 2]\nlist:\n" + "  - *b\n" * 1000)
    assert len(node.get("list").items) == 1000


@pytest.mark.parametrize(
    "text",
    [
        "image: {{ .Values.image }}\n",
        "{{- if .Values.on }}\na: 1\n{{- end }}\n",
        "a:\n  {{- toYaml .Values.x | nindent 2 }}\n",
        'a: 1\nb: {{ include "x.y" . }}\n',
        "{% if x %}\na: 1\n{% endif %}\n",
    ],
)
def test_a_template_is_named_as_one(text):
    line = next(n for n, each in enumerate(text.split("\n"), 1) if "{{" in each or "{%" in each)
    assert refused(text, "unrendered_template") == line


def test_texts_with_braces_are_no_templates():
    assert one("a: 'jinja {{ messages }}'\nb: \"{{.Name}}\"\n# {{ .Values.x }}\n").get("b").text == "{{.Name}}"


def test_read_text_refuses_what_is_no_file(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"a: 1\nb: \xe9\n")
    (tmp_path / "huge").write_bytes(b"a: 1\n" * (MAX_BYTES // 5 + 1))
    from pathlib import Path

    for path, line in (
        (tmp_path, 0),
        (tmp_path / "pipe", 0),
        (Path("/dev/zero"), 0),
        (tmp_path / "no", 0),
        (tmp_path / "latin", 2),
        (tmp_path / "huge", 1),
    ):
        start = time.process_time()
        with pytest.raises(BadInput) as caught:
            read_text(path)
        # what is no file has no line
        assert caught.value.message.startswith(f"{path.as_posix()}:{line}: " if line else f"{path.as_posix()}: ")
        assert time.process_time() - start < 0.2


def test_fifty_manifests_read_fast():
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n" + "".join(
        f"    - name: c{i}\n      image: vllm/vllm-openai:v0.8.5\n      args: [--model, meta/x, --max-model-len, '8192']\n"
        for i in range(10)
    )
    start = time.process_time()
    for _ in range(50):
        load_documents(text, "f.yaml")
    assert time.process_time() - start < 1.0


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc-_ é", max_size=5), inner, max_size=4),
        max_leaves=20,
    )
)
def test_values_are_those_of_pyyaml(data):
    text = yaml.safe_dump(data, allow_unicode=True)
    documents = load_documents(text, "f.yaml")
    expected = _strings(yaml.safe_load(text))
    assert [value(node) for node in documents] == ([expected] if documents else [])
    assert documents or expected in ("", "None")


@settings(max_examples=300, deadline=1000)
@given(st.text(st.sampled_from("a:-[]{}&*!|>'\"#%@`<~? \n\t,b1\x00\ufeff$()"), max_size=80))
def test_any_text_is_read_or_refused(text):
    try:
        load_documents(text, "f.yaml")
    except BadInput as error:
        assert error.message.startswith("f.yaml:")


def test_a_scalar_has_a_word():
    scalar = one("a: x").get("a")
    assert isinstance(scalar, Scalar)
    assert scalar.word.text == "x"
