"""KServe's LLMInferenceService: vLLM started by the controller, or a container with a command of its own."""

from __future__ import annotations

from kvcli.check.launch import OPEN, Launch, Problem
from kvcli.check.manifests.fileset import Document, FileSet, integer, mappings
from kvcli.check.manifests.kserve import is_named
from kvcli.check.manifests.pods import Around, launches_of_pod, replicas_of
from kvcli.check.manifests.rewrite import overlay
from kvcli.check.nodes import Mapping, Scalar, Sequence, Word
from kvcli.check.shell.script import split_words

_PARALLELISM = (
    ("tensor", "--tensor-parallel-size"),
    ("pipeline", "--pipeline-parallel-size"),
    ("data", "--data-parallel-size"),
    ("dataLocal", "--data-parallel-size-local"),
)


def read_llm_inference_service(document: Document, files: FileSet) -> list[Launch]:
    """The decode (or only) part, and the prefill part where they are apart. Without a command the controller starts vLLM."""
    spec = document.node.get("spec")
    if not isinstance(spec, Mapping):
        return []
    problems: list[Problem] = []
    for reference in mappings(spec.get("baseRefs")):
        name = reference.text("name")
        if name is not None:
            message = f"the base configuration {name.text} is not read, so what it sets is not known"
            problems.append(Problem("not_in_files", message, name.place))
    model = spec.text("model", "uri")
    annotations = document.node.at("metadata", "annotations")
    result: list[Launch] = []
    for label, part in (("", spec), ("prefill", spec.get("prefill"))):
        if not isinstance(part, Mapping):
            continue
        around = Around(
            f"{document.kind}/{document.name}",
            document,
            files,
            replicas_of(part, "replicas"),
            hosts=_hosts(part),
            model=model,
            engine=None,
            annotations=annotations if isinstance(annotations, Mapping) else None,
            problems=tuple(problems),
        )
        pod = part.get("template")
        if not isinstance(pod, Mapping):
            pod = Mapping((), part.place)
        if not mappings(pod.get("containers")):
            main = Mapping(((Scalar("name", part.place), Scalar("main", part.place)),), part.place)
            pod = overlay(pod, Mapping(((Scalar("containers", part.place), Sequence((main,), part.place)),), part.place))
        for launch in launches_of_pod(pod, around):
            if launch.container == "main":
                launch = _default_command(launch, part, pod)
            if label:
                launch = launch._replace(container=f"{label}/{launch.container}")
            result.append(launch)
    return result


def _hosts(part: Mapping) -> int:
    data, local = integer(part.at("parallelism", "data")), integer(part.at("parallelism", "dataLocal"))
    if part.get("worker") is None:
        return 1
    if data and local:
        return max(1, -(-data // local))
    return integer(part.at("parallelism", "pipeline")) or 1


def _default_command(launch: Launch, part: Mapping, pod: Mapping) -> Launch:
    """`vllm serve MODEL` with the parallelism of the object, where the container has no command of its own."""
    container = next((each for each in mappings(pod.get("containers")) if is_named(each, "main")), None)
    if container is not None and container.get("command") is not None:
        return launch
    place = launch.model.place if launch.model else launch.place
    words = [Word("vllm", place), Word("serve", place)]
    if launch.model is not None:
        words.append(launch.model._replace(text=launch.model.text.removeprefix("hf://")))
    for key, flag in _PARALLELISM:
        size = part.text("parallelism", key)
        if size is not None:
            words.append(Word(f"{flag}={size.text}", size.place))
    expert = part.text("parallelism", "expert")
    if expert is not None and expert.text.lower() == "true":
        words.append(Word("--enable-expert-parallel", expert.place))
    extra = launch.environment.get("VLLM_ADDITIONAL_ARGS")
    if extra is None and OPEN in launch.environment:
        extra = Word("$VLLM_ADDITIONAL_ARGS", launch.environment[OPEN].place, False)
    if extra is not None:
        words += split_words(extra) if extra.literal else [extra]
    return launch._replace(words=(*words, *launch.words))
