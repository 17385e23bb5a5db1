"""From the words of a container or a script to the program that starts an engine: shells, wrappers and `docker run` are taken off."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvcli.check.launch import GpuRequest, Problem
from kvcli.check.nodes import Word
from kvcli.check.shell.container_run import ContainerRun, read_container_run, visible
from kvcli.check.shell.script import Command, Finder, run_script

_SHELLS = frozenset(["sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"])
#: programs that serve a model under their own name -> the sub-commands that do (None: all)
_PROGRAMS: dict[str, frozenset[str] | None] = {
    "vllm": frozenset(["serve", "run-batch"]),
    "sglang": frozenset(["serve", "launch_server", "launch-server"]),
    "lmdeploy": frozenset(["serve"]),
    "ollama": frozenset(["serve", "run"]),
    "aphrodite": frozenset(["run", "serve"]),
    "mlc_llm": frozenset(["serve"]),
    "text-generation-launcher": None,
    "text-generation-server": None,
    "llama-server": None,
    "llama-box": None,
    "llamafile": None,
    "koboldcpp": None,
    "trtllm-serve": None,
    "tritonserver": None,
    "mistralrs-server": None,
    "huggingfaceserver": None,
    "mlx_lm.server": None,
}
_MODULES = re.compile(
    r"(vllm|sglang|aphrodite|lmdeploy|tensorrt_llm|llama_cpp|mlc_llm|dynamo|huggingfaceserver|text_generation_server|mlx_lm)(?!.*bench)(\.|$)"
)
_SCRIPTS = re.compile(r"(^|/)(vllm/.*|sglang/.*|.*)(api_server|launch_server)\.py$")
_PYTHON = re.compile(r"(python|pypy)[0-9.]*$")
#: programs that run another one given as their last words
_WRAPPER_NAMES = """
sudo env nohup nice ionice time timeout stdbuf numactl taskset setsid chrt uv uvx pipx poetry pdm hatch conda mamba micromamba pixi tini
dumb-init catatonit gosu su-exec opentelemetry-instrument ddtrace-run nsys ncu rocprof rocprofv3 srun mpirun mpiexec torchrun accelerate
deepspeed trtllm-llmapi-launch command exec ray screen tmux flock doppler infisical vault-env unbuffer
"""
_WRAPPERS = frozenset(_WRAPPER_NAMES.split())
_CONTAINERS = frozenset(["docker", "podman", "nerdctl"])
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
MAX_LEVEL = 8


class Program(NamedTuple):
    """A command that was found. `known`: it is an engine by its name. `run`: the `docker run` around it. `background`: the
    script goes on beside it."""

    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    known: bool = False
    guarded: bool = False
    fallback: bool = False
    run: ContainerRun | None = None
    gpus: GpuRequest | None = None
    background: bool = False


def find_programs(
    words: Sequence[Word], environment: Mapping[str, Word], find: Finder = lambda path: None
) -> tuple[tuple[Program, ...], tuple[Problem, ...]]:
    """The engines that `words` start, in order; where none is known by name, the last command. `find` gives scripts by path."""
    problems: list[Problem] = []
    found = _unwrap(tuple(words), environment, find, problems, 0)
    return _chosen([program for program in found if program.words], problems)


def find_in_script(
    script: Word, environment: Mapping[str, Word], params: Sequence[Word] = (), find: Finder = lambda path: None
) -> tuple[tuple[Program, ...], tuple[Problem, ...]]:
    """As `find_programs`, of the text of a script."""
    problems: list[Problem] = []
    found = _script(script, environment, params, find, problems, 0)
    return _chosen(found, problems)


def _chosen(found: list[Program], problems: list[Problem]) -> tuple[tuple[Program, ...], tuple[Problem, ...]]:
    programs = _choose(found, problems)
    if any(program.known for program in programs):
        # a script that is not there and only prepares does not matter once the engine's own command is known
        ray = next((program for program in found if _joins_ray(program.words)), None)
        if ray is not None:
            message = "Ray is started before it, so ranks may run on other nodes"
            problems.append(Problem("ray_cluster", message, ray.words[0].place, matters=False))
        other = "other_script_not_found"
        problems = [each._replace(code=other, matters=False) if each.code == "script_not_found" else each for each in problems]
    return programs, tuple(dict.fromkeys(problems))


def _joins_ray(words: tuple[Word, ...]) -> bool:
    """`ray start`, or vLLM's script that does it and waits for the other nodes."""
    texts = [word.text for word in words]
    return (posixpath.basename(texts[0] if texts else "") == "ray" and "start" in texts) or any(
        text.startswith(("--ray_cluster_size", "--ray-cluster-size")) for text in texts
    )


def _choose(found: list[Program], problems: list[Problem]) -> tuple[Program, ...]:
    engines = [program for program in found if program.known]
    # `vllm ... || vllm ...`: the first may fail as well
    for index in range(1, len(engines)):
        if engines[index].fallback:
            engines[index - 1] = engines[index - 1]._replace(guarded=True)
    certain = [program for program in engines if not program.guarded]
    if certain:
        said = {tuple(word.text for word in program.words) for program in certain}
        # another one that may start as well must not go unsaid
        return tuple(each for each in engines if not each.guarded or tuple(word.text for word in each.words) not in said)
    if engines:
        several = len({tuple(word.text for word in program.words) for program in engines}) > 1
        message = "the engine starts only under a condition of the script, and is taken to start"
        if several:
            message = f"the script starts one of {len(engines)} commands, and which one is only known where it runs: each is read"
        code = "conditional_command" if several else "conditional_start"
        problems.append(Problem(code, message, engines[0].words[0].place, matters=several))
        return tuple(engines)
    certain = [program for program in found if not program.guarded] or found
    return tuple(certain[-1:])


def _unwrap(words: tuple[Word, ...], environment: Mapping[str, Word], find: Finder, problems: list[Problem], level: int) -> list[Program]:
    if not words or level > MAX_LEVEL:
        return [Program(words, environment)]
    name = posixpath.basename(words[0].text)
    engine = _engine_at(words, 0)
    if engine:
        return [Program(engine, environment, known=True, gpus=visible(environment))]
    script = find(words[0].text)
    if script is not None:
        return _script(script, environment, words[1:], find, problems, level)
    if name in _SHELLS:
        return _shell(words, environment, find, problems, level)
    sub_commands = [word.text for word in words[1:3]]
    if name in _CONTAINERS and (sub_commands[:1] == ["run"] or sub_commands == ["container", "run"]):
        start = 2 if words[1].text == "run" else 3
        run = read_container_run(words[start:])
        if run.image is not None and not run.words:  # the image's own command, told by variables
            return [Program((), run.environment, known=True, run=run, gpus=run.gpus)]
        inner = _unwrap(run.words, run.environment, lambda path: None, problems, level + 1)
        return [program._replace(run=run, gpus=run.gpus, known=program.known or run.image is not None) for program in inner]
    if name in _WRAPPERS:
        own = dict(environment)
        for index in range(1, len(words)):
            word = words[index]
            if _ASSIGNMENT.match(word.text):
                key, _, value = word.text.partition("=")
                own[key] = word._replace(text=value, spots=())
            base = posixpath.basename(word.text)
            starts_shell = base in _SHELLS and index + 1 < len(words)
            if _engine_at(words, index) or starts_shell or base in _CONTAINERS or find(word.text) is not None:
                return _unwrap(words[index:], own, find, problems, level + 1)
    return [Program(words, environment)]


def _shell(words: tuple[Word, ...], environment: Mapping[str, Word], find: Finder, problems: list[Problem], level: int) -> list[Program]:
    index, command = 1, False
    while index < len(words) and words[index].text[:1] in ("-", "+") and len(words[index].text) > 1:
        option = words[index].text
        index += 1
        if option == "--":
            break
        if not option.startswith("--"):
            command = command or "c" in option
            if option.endswith("o"):
                index += 1
    if index >= len(words):
        return [Program(words, environment)]
    if command:
        zero = words[index + 1] if index + 1 < len(words) else None
        return _script(words[index], environment, words[index + 2 :], find, problems, level, zero)
    if posixpath.basename(words[0].text) == "busybox":
        return _unwrap(words[1:], environment, find, problems, level + 1)
    script = find(words[index].text)
    if script is None:
        message = f"the script {words[index].text} is not among the files, so what it starts is not known"
        problems.append(Problem("script_not_found", message, words[index].place))
        return [Program(words, environment)]
    return _script(script, environment, words[index + 1 :], find, problems, level)


def _script(
    script: Word,
    environment: Mapping[str, Word],
    params: Sequence[Word],
    find: Finder,
    problems: list[Problem],
    level: int,
    zero: Word | None = None,
) -> list[Program]:
    if level > MAX_LEVEL:
        problems.append(Problem("script_not_followed", "scripts call each other too deeply to follow", script.place))
        return []
    if not script.literal:
        problems.append(Problem("script_not_literal", "part of this script is only known where it runs", script.place, matters=False))
    commands, found = run_script(script, environment, params, find, zero)
    problems.extend(found)
    return [program for command in commands for program in _command(command, find, problems, level)]


def _command(command: Command, find: Finder, problems: list[Problem], level: int) -> list[Program]:
    programs = _unwrap(command.words, command.environment, find, problems, level + 1)
    return [
        program._replace(
            guarded=program.guarded or command.guarded,
            fallback=program.fallback or command.fallback,
            background=command.background,
        )
        for program in programs
    ]


def _engine_at(words: Sequence[Word], index: int) -> tuple[Word, ...]:
    """The engine's words where one starts at `index`, the interpreter's own options left out; else ()."""
    rest = tuple(words[index:])
    name = posixpath.basename(rest[0].text)
    following = rest[1].text if len(rest) > 1 else ""
    if name in _PROGRAMS:
        allowed = _PROGRAMS[name]
        return rest if allowed is None or following in allowed else ()
    if rest[0].text == "-m" and len(rest) > 1 and _MODULES.match(following):
        return (Word("python", rest[0].place), *rest)
    if not _PYTHON.match(name):
        return ()
    for position in range(1, len(rest)):
        text = rest[position].text
        if text == "-m":
            module = rest[position + 1].text if position + 1 < len(rest) else ""
            return (rest[0], *rest[position:]) if _MODULES.match(module) else ()
        if text in ("-W", "-X"):
            continue
        if not text.startswith("-") and rest[position - 1].text not in ("-W", "-X"):
            return (rest[0], *rest[position:]) if _SCRIPTS.search(text) else ()
    return ()
