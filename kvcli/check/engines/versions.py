"""Which version of an engine runs: from the tag of an image whose tags are the engine's, else the version kvcli assumes."""

from __future__ import annotations

import re

from kvcli.check.nodes import Word

#: the version whose defaults are taken where the image does not tell, those of kvcli's storage rules
ASSUMED = {"vllm": "0.33", "sglang": "0.5", "llama.cpp": "2026-11", "ollama": "2026-09", "tgi": "3.3", "trtllm": "1"}

#: last part of an image's name -> engine whose version its tags tell
_TAGGED = {
    **dict.fromkeys(("vllm-openai", "vllm", "vllm-openai-rocm", "vllm-tpu", "vllm-cpu-release-repo", "vllm-openai-cpu"), "vllm"),
    "sglang": "sglang",
    **dict.fromkeys(("llama.cpp", "llama-cpp"), "llama.cpp"),
    "ollama": "ollama",
    **dict.fromkeys(("text-generation-inference", "tgi"), "tgi"),
    **dict.fromkeys(("release", "tensorrt-llm"), "trtllm"),
}
#: owners whose tags are versions of something else, though their images are named after the engine
_OTHERS = ("lmcache", "nvidia", "opea", "llm-d", "kserve")
_NUMBERS = re.compile(r"(?:^|[^0-9.])v?(\d{1,9}\.\d{1,9}(?:\.\d+)?(?:\.post\d+|rc\d+)?)")
_BUILD = re.compile(r"(?:^|-)b(\d{3,6})(?:-|$)")
_NAMED = re.compile(r"vllm[_-]v?(\d+\.\d+(?:\.\d+)?)")
#: first numbers from which a "version" is a date (25.09) or a CUDA release
_MOST_MAJOR = {"vllm": 4, "sglang": 4, "ollama": 4, "tgi": 9, "trtllm": 9}


def image_parts(image: str) -> tuple[tuple[str, ...], str]:
    """(parts of the name, tag) of an image; the tag is empty where there is none, digests are left out."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        head, tag = name, ""
    return tuple(head.split("/")), tag


def version_of(image: Word | None, engine: str) -> Word | None:
    """The version an image's tag tells; None for `latest`, digests, and images whose tags are their owner's own."""
    if image is None:
        return None
    parts, tag = image_parts(image.text)
    if not tag or "$" in tag or "{" in tag or (any(part in _OTHERS for part in parts[:-1]) and not _official(parts)):
        return None
    if engine == "vllm" and (found := _NAMED.search(tag)):  # rocm/vllm:rocm6.3_..._vllm_0.8.5_...
        return Word(found[1], image.place)
    if _TAGGED.get(parts[-1]) != engine:
        return None
    if engine == "llama.cpp":
        build = _BUILD.search(tag)
        return Word(f"b{build[1]}", image.place) if build else None
    number = _NUMBERS.match(tag)
    if number is None or int(number[1].split(".")[0]) > _MOST_MAJOR[engine]:
        return None
    return Word(number[1], image.place)


def _official(parts: tuple[str, ...]) -> bool:
    return parts[-2:] == ("tensorrt-llm", "release")


_CPU = re.compile(r"(?:^|[-_.])cpu(?:[-_.]|$)")
_ACCELERATED = re.compile(r"cuda|rocm|hip|gpu|xpu|cu1\d\d|offload")
_CPU_IMAGES = ("vllm-openai-cpu", "vllm-cpu-release-repo", "vllm-arm64-cpu-release-repo", "vllm-cpu-env")
#: llama.cpp's tags of builds for accelerators; `server` and `server-b6000` are for processors
_LLAMA_ACCELERATED = re.compile(r"-(?:cuda|rocm|hip|musa|intel|sycl|vulkan|cann)")


def cpu_build(image: Word | None, engine: str, requested: bool) -> bool:
    """Whether the image holds a build that uses no accelerator: vLLM's and llama.cpp's own by their names, and any other that says so
    where no device is `requested`."""
    if image is None or not image.literal:
        return False
    parts, tag = image_parts(image.text)
    name = f"{parts[-1]}-{tag}"
    if not requested and cpu_tag(image, engine):
        return True
    if parts[-1] in _CPU_IMAGES or (not requested and _CPU.search(name) and not _ACCELERATED.search(name)):
        return True
    return cpu_tag(image, engine) and parts[-2:-1] in (("ggml-org",), ("ggerganov",))


def cpu_tag(image: Word | None, engine: str) -> bool:
    """Whether an image has the name and a tag of llama.cpp's own builds for processors, as a mirror of them has."""
    if image is None or not image.literal or engine != "llama.cpp":
        return False
    parts, tag = image_parts(image.text)
    own = parts[-1] in ("llama.cpp", "llama-cpp")
    return own and tag.startswith(("server", "full", "light")) and not _LLAMA_ACCELERATED.search(tag)


def knows(engine: str, version: Word | None) -> bool:
    """Whether the version is said, and is one whose options kvcli knows. Builds of llama.cpp have numbers, and their rule a date."""
    if version is None or engine not in ASSUMED:
        return False
    at = numbers(version.text)
    newest = numbers(ASSUMED[engine])
    return bool(at) and (engine == "llama.cpp" or at[: len(newest)] <= newest)


def numbers(version: str) -> tuple[int, ...]:
    """`0.11.0` -> (0, 11, 0), `b6123` -> (6123,), anything else ()."""
    return tuple(int(each) for each in re.findall(r"\d{1,9}", version.split("rc")[0].split(".post")[0]))


def short(version: str) -> str:
    """Its first two numbers, or a build as it is."""
    return version if version.startswith("b") or "-" in version else ".".join(version.split(".")[:2])
