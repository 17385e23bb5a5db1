"""Presets: each reproduces its publisher's parameter count, and names resolve exactly or not at all."""

import json

import pytest

from kvcli.errors import BadInput
from kvcli.model import presets
from kvcli.model.resolve import resolve

NAMES = presets.names()
ASKED = [
    "llama2-7b",
    "llama2-13b",
    "llama2-70b",
    "llama3-8b",
    "llama3-70b",
    "llama3.1-8b",
    "llama3.1-70b",
    "llama3.1-405b",
    "llama3.2-1b",
    "mistral-7b-v0.1",
    "mistral-7b-v0.3",
    "qwen2.5-7b",
    "qwen2.5-72b",
    "qwen3-8b",
    "qwen3-32b",
    "phi-4",
    "gpt2",
    "tinyllama-1.1b",
    "smollm2-135m",
    "smollm2-1.7b",
]


def test_all_presets_are_there():
    assert set(ASKED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_equal_the_publishers_count(name):
    preset = presets.load(name)
    assert preset.spec().parameters == preset.block["parameters"]
    # where the published total differs, the file says why
    assert ("published_parameters" in preset.block) == ("note" in preset.block)


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_says_where_it_is_from(name):
    block = presets.load(name).block
    assert block["source"]
    assert block["parameters_source"]
    assert block["hub_ids"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama3-8b", "llama3-8b"),
        ("llama-3-8b", "llama3-8b"),
        ("Llama_3_8B", "llama3-8b"),
        ("Meta-Llama-3-8B", "llama3-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("Llama-3.1-8B", "llama3.1-8b"),
        ("SmolLM2-135M", "smollm2-135m"),
        ("Qwen2.5-72B", "qwen2.5-72b"),
        ("GPT2", "gpt2"),
        ("phi4", "phi-4"),
    ],
)
def test_spellings_of_one_name(text, name):
    assert resolve(text).name == name


@pytest.mark.parametrize("text", ["llama-38b", "llama3-8", "llama3-80b", "llama", "llama318b", "", "  ", "gpt", "nobody/llama3-8b"])
def test_a_near_miss_is_a_miss(text):
    with pytest.raises(BadInput) as caught:
        resolve(text)
    assert caught.value.code == "unknown_model"


def test_a_miss_lists_the_nearest():
    with pytest.raises(BadInput) as caught:
        resolve("lama3-8b")
    assert "llama3-8b" in caught.value.hint


def test_no_two_presets_share_a_spelling():
    seen: dict[tuple[str, ...], str] = {}
    for name in NAMES:
        for spelling in {presets.key(name), *map(presets.key, presets.load(name).hub_ids)}:
            assert seen.setdefault(spelling, name) == name


def test_preset_wins_over_a_path_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    spec = resolve("gpt2")
    assert spec.source == "preset gpt2"
    assert "name_and_path" in [notice.code for notice in spec.notices]
    with pytest.raises(BadInput, match="neither a config"):
        resolve("./gpt2")


def test_an_existing_path_with_a_slash_wins_over_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "openai-community" / "gpt2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
    spec = resolve("openai-community/gpt2")
    assert spec.num_hidden_layers == 3
    assert "name_and_path" in [notice.code for notice in spec.notices]


def test_files_that_are_no_models(tmp_path):
    for name, content in (("x.gguf", b""), ("x.json", b"{}"), ("x.gguf", b"GGUF")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput):
            resolve(str(tmp_path / name))
    with pytest.raises(BadInput, match="does not exist"):
        resolve("./nowhere.gguf")
    (tmp_path / "x.bin").write_bytes(b"1")
    with pytest.raises(BadInput, match="neither"):
        resolve(str(tmp_path / "x.bin"))


def test_presets_inside_a_wheel_come_first(tmp_path, monkeypatch):
    """An installed wheel has them as kvcli/_presets; a checkout falls back to the folder beside the package."""
    package = tmp_path / "kvcli"
    (package / "_presets" / "models").mkdir(parents=True)
    (package / "model").mkdir()
    monkeypatch.setattr(presets, "__file__", str(package / "model" / "presets.py"))
    presets.folder.cache_clear()
    try:
        assert presets.folder() == package / "_presets"
        assert presets.names() == []
        (package / "_presets" / "models").rmdir()
        (package / "_presets").rmdir()
        presets.folder.cache_clear()
        assert presets.folder() == tmp_path / "presets"
        with pytest.raises(BadInput, match="presets folder"):
            presets.names()
    finally:
        monkeypatch.undo()
        presets.folder.cache_clear()
    assert "llama3-8b" in presets.names()


@pytest.mark.parametrize(("name", "windows"), [("mistral-7b-v0.1", {4096}), ("mistral-7b-v0.2", {None}), ("mistral-large-2411", {None})])
def test_windows_that_transcriptions_dropped(name, windows):
    """v0.2 and Large say null; a file without the key would take the class default of 4,096."""
    assert set(presets.load(name).spec().windows) == windows


def test_every_preset_of_a_class_with_a_window_by_default_says_what_its_window_is():
    for name in NAMES:
        config = presets.load(name).config
        if config["model_type"] in ("mistral", "starcoder2", "ministral"):
            assert "sliding_window" in config, name
