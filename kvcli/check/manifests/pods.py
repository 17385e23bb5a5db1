"""Pod specs to launches: one a container and engine, with the command as the kubelet and the shell make it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvcli.check.launch import GpuRequest, Launch, Problem
from kvcli.check.manifests.environment import expand, mounted_files, read_environment
from kvcli.check.manifests.fileset import Document, FileSet, integer, joined, mappings, rendered
from kvcli.check.manifests.gpus import read_gpus
from kvcli.check.nodes import Mapping as Node
from kvcli.check.nodes import Place, Scalar, Sequence, Word
from kvcli.check.shell.container_run import hides_some, visible
from kvcli.check.shell.program import Program, find_programs
from kvcli.check.shell.script import split_words


class Around(NamedTuple):
    """What the workload says beside its pod. `known`: variables that a controller adds. `arguments`: words that it appends."""

    name: str
    document: Document
    files: FileSet
    replicas: int = 1
    hosts: int = 1
    known: Mapping[str, Word] = {}
    model: Word | None = None
    engine: Word | None = None
    annotations: Node | None = None
    problems: tuple[Problem, ...] = ()


def launches_of_pod(pod: Node, around: Around) -> list[Launch]:
    """The launches of all containers: the main ones, then init containers and native sidecars."""
    result: list[Launch] = []
    for container in mappings(pod.get("containers")):
        result += launches_of_container(container, pod, around, "main")
    for container in mappings(pod.get("initContainers")):
        policy = container.text("restartPolicy")
        role = "sidecar" if policy is not None and policy.text == "Always" else "init"
        result += launches_of_container(container, pod, around, role)
    return result


def launches_of_container(container: Node, pod: Node, around: Around, role: str = "main") -> list[Launch]:
    name = container.text("name") or Word("", container.place)
    environment = read_environment(container, around.document, around.files, dict(around.known))
    problems = [*around.problems, *environment.problems]
    mounted, found = mounted_files(container, pod, around.document, around.files)
    problems += found
    gpus, found = read_gpus(container, pod, around.document, around.files, around.annotations)
    problems += found
    if gpus is not None and around.hosts != 1:
        gpus = gpus._replace(hosts=around.hosts)
    words: list[Word] = []
    for key in ("command", "args"):
        words += [expand(word, environment.variables, environment.open) for word in arguments(container.get(key), key, problems)]
    image = container.text("image")

    def find(path: str) -> Word | None:
        lines = mounted.get(path)
        return joined(lines) if lines is not None else None

    programs, found_problems = find_programs(words, environment.variables, find)
    launch = Launch(
        name=around.name,
        container=name.text,
        place=name.place,
        image=rendered(image) if image is not None else None,
        environment=environment.variables,
        files=mounted,
        model=around.model,
        engine=around.engine,
        gpus=gpus,
        replicas=around.replicas,
        problems=(*problems, *found_problems),
        role=role,
    )
    return with_programs(launch, programs)


def with_programs(launch: Launch, programs: Iterable[Program]) -> list[Launch]:
    """`launch` once for each program, the second and later ones with `#2`, ... behind the container's name."""
    programs = tuple(programs)
    certain = sum(not program.guarded for program in programs)
    result: list[Launch] = []
    for index, program in enumerate(programs, start=1):
        label = launch.container if index == 1 else f"{launch.container}#{index}"
        run = program.run
        several = any(each.background for each in programs[:-1]) and not hides_some(program.environment)
        place = launch.place if index == 1 else program.words[0].place if program.words else launch.place
        problems = launch.problems
        if program.guarded and certain and program.words:
            problems = (*problems, Problem("conditional_beside", "it starts only under a condition of the script", place))
        result.append(
            launch._replace(
                container=label,
                place=place,
                image=launch.image or (run.image if run else None),
                words=program.words,
                environment=program.environment,
                gpus=_narrowed(launch.gpus, program.gpus or _named(program), several, hides_some(program.environment)),
                problems=problems,
                background=program.background,
            )
        )
    return result or [launch]


def _named(program: Program) -> GpuRequest | None:
    """Devices that variables name for a program that is not known by its words, as an image's own."""
    found = visible(program.environment)
    return found if found is not None and found.amount else None


def _narrowed(asked: GpuRequest | None, visible: GpuRequest | None, several: bool, hidden: bool) -> GpuRequest | None:
    """The container's devices, of which a program may see fewer; several programs that run at once and see them all share them."""
    if asked is None:
        return visible
    if hidden:
        return asked._replace(fewer=True)
    if visible is None or visible.amount is None:
        return asked._replace(shared=True) if several else asked
    if asked.amount is not None and visible.amount > asked.amount:
        return asked
    return asked._replace(amount=visible.amount, place=visible.place, said=visible.said)


def arguments(node: object, key: str, problems: list[Problem]) -> list[Word]:
    """The words of `command` or `args`. What Kubernetes would refuse (numbers, a text where a list belongs) is read and reported."""
    if isinstance(node, Scalar):
        problems.append(Problem("not_a_list", f"{key} is a text, and Kubernetes takes a list of strings", node.place))
        return list(split_words(rendered(node.word)))
    words: list[Word] = []
    for item in node.items if isinstance(node, Sequence) else ():
        if not isinstance(item, Scalar):
            problems.append(Problem("not_a_string", f"an entry of {key} is no string, which Kubernetes refuses", item.place))
            continue
        if item.type != "str":
            message = f"an entry of {key} is no string ({item.text or item.type}), which Kubernetes refuses: quote it"
            problems.append(Problem("not_a_string", message, item.place))
        words.append(rendered(item.word))
    return words


def replicas_of(node: Node, *path: str) -> int:
    """The number of replicas where it is written, else 1."""
    amount = integer(node.at(*path))
    return 1 if amount is None else amount


def place_of(document: Document) -> Place:
    name = document.node.text("metadata", "name")
    return name.place if name else document.node.place
