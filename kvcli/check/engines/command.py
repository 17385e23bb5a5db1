"""Which engine a container starts: from the program of its command, else from its image, else from what the manifest calls it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kvcli.check.engines import vllm_options
from kvcli.check.engines.versions import image_parts
from kvcli.check.launch import Launch
from kvcli.check.nodes import Place, Word


class Started(NamedTuple):
    """`words`: behind the program and its subcommand. `build`: TensorRT-LLM's builder, not its server."""

    engine: str
    words: tuple[Word, ...]
    place: Place
    build: bool = False


#: modules of `python -m` that serve; those of an engine's name that do not are None
_MODULES: dict[str, str | None] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "dynamo.vllm": "vllm",
    "huggingfaceserver": "vllm",
    "sglang.launch_server": "sglang",
    "sglang_router.launch_server": "sglang",
    "dynamo.sglang": "sglang",
    "dynamo.trtllm": "trtllm",
    "lmdeploy.serve.openai.api_server": "lmdeploy",
    "llama_cpp.server": "llama-cpp-python",
    "mlc_llm.serve.server": "mlc-llm",
    "aphrodite.endpoints.openai.api_server": "aphrodite",
    "tensorrt_llm.commands.serve": "trtllm",
}
#: programs with a subcommand that serves -> engine; any other subcommand is no server
_SUBCOMMANDS = {
    ("vllm", "serve"): "vllm",
    ("sglang", "serve"): "sglang",
    ("ollama", "serve"): "ollama",
    ("ollama", "start"): "ollama",
    ("ollama", "run"): "ollama",
    ("lmdeploy", "serve"): "lmdeploy",
    ("mlc_llm", "serve"): "mlc-llm",
    ("aphrodite", "run"): "aphrodite",
}
_PROGRAMS = {
    **dict.fromkeys(("llama-server", "llama-server.exe"), "llama.cpp"),
    "text-generation-launcher": "tgi",
    "trtllm-serve": "trtllm",
    **{
        name: name
        for name in ("tritonserver", "local-ai", "koboldcpp", "llamafile", "text-embeddings-router", "infinity_emb", "mlx_lm.server")
    },
}
#: images by the last part of their names -> engine whose server they start of their own accord
_IMAGES = {
    **dict.fromkeys(("vllm-openai", "vllm-openai-rocm", "vllm-openai-cpu", "huggingfaceserver"), "vllm"),
    **dict.fromkeys(("vllm-cpu-release-repo", "vllm-arm64-cpu-release-repo"), "vllm"),
    "text-generation-inference": "tgi",
    "ollama": "ollama",
    **dict.fromkeys(("text-embeddings-inference", "local-ai", "lmdeploy", "tritonserver", "koboldcpp"), ""),
}
#: what a manifest may call an engine (KServe's modelFormat and runtimes)
_CALLED = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llama.cpp", "llamacpp": "llama.cpp", "tgi": "tgi", "ollama": "ollama"}
_CALLED |= {"trtllm": "trtllm", "tensorrt-llm": "trtllm", "huggingface": "vllm"}
#: words before a program that change nothing
_BEFORE = re.compile(r"(?:exec|nohup|time|sudo|env|trtllm-llmapi-launch|tini|dumb-init|--|[A-Za-z_][A-Za-z0-9_]*=.*)")
#: programs that start another one after options of their own -> those of their options that take a value
_LAUNCHERS = {
    "mpirun": {"-n", "-np", "--np", "-H", "--host", "--hostfile", "-x", "--map-by", "--bind-to"},
    "numactl": {"-N", "-m", "-C", "--cpunodebind", "--membind"},
    "opentelemetry-instrument": set[str](),
    "nsys": {"-o", "-t"},
    "uv": set[str](),
    "stdbuf": set[str](),
    "taskset": {"-c"},
}
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")


def engine_of(launch: Launch) -> Started | None:
    """None: no engine kvcli knows by name."""
    words = _program(launch.words)
    place = words[0].place if words else launch.image.place if launch.image else launch.place
    if words and (found := _by_program(words)) is not None:
        return found[0]
    engine, server = _by_image(launch)
    if engine and (not words or words[0].text.startswith("-") or _arguments(engine, words)):
        if engine == "llama.cpp" and not server:
            return None
        return Started(engine, _served(engine, words), place)
    if launch.engine is not None and (not words or words[0].text.startswith("-")):
        called = launch.engine.text.strip().lower()
        name = _CALLED.get(called, called)
        return Started(name, tuple(words), place if words else launch.engine.place)
    return None


def _program(words: Sequence[Word]) -> tuple[Word, ...]:
    """The command from its program on: launchers, variables and wrappers before it left out."""
    left = list(words)
    while left:
        name = _base(left[0].text)
        if _BEFORE.fullmatch(left[0].text) or name in ("tini", "dumb-init"):
            left.pop(0)
        elif name in _LAUNCHERS:
            takes = _LAUNCHERS[name]
            left.pop(0)
            while left and (left[0].text.startswith("-") or left[0].text in ("run", "profile")):
                option = left.pop(0)
                if option.text in takes and left:
                    left.pop(0)
            if name == "taskset" and left and re.fullmatch(r"(?:0x)?[0-9a-fA-F,-]+", left[0].text):
                left.pop(0)
        else:
            break
    return tuple(left)


def _base(text: str) -> str:
    return text.replace("\\", "/").rpartition("/")[2]


def _by_program(words: tuple[Word, ...]) -> tuple[Started | None] | None:
    """(what it starts,) where the program is known, None where it is not."""
    name, rest = _base(words[0].text), words[1:]
    if _PYTHON.fullmatch(name):
        return _by_module(words)
    if name in ("vllm", "sglang", "ollama", "lmdeploy", "mlc_llm", "aphrodite"):
        engine = _SUBCOMMANDS.get((name, rest[0].text)) if rest else None
        if engine is None:
            return (None,)
        return (Started(engine, rest if engine == "ollama" else rest[1:], words[0].place),)
    if name == "trtllm-build":
        return (Started("trtllm", rest, words[0].place, build=True),)
    if name in _PROGRAMS:
        return (Started(_PROGRAMS[name], rest, words[0].place),)
    if name == "server" and any(word.text.endswith(".gguf") for word in rest):
        return (Started("llama.cpp", rest, words[0].place),)
    return None


#: scripts of vLLM and of Kaito that start it
_SCRIPTS = ("vllm/entrypoints/openai/api_server.py", "vllm/inference_api.py")


def _by_module(words: tuple[Word, ...]) -> tuple[Started | None]:
    """`python -m module`, options of Python before it; a script by its name."""
    at = 1
    while at < len(words) and words[at].text.startswith("-") and words[at].text != "-m":
        at += 2 if words[at].text in ("-X", "-W") else 1
    if at + 1 < len(words) and words[at].text == "-m":
        module, rest = words[at + 1].text, words[at + 2 :]
        engine = _MODULES.get(module)
        if module == "vllm.entrypoints.cli.main":
            return (Started("vllm", rest[1:], words[0].place) if rest and rest[0].text == "serve" else None,)
        return (Started(engine, rest, words[0].place) if engine else None,)
    if at < len(words) and words[at].text.replace("\\", "/").endswith(_SCRIPTS):
        return (Started("vllm", words[at + 1 :], words[0].place),)
    return (None,)


def _by_image(launch: Launch) -> tuple[str, bool]:
    """(engine or '', whether the image starts its server by itself)."""
    if launch.image is None:
        return "", False
    parts, tag = image_parts(launch.image.text)
    name = parts[-1]
    if name in ("llama.cpp", "llama-cpp"):
        return "llama.cpp", tag.startswith("server")
    if "nim" in parts[:-1] and "nvcr.io" in parts:
        return "nim", True
    if name in _IMAGES:
        return _IMAGES[name] or name, True
    return "", False


def _arguments(engine: str, words: tuple[Word, ...]) -> bool:
    """Whether the words follow an entry point: a model or a subcommand, then options; not a program of their own."""
    first, behind = words[0].text, words[1:]
    if engine == "ollama":
        return first in ("serve", "start", "run")
    if engine == "vllm":
        return first == "serve" or _HUB_ID.fullmatch(first) is not None or _has_option(behind)
    return False


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def _has_option(words: Sequence[Word]) -> bool:
    """Whether an option of vLLM is among them: then the word before them is a folder of a model, not a program."""
    known = vllm_options.options()
    return any(word.text.startswith("--") and word.text.partition("=")[0].replace("_", "-") in known for word in words)


def _served(engine: str, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """What the entry point hands on: vLLM's is `vllm serve` in newer images, so `serve` may stand there again."""
    return words[1:] if engine == "vllm" and words and words[0].text == "serve" else words
