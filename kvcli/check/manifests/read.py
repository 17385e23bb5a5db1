"""The entry: files, references and command lines to launches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kvcli.check.launch import Launch, Problem
from kvcli.check.manifests.compose import read_compose
from kvcli.check.manifests.fileset import Document, FileSet, Kustomization, Script
from kvcli.check.manifests.kserve import read_inference_service
from kvcli.check.manifests.leaderworker import read_leader_worker_set
from kvcli.check.manifests.llmisvc import read_llm_inference_service
from kvcli.check.manifests.ray import read_ray
from kvcli.check.manifests.scripts import launch_of_command, read_script
from kvcli.check.manifests.workloads import read_workload
from kvcli.check.manifests.workspace import read_workspace
from kvcli.errors import BadInput

__all__ = ["launch_of_command", "launches_at", "read_launches"]

#: kind -> its reader; every other kind is searched for pod specs
READERS: dict[str, Callable[[Document, FileSet], list[Launch]]] = {
    "InferenceService": read_inference_service,
    "LLMInferenceService": read_llm_inference_service,
    "LeaderWorkerSet": read_leader_worker_set,
    "RayService": read_ray,
    "RayCluster": read_ray,
    "RayJob": read_ray,
    "Workspace": read_workspace,
    "InferenceSet": read_workspace,
    "compose": read_compose,
}
_SHOWN = 12


def read_launches(
    paths: Sequence[Path], names: Sequence[str] = (), also: Sequence[Path] = (), passed_over: list[str] | None = None
) -> tuple[Launch, ...]:
    """The launches of `paths` (files, or folders of YAML files), in their order; of those called `names` where names are given.

    `names` are `Kind/name`, `Kind/name/container` or a name alone. `also`: files that only complete others (ConfigMaps, runtimes).
    `passed_over` takes a sentence for each file of a folder that cannot be read and starts no engine.
    Raises BadInput for files that cannot be read and for a name that nothing has.
    """
    files = FileSet(paths, also)
    launches: list[Launch] = []
    for target in files.targets:
        try:
            launches += read_script(target) if isinstance(target, Script) else READERS.get(target.kind, read_workload)(target, files)
        except BadInput as error:
            files.refuse(target.file, error)
    if files.patched:
        launches = [_unrendered(each, files.patched[0]) for each in launches]
    if passed_over is not None:
        passed_over += dict.fromkeys(files.passed_over)
    if not names:
        return tuple(launches)
    label = ", ".join(path.as_posix() for path in paths)
    return tuple(launch for name in names for launch in _named(launches, name, label))


def _unrendered(launch: Launch, by: Kustomization) -> Launch:
    text = f"{by.file.as_posix()} changes manifests of this folder, which are read as they stand: check what kustomize build prints"
    return launch._replace(problems=(*launch.problems, Problem("not_rendered" if by.patches else "other_image", text, launch.place)))


def launches_at(reference: str, base: Path, also: Sequence[Path] = (), passed_over: list[str] | None = None) -> tuple[Launch, ...]:
    """The launches that `FILE#Kind/name[/container]` means, FILE relative to the folder `base`; all of the file's without `#`."""
    file, hash_mark, name = reference.partition("#")
    path = Path(os.path.normpath(base / file))
    if hash_mark and not name:
        raise BadInput(f"{reference}: nothing stands after `#`", "write FILE#Kind/name", "bad_reference")
    return read_launches([path], [name] if name else [], also, passed_over)


def _named(launches: Sequence[Launch], name: str, label: str) -> list[Launch]:
    wanted = name.strip("/").lower()
    found = [each for each in launches if wanted in _names(each)]
    if found:
        return found
    held = sorted({each.name for each in launches})
    shown = ", ".join(held[:_SHOWN]) + (f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else "")
    message = f"{label} holds no {name}" + (f", only {shown}" if held else ", nor anything else that starts a program")
    raise BadInput(message, "write FILE#Kind/name or FILE#Kind/name/container as the file has them", "unknown_reference")


def _names(launch: Launch) -> set[str]:
    full = launch.name.lower()
    container = launch.container.lower()
    both = f"{full}/{container}"
    return {full, full.partition("/")[2], both, both.partition("#")[0]}
