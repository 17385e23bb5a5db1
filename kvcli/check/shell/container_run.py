"""`docker run [options] IMAGE [command]`: image, environment, GPUs and the command. Podman and nerdctl take the same options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvcli.check.launch import GpuRequest
from kvcli.check.nodes import Word

#: options without a value; every other one takes the next word, unless `=` gives it
_FLAG_NAMES = """
--rm --detach --interactive --tty --init --privileged --read-only --publish-all --no-healthcheck --oom-kill-disable --quiet --sig-proxy
--disable-content-trust --use-api-socket --replace --no-hosts --no-hostname --rmi --env-host --http-proxy --passwd --tls-verify --help
"""
_FLAGS = frozenset(_FLAG_NAMES.split())
_SHORT_FLAGS = frozenset("ditPq")
#: device variable -> the resource it speaks of
_VISIBLE = {
    "CUDA_VISIBLE_DEVICES": "nvidia.com/gpu",
    "NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu",
    "HIP_VISIBLE_DEVICES": "amd.com/gpu",
    "ROCR_VISIBLE_DEVICES": "amd.com/gpu",
    "ZE_AFFINITY_MASK": "gpu.intel.com/xe",
    "ASCEND_RT_VISIBLE_DEVICES": "huawei.com/Ascend910",
}


class ContainerRun(NamedTuple):
    """`words`: --entrypoint and what follows the image. `volumes` and `env_files` as written."""

    image: Word | None
    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    gpus: GpuRequest | None
    volumes: tuple[Word, ...]
    env_files: tuple[Word, ...]


def read_container_run(words: Sequence[Word]) -> ContainerRun:
    """`words` are those after `docker run`. An option that is not known is taken to have a value."""
    environment: dict[str, Word] = {}
    entrypoint: list[Word] = []
    volumes: list[Word] = []
    env_files: list[Word] = []
    gpus: GpuRequest | None = None
    index = 0
    while index < len(words) and words[index].text.startswith("-") and words[index].text != "-":
        option = words[index]
        index += 1
        if option.text == "--":
            break
        name, equals, value = option.text.partition("=")
        if name in _FLAGS or (name[1:2] != "-" and set(name[1:]) <= _SHORT_FLAGS):
            continue
        if name[1:2] != "-" and len(name) > 2 and not set(name[1:-1]) <= _SHORT_FLAGS:
            name, given = name[:2], option._replace(text=option.text[2:], spots=())  # -eA=b, -v/a:/b
        elif equals and name[1:2] == "-":
            given = option._replace(text=value, spots=())
        elif index < len(words):
            given = words[index]
            index += 1
        else:
            break
        if name in ("--env",) or (name[1:2] != "-" and name[-1] == "e"):
            key, has_value, text = given.text.partition("=")
            environment[key] = given._replace(text=text, spots=()) if has_value else given._replace(text="$" + key, literal=False)
        elif name == "--env-file":
            env_files.append(given)
        elif name == "--entrypoint":
            entrypoint = [given] if given.text else []
        elif name in ("--volume", "--mount") or (name[1:2] != "-" and name[-1] == "v"):
            volumes.append(given)
        elif name == "--gpus":
            gpus = read_gpus(given)
        elif name == "--device" and gpus is None:
            gpus = _device(given)
    image = words[index] if index < len(words) else None
    command = (*entrypoint, *words[index + 1 :])
    return ContainerRun(image, command, environment, gpus or visible(environment), tuple(volumes), tuple(env_files))


def read_gpus(word: Word) -> GpuRequest:
    """The value of `--gpus`: `all`, a number, or key=value pairs with `device=` or `count=`, which may be quoted once more."""
    text = word.text.strip().strip("\"'")
    if not word.literal or text == "all":
        return GpuRequest(None, word.place, "nvidia.com/gpu")
    if text.isdigit():
        return GpuRequest(int(text[:9]), word.place, "nvidia.com/gpu", said="--gpus {}")
    key = ""
    devices: list[str] = []
    for piece in text.split(","):
        if "=" in piece:
            key, _, piece = piece.partition("=")
        if key.strip("\"' ") == "count":
            counted = int(piece[:9]) if piece.isdigit() else None
            return GpuRequest(counted, word.place, "nvidia.com/gpu", said="--gpus {}")
        if key.strip("\"' ") == "device":
            devices.append(piece.strip("\"' "))
    amount = len(devices) if devices and "all" not in devices else None
    return GpuRequest(amount, word.place, "nvidia.com/gpu", said="--gpus with {} devices")


def visible(environment: Mapping[str, Word]) -> GpuRequest | None:
    """What the variables that hide devices from a program leave visible; None where none of them is set."""
    for name, resource in _VISIBLE.items():
        word = environment.get(name)
        if word is None:
            continue
        devices = [piece for piece in word.text.split(",") if piece.strip()]
        if not word.literal or word.text.strip() == "all":
            return GpuRequest(None, word.place, resource)
        amount = 0 if word.text.strip() in ("none", "void", "-1") else len(devices)
        return GpuRequest(amount, word.place, resource, said=f"{name} with {{}} devices")
    return None


def hides_some(environment: Mapping[str, Word]) -> bool:
    """Whether a variable hides devices whose numbers are only known where it runs."""
    return any(name in environment and not environment[name].literal for name in _VISIBLE)


def _device(word: Word) -> GpuRequest | None:
    text = word.text
    if text.startswith(("/dev/kfd", "/dev/dri")):
        return GpuRequest(None, word.place, "amd.com/gpu" if "kfd" in text else None)
    name, _, chosen = text.partition("=")
    if name in ("nvidia.com/gpu", "amd.com/gpu"):
        return GpuRequest(None if chosen == "all" else 1, word.place, name)
    return None
