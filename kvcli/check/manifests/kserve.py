"""KServe's InferenceService, joined with its runtime where the files hold it."""

from __future__ import annotations

import re
from collections.abc import Callable

from kvcli.check.launch import Launch, Problem
from kvcli.check.manifests.fileset import Document, FileSet, mappings
from kvcli.check.manifests.pods import Around, launches_of_container, launches_of_pod, replicas_of
from kvcli.check.manifests.rewrite import overlay, substituted
from kvcli.check.manifests.workloads import read_workload
from kvcli.check.nodes import Mapping, Scalar, Sequence, Word

_RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")
_PLACEHOLDER = re.compile(r"\{\{\s*\.(Name|Namespace|Labels\.[\w./-]+|Annotations\.[\w./-]+)\s*\}\}")
_CONTAINER = "kserve-container"
#: keys of a predictor that are not a framework's name
_PREDICTOR_KEYS = frozenset(["model", "containers", "workerSpec", "volumes", "affinity", "nodeSelector", "tolerations", "initContainers"])
#: runtimes that KServe brings, and the one that starts vLLM over several nodes with the sizes of its workers
_MULTINODE = "kserve-huggingfaceserver-multinode"
_BROUGHT = frozenset(["kserve-huggingfaceserver", _MULTINODE])
#: formats whose runtime KServe itself brings, so that none has to be among the files
_BUILT_IN = frozenset(["huggingface"])


def read_inference_service(document: Document, files: FileSet) -> list[Launch]:
    predictor = document.node.at("spec", "predictor")
    if not isinstance(predictor, Mapping):
        return read_workload(document, files)
    annotations = document.node.at("metadata", "annotations")
    around = Around(
        f"{document.kind}/{document.name}",
        document,
        files,
        replicas_of(predictor, "minReplicas"),
        annotations=annotations if isinstance(annotations, Mapping) else None,
    )
    model = predictor.get("model")
    model_format: Word | None = None
    if isinstance(model, Mapping):
        model_format = model.text("modelFormat", "name")
    else:
        for name, value in predictor.pairs:
            # the older way: the framework's name is the key
            if isinstance(value, Mapping) and value.get("storageUri") is not None and name.text not in _PREDICTOR_KEYS:
                model, model_format = value, name.word
    if not isinstance(model, Mapping):
        return _custom(predictor, around)
    problems: list[Problem] = []
    runtime = _runtime(model, model_format, document, files, problems)
    spec = runtime.node.get("spec") if runtime is not None else None
    base = substituted(spec, _placeholders(document)) if isinstance(spec, Mapping) else Mapping((), model.place)
    containers = mappings(base.get("containers"))
    own = next((each for each in containers if is_named(each, _CONTAINER)), containers[0] if containers else None)
    container = overlay(
        own or Mapping((), model.place), model, joined=("args", "volumeMounts", "envFrom"), named=("env",), deep=("resources",)
    )
    sizes = _worker_sizes(model, model_format, predictor) if runtime is None else ()
    if sizes:
        container = overlay(
            Mapping(((Scalar("args", model.place), Sequence(sizes, model.place)),), model.place), container, joined=("args",)
        )
    if container.get("name") is None:
        container = Mapping(((Scalar("name", model.place), Scalar(_CONTAINER, model.place)), *container.pairs), model.place)
    pod = overlay(base, predictor, joined=("volumes", "imagePullSecrets"), deep=("nodeSelector",))
    around = _with_workers(around, predictor, base)
    if sizes and around.hosts == 1:
        around = around._replace(hosts=_count(sizes[-1].text.partition("=")[2]))
    around = around._replace(
        model=model.text("storageUri") or model.text("storage", "path") or model.text("storage", "key"),
        engine=model_format,
        problems=tuple(problems),
    )
    result = launches_of_container(container, pod, around)
    others = [each for each in (*containers, *mappings(predictor.get("containers"))) if each is not own]
    for each in others:
        result += launches_of_container(each, pod, around._replace(model=None, engine=None, problems=()))
    return result


def _worker_sizes(model: Mapping, model_format: Word | None, predictor: Mapping) -> tuple[Scalar, ...]:
    """What KServe's own runtime for several nodes hands to vLLM: `--tensor-parallel-size` 1 and `--pipeline-parallel-size` 2 unless the
    workers say others (config/runtimes/kserve-huggingfaceserver-multinode.yaml)."""
    spec, named = predictor.get("workerSpec"), model.text("runtime")
    if not isinstance(spec, Mapping):
        return ()
    if named.text != _MULTINODE if named is not None else model_format is None or model_format.text not in _BUILT_IN:
        return ()
    found = []
    for key, option, default in (
        ("tensorParallelSize", "--tensor-parallel-size", "1"),
        ("pipelineParallelSize", "--pipeline-parallel-size", "2"),
    ):
        size = spec.text(key) or Word(default, spec.place)
        found.append(Scalar(f"{option}={size.text}", size.place))
    return tuple(found)


def _custom(predictor: Mapping, around: Around) -> list[Launch]:
    """A predictor with containers of its own."""
    storage = next((each.text("storageUri") for each in mappings(predictor.get("containers")) if each.get("storageUri")), None)
    return launches_of_pod(predictor, _with_workers(around, predictor, predictor)._replace(model=storage))


def _with_workers(around: Around, predictor: Mapping, runtime: Mapping) -> Around:
    """Several nodes: the head and its workers serve one model together, and the controller tells them the sizes."""
    spec = predictor.get("workerSpec")
    base = runtime.get("workerSpec")
    if not isinstance(spec, Mapping):
        return around
    known: dict[str, Word] = {}
    hosts = 1
    for key, name in (("pipelineParallelSize", "PIPELINE_PARALLEL_SIZE"), ("tensorParallelSize", "TENSOR_PARALLEL_SIZE")):
        word = spec.text(key) or (base.text(key) if isinstance(base, Mapping) else None)
        if word is not None:
            known[name] = word
            if key.startswith("pipeline"):
                hosts = _count(word.text)
    return around._replace(known=known, hosts=hosts)


def _count(text: str) -> int:
    return int(text) if text.isdigit() and 0 < len(text) < 6 else 1


def _runtime(model: Mapping, model_format: Word | None, document: Document, files: FileSet, problems: list[Problem]) -> Document | None:
    named = model.text("runtime")
    if named is not None:
        found = files.find(_RUNTIMES, named.text, document)
        if found is None and named.text not in _BROUGHT:
            message = f"the runtime {named.text} is not among the files, so its command and arguments are not known"
            problems.append(Problem("not_in_files", message, named.place))
        return found
    if model_format is None:
        return None
    matching = [each for each in files.all(_RUNTIMES) if _supports(each, model_format.text)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        message = f"{len(matching)} runtimes of the files serve {model_format.text}, and the service names none of them"
        problems.append(Problem("ambiguous_runtime", message, model_format.place))
    elif model_format.text not in _BUILT_IN:
        message = f"no runtime of the files serves {model_format.text}, so its command and arguments are not known"
        problems.append(Problem("not_in_files", message, model_format.place))
    return None


def _supports(runtime: Document, name: str) -> bool:
    for each in mappings(runtime.node.at("spec", "supportedModelFormats")):
        label, auto = each.text("name"), each.text("autoSelect")
        if label is not None and label.text == name and auto is not None and auto.text.lower() == "true":
            return True
    return False


def _placeholders(document: Document) -> Callable[[str], str]:
    """Replaces what KServe fills in: {{.Name}}, {{.Namespace}}, {{.Labels.x}}, {{.Annotations.x}}."""

    def value(match: re.Match[str]) -> str:
        key = match.group(1)
        if key in ("Name", "Namespace"):
            return document.name if key == "Name" else document.namespace
        section, _, name = key.partition(".")
        word = document.node.text("metadata", section.lower(), name)
        return word.text if word else match.group()

    return lambda text: _PLACEHOLDER.sub(value, text)


def is_named(container: Mapping, name: str) -> bool:
    word = container.text("name")
    return word is not None and word.text == name
