"""A folder holds files of others: what is none of kvcli's stops nothing there; what may start an engine, or is named, still does."""

import pytest

from kvcli.check.manifests.fileset import FileSet
from kvcli.check.manifests.read import read_launches
from kvcli.errors import BadInput

ENGINE = """\
apiVersion: v1
kind: Pod
metadata: {name: chat}
spec: {containers: [{name: c, image: "vllm/vllm-openai:v0.9.2", args: [--model=a/b]}]}
"""
FOREIGN = {
    "cloudformation": "Resources:\n  Bucket:\n    Type: AWS::S3::Bucket\n    Properties: {BucketName: !Ref Name}\n",
    "mkdocs": "site_name: docs of vLLM\nextra: !!python/name:material.emoji\n",
    "duplicate": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nmetadata: {name: b}\n",
    "chart": 'apiVersion: v1\nkind: Service\nmetadata:\n  name: {{ include "web.name" . }}\n',
    "image": 'apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, image: "{{ .Values.image }}"}]}\n',
    "broken": "a: [1,\n",
    "bytes": b"\xff\xfe\x00",
}
ENGINES = {
    # no manifest by their words, and what they start is said
    "part": 'command: [vllm, serve, "{{ .Values.model }}"]\n{{ end }}\n',
    "list": "{{ if .Values.on }}\ncommand:\n  - vllm\n  - serve\n",
    "sub": "Resources:\n  Host: {Properties: {UserData: !Sub 'docker run vllm/vllm-openai:v0.9.2 --model a/b'}}\n",
    "server": "Data: !Sub 'llama-server -m a.gguf'\n",
    "chart": 'apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ include "chat.name" . }}\nspec:\n  image: vllm/vllm-openai\n',
    "duplicate": ENGINE + "spec: {}\n",
    "compose": "services:\n  a:\n    image: ghcr.io/ggml-org/llama.cpp:server\n    image: x\n",
    "tag": "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nspec: !x {}\n",
}


def write(folder, name, text):
    (folder / "d").mkdir(exist_ok=True)
    (folder / "d" / "chat.yaml").write_text(ENGINE)
    path = folder / "d" / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_of_a_folder_is_passed_over(tmp_path, name):
    path, notes = write(tmp_path, "x.yaml", FOREIGN[name]), []
    (launch,) = read_launches([tmp_path / "d"], passed_over=notes)
    assert launch.name == "Pod/chat"
    assert len(notes) == 1
    assert notes[0].startswith(f"{path.as_posix()}:")
    with pytest.raises(BadInput):
        read_launches([path])


@pytest.mark.parametrize("name", ENGINES)
def test_a_file_that_may_start_an_engine_is_not(tmp_path, name):
    write(tmp_path, "x.yaml", ENGINES[name])
    with pytest.raises(BadInput) as caught:
        read_launches([tmp_path / "d"])
    assert "x.yaml:" in caught.value.message


def test_a_name_of_an_engine_across_two_chunks_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("kvcli.check.manifests.foreign._CHUNK", 8)
    write(tmp_path, "x.yaml", "apiVersion: v1\nx: [vllm\n")
    with pytest.raises(BadInput):
        read_launches([tmp_path / "d"])


def test_a_link_to_nothing(tmp_path):
    write(tmp_path, "x.yaml", "a: 1\n").with_name("y.yaml").symlink_to("nowhere.yaml")
    notes = []
    assert len(read_launches([tmp_path / "d"], passed_over=notes)) == 1
    assert "y.yaml" in notes[0]


def test_files_beside_the_manifests_too(tmp_path):
    write(tmp_path, "x.yaml", FOREIGN["mkdocs"])
    files = FileSet([tmp_path / "d" / "chat.yaml"], [tmp_path / "d"])
    assert len(files.documents) == 1
    assert len(files.passed_over) == 1


def test_tags_of_compose(tmp_path):
    text = (
        "services:\n  chat:\n    image: vllm/vllm-openai:v0.9.2\n    entrypoint: !reset null\n    environment: !override {A: b}\n"
        "    ports: !reset []\n    command: !override [--model=a/b, --max-model-len=8192]\n"
    )
    path = tmp_path / "compose.yaml"
    path.write_text(text)
    (launch,) = read_launches([path])
    assert [word.text for word in launch.words] == ["--model=a/b", "--max-model-len=8192"]
    assert launch.environment["A"].text == "b"
