import pytest

from kvcli.check.engines.versions import ASSUMED, numbers, version_of
from tests.check.engines.helpers import read, word


@pytest.mark.parametrize(
    ("image", "engine", "version"),
    [
        ("vllm/vllm-openai:v0.11.0", "vllm", "0.11.0"),
        ("vllm/vllm-openai:v0.8.5.post1", "vllm", "0.8.5.post1"),
        ("docker.io/vllm/vllm-openai:v0.11.0@sha256:0123", "vllm", "0.11.0"),
        ("registry.example:5000/mirror/vllm-openai:v0.10.2-x86_64", "vllm", "0.10.2"),
        ("rocm/vllm:rocm6.3.1_mi300_ubuntu22.04_py3.12_vllm_0.8.5", "vllm", "0.8.5"),
        ("lmsysorg/sglang:v0.5.3-cu124", "sglang", "0.5.3"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b6123", "llama.cpp", "b6123"),
        ("ghcr.io/huggingface/text-generation-inference:3.0.1", "tgi", "3.0.1"),
        ("ghcr.io/huggingface/text-generation-inference:2.4.1-rocm", "tgi", "2.4.1"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc1", "trtllm", "1.2.0rc1"),
        ("ollama/ollama:0.12.3", "ollama", "0.12.3"),
    ],
)
def test_tags_that_tell(image, engine, version):
    assert version_of(word(image, 7), engine).text == version
    assert version_of(word(image, 7), engine).place.line == 7


@pytest.mark.parametrize(
    ("image", "engine"),
    [
        ("vllm/vllm-openai:latest", "vllm"),
        ("vllm/vllm-openai", "vllm"),
        ("vllm/vllm-openai@sha256:0123", "vllm"),
        ("registry.example:5000/vllm-openai", "vllm"),
        ("vllm/vllm-openai:nightly-3f8a2c", "vllm"),
        ("lmcache/vllm-openai:v0.3.7", "vllm"),  # LMCache's version
        ("ghcr.io/llm-d/llm-d:v0.2.0", "vllm"),
        ("acme/chat:v1.2.3", "vllm"),
        ("nvcr.io/nvidia/vllm:25.09-py3", "vllm"),
        ("vllm/vllm-openai:${TAG}", "vllm"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda", "llama.cpp"),
        ("ghcr.io/huggingface/text-generation-inference:sha-48067e4", "tgi"),
    ],
)
def test_tags_that_do_not(image, engine):
    assert version_of(word(image), engine) is None


def test_a_deployment_names_the_version_its_defaults_are_of():
    known = read("vllm serve a/b", image="vllm/vllm-openai:v0.11.0")
    assert (known.version.text, known.assumed_version) == ("0.11.0", "")
    assert known.settings["memory_fraction"].value == 0.9
    assert known.settings["memory_fraction"].said == "vllm 0.11 default"
    assert known.settings["memory_fraction"].place is None
    unknown = read("vllm serve a/b", image="vllm/vllm-openai:latest")
    assert (unknown.version, unknown.assumed_version) == (None, ASSUMED["vllm"])
    assert unknown.settings["memory_fraction"].value == 0.92


def test_numbers():
    assert numbers("0.8.5.post1") == (0, 8, 5)
    assert numbers("b6123") == (6123,)
    assert numbers("1.2.0rc1") == (1, 2, 0)
