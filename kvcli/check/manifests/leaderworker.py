"""LeaderWorkerSet: groups of pods that serve one model together."""

from __future__ import annotations

from kvcli.check.launch import Launch, Problem
from kvcli.check.manifests.fileset import Document, FileSet, mappings
from kvcli.check.manifests.gpus import read_gpus
from kvcli.check.manifests.pods import Around, launches_of_pod, replicas_of
from kvcli.check.nodes import Mapping, Word


def read_leader_worker_set(document: Document, files: FileSet) -> list[Launch]:
    """The leader's launches (the workers' where there is no leader template); the workers join its command."""
    template = document.node.at("spec", "leaderWorkerTemplate")
    if not isinstance(template, Mapping):
        return []
    size = template.text("size")
    hosts = replicas_of(template, "size")
    worker, leader = template.at("workerTemplate", "spec"), template.at("leaderTemplate", "spec")
    pod = leader if isinstance(leader, Mapping) else worker
    if not isinstance(pod, Mapping):
        return []
    problems: list[Problem] = []
    if isinstance(leader, Mapping) and isinstance(worker, Mapping):
        amounts = [_most(each, document, files) for each in (leader, worker)]
        if hosts > 1 and None not in amounts and amounts[0] != amounts[1]:
            message = f"the leader asks for {amounts[0]} GPUs and each worker for {amounts[1]}, so their sum is not size times one of them"
            problems.append(Problem("uneven_group", message, worker.place))
    known = {"LWS_GROUP_SIZE": size} if size is not None else {}
    unknown = {name: Word(f"$({name})", pod.place, False) for name in ("LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX")}
    around = Around(
        f"{document.kind}/{document.name}",
        document,
        files,
        replicas_of(document.node, "spec", "replicas"),
        hosts,
        known={**known, **unknown},
        problems=tuple(problems),
    )
    return launches_of_pod(pod, around)


def _most(pod: Mapping, document: Document, files: FileSet) -> int | None:
    amounts = [request.amount for each in mappings(pod.get("containers")) if (request := read_gpus(each, pod, document, files)[0])]
    known = [amount for amount in amounts if amount is not None]
    return max(known) if known else None
