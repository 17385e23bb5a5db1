"""A launch becomes a deployment: which engine its command starts, and what that engine reads of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kvcli.check.deployment import Deployment
from kvcli.check.engines import command, llama_cpp, ollama, sglang, tgi, trtllm, unread, vllm
from kvcli.check.engines.settings import Draft
from kvcli.check.engines.versions import ASSUMED, cpu_build, short, version_of
from kvcli.check.launch import Launch, Problem
from kvcli.check.nodes import Word

#: Where KServe puts what a service's storageUri names.
STORED = re.compile(r"/mnt/models")
Reader = Callable[[Launch, Sequence[Word], Draft, str], Word | None]
READERS: dict[str, Reader] = {
    "vllm": vllm.read,
    "sglang": sglang.read,
    "llama.cpp": llama_cpp.read,
    "ollama": ollama.read,
    "tgi": tgi.read,
    "trtllm": trtllm.read,
}


def deployment_of(launch: Launch, stated: Word | None = None) -> Deployment | None:
    """The deployment that a launch makes; None where it starts no engine (a sidecar, a router, a job that loads files).

    Of the version `stated`, where that and not the image's counts. An engine that kvcli knows by name alone gives a deployment with
    Problem `engine_not_modelled` and no settings.
    """
    found = command.engine_of(launch)
    if found is None:
        return None
    if found.engine not in READERS:
        text = f"kvcli has no rules for {found.engine}, so this deployment is not checked"
        problem = Problem("engine_not_modelled", text, found.place)
        return _deployment(launch, found.engine, launch.model, Draft(found.engine), None, "", problem)
    version = stated or version_of(launch.image, found.engine)
    at = short(version.text if version else ASSUMED[found.engine])
    draft = Draft(found.engine)
    if found.build:
        model = trtllm.read(launch, found.words, draft, at, build=True)
    else:
        model = READERS[found.engine](launch, found.words, draft, at)
    if model is not None and launch.model is not None and STORED.fullmatch(model.text.rstrip("/")):
        model = launch.model
    unread.report(draft, found.engine, launch)
    if launch.image is not None and cpu_build(launch.image, found.engine, launch.gpus is not None):
        idle = ": the devices that are requested stay idle" if launch.gpus is not None else ""
        text = f"{launch.image.text[:120]} is a build for processors, which uses no accelerator{idle}"
        draft.problem("cpu_build", text, launch.image.place, matters=launch.gpus is not None)
    if model is None:
        draft.problem("no_model", f"nothing says which model {found.engine} serves", found.place)
    elif not model.literal:
        draft.problem("not_literal", f"the model {model.text[:60]} is only known where it runs", model.place)
    return _deployment(launch, found.engine, model, draft, version, "" if version else ASSUMED[found.engine])


def _deployment(
    launch: Launch, engine: str, model: Word | None, draft: Draft, version: Word | None, assumed: str, *problems: Problem
) -> Deployment:
    return Deployment(
        name=launch.name,
        container=launch.container,
        place=launch.place,
        engine=engine,
        model=model,
        settings=draft.settings,
        version=version,
        assumed_version=assumed,
        gpus=launch.gpus,
        replicas=launch.replicas,
        problems=(*launch.problems, *draft.problems, *problems),
        background=launch.background,
    )
