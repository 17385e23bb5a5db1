"""Kubernetes' own workloads, and any other object that holds a pod spec (Rollout, JobSet, Knative Service, ...)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcli.check.launch import Launch
from kvcli.check.manifests.fileset import Document, FileSet, mappings
from kvcli.check.manifests.pods import Around, launches_of_pod, replicas_of
from kvcli.check.nodes import Mapping, Node, Sequence

_DEPTH = 12
#: objects that hold patterns or schemas of pods, not pods
_NO_PODS = frozenset(
    ["CustomResourceDefinition", "ConfigMap", "Secret", "ClusterPolicy", "Policy", "ServingRuntime", "ClusterServingRuntime"]
)


def read_workload(document: Document, files: FileSet) -> list[Launch]:
    """The launches of every pod spec inside the object, wherever it stands."""
    if document.kind in _NO_PODS:
        return []
    name = f"{document.kind}/{document.name}"
    replicas = replicas_of(document.node, "spec", "replicas")
    result: list[Launch] = []
    for pod, template in _pods(document.node, None, 0):
        annotations = template.at("metadata", "annotations") if template is not None else document.node.at("metadata", "annotations")
        around = Around(name, document, files, replicas, annotations=annotations if isinstance(annotations, Mapping) else None)
        result += launches_of_pod(pod, around)
    return result


def _pods(node: Node, parent: Mapping | None, depth: int) -> Iterator[tuple[Mapping, Mapping | None]]:
    """Mappings that look like a pod spec, with the template around them."""
    if depth > _DEPTH:
        return
    if isinstance(node, Sequence):
        for item in node.items:
            yield from _pods(item, None, depth + 1)
    elif isinstance(node, Mapping):
        if any(each.get("image") or each.get("command") or each.get("args") for each in mappings(node.get("containers"))):
            yield node, parent
            return
        for key, value in node.pairs:
            if key.text not in ("metadata", "status"):
                yield from _pods(value, node, depth + 1)
