"""KAITO's Workspace: a preset that the operator starts with vLLM, or a pod template; settings in a ConfigMap."""

from __future__ import annotations

from kvcli.check.cards import devices_of
from kvcli.check.launch import GpuRequest, Launch, Problem
from kvcli.check.manifests.fileset import Document, FileSet
from kvcli.check.manifests.pods import Around, launches_of_pod, place_of, replicas_of
from kvcli.check.manifests.rewrite import flags
from kvcli.check.nodes import Mapping, Scalar, Word
from kvcli.check.yaml_reader import load_embedded

_CONFIG = "inference_config.yaml"
#: code of the Problem that ranks are those an operator usually takes
BY_OPERATOR = "ranks_by_operator"


def read_workspace(document: Document, files: FileSet) -> list[Launch]:
    """`vllm serve PRESET` with the flags of the ConfigMap's `vllm:` section; the template's containers where there is no preset."""
    root = document.node
    for path in (("spec",), ("spec", "template")):
        inner = document.node.at(*path)
        if isinstance(inner, Mapping) and isinstance(inner.get("inference"), Mapping):
            root = inner
    name = f"{document.kind}/{document.name}"
    instance = root.text("resource", "instanceType")
    gpus = GpuRequest(None, instance.place, cards=(instance,)) if instance is not None else None
    count = replicas_of(root, "resource", "count")
    template = root.at("inference", "template", "spec")
    preset = root.text("inference", "preset", "name")
    if preset is None:
        if not isinstance(template, Mapping):
            return []
        launches = launches_of_pod(template, Around(name, document, files))
        return [
            each._replace(gpus=each.gpus._replace(cards=(*each.gpus.cards, *(gpus.cards if gpus else ()))) if each.gpus else gpus)
            for each in launches
        ]
    problems: list[Problem] = []
    words = [Word("vllm", preset.place), Word("serve", preset.place), preset]
    settings = _settings(root, document, files, problems)
    if settings is not None:
        words += flags(settings, negate=False)
    named = any(word.text.startswith("--tensor-parallel-size") for word in words)
    if instance is not None and (devices := devices_of(instance.text)) is not None:
        gpus = GpuRequest(devices, instance.place, cards=(instance,))
        if not named and devices > 1:
            words += [Word("--tensor-parallel-size", instance.place), Word(str(devices), instance.place)]
            message = f"KAITO splits the model over the {devices} GPUs of {instance.text} unless the configuration says how"
            problems.append(Problem(BY_OPERATOR, message, instance.place, matters=False))
    elif not named:
        message = "KAITO splits the model over all GPUs of a node unless the configuration says how, and their number is not known here"
        problems.append(Problem("parallel_by_operator", message, preset.place))
    if not any(word.text.startswith("--max-model-len") for word in words):
        words.append(Word("--kaito-max-probe-steps=6", preset.place))  # its server then tries which length fits
    if count > 1:
        message = f"{count} nodes are asked for, and KAITO decides how many of them serve one instance"
        problems.append(Problem("parallel_by_operator", message, place_of(document)))
    engine = document.node.text("metadata", "annotations", "kaito.sh/runtime")
    if engine is not None and engine.text != "vllm":
        words = [preset]
    return [
        Launch(
            name,
            preset.text,
            preset.place,
            image=root.text("inference", "preset", "presetOptions", "image"),
            words=tuple(words),
            model=preset,
            engine=engine or Word("vllm", preset.place),
            gpus=gpus,
            problems=tuple(problems),
        )
    ]


def _settings(root: Mapping, document: Document, files: FileSet, problems: list[Problem]) -> Mapping | None:
    wanted = root.text("inference", "config")
    if wanted is None:
        return None
    found = files.find(["ConfigMap"], wanted.text, document)
    text = found.node.at("data", _CONFIG) if found is not None else None
    if not isinstance(text, Scalar):
        message = f"ConfigMap {wanted.text} with {_CONFIG} is not among the files, so what it sets is not known"
        problems.append(Problem("not_in_files", message, wanted.place))
        return None
    for node in load_embedded(text):
        section = node.get("vllm") if isinstance(node, Mapping) else None
        if isinstance(section, Mapping):
            return section
    return None
