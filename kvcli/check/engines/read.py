"""A launch becomes a deployment: which engine its command starts, and what that engine reads of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kvcli.check.deployment import Deployment
from kvcli.check.engines import command, llama_cpp, ollama, sglang, tgi, trtllm, unread, vllm
from kvcli.check.engines.settings import Draft, unfilled
from kvcli.check.engines.versions import ASSUMED, cpu_build, cpu_tag, short, version_of
from kvcli.check.launch import Launch, Problem
from kvcli.check.nodes import Word

#: Where KServe puts what a service's storageUri names.
STORED = re.compile(r"/mnt/models")
#: options that only servers of models have
_TELLING = re.compile(
    r"--(max[-_]model[-_]len|tensor[-_]parallel[-_]size|gpu[-_]memory[-_]utilization|context[-_]length|kv[-_]cache[-_]dtype)(=|$)"
)
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
        return _unknown(launch)
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
    if model is not None and unfilled(model):
        model = model._replace(literal=False)
    unread.report(draft, found.engine, launch)
    if launch.image is not None and cpu_build(launch.image, found.engine, launch.gpus is not None):
        idle = ": the devices that are requested stay idle" if launch.gpus is not None else ""
        text = f"{launch.image.text[:120]} is a build for processors, which uses no accelerator{idle}"
        draft.problem("cpu_build", text, launch.image.place, matters=launch.gpus is not None)
    elif launch.image is not None and cpu_tag(launch.image, found.engine):
        text = f"{launch.image.text[:120]} has the tag of llama.cpp's build for processors, which uses no accelerator"
        draft.problem("cpu_tag", text, launch.image.place)
    if model is None:
        draft.problem("no_model", f"nothing says which model {found.engine} serves", found.place)
    elif not model.literal:
        draft.problem("not_literal", f"the model {model.text[:60]} is only known where it runs", model.place)
    return _deployment(launch, found.engine, model, draft, version, "" if version else ASSUMED[found.engine])


def _unknown(launch: Launch) -> Deployment | None:
    """What asks for accelerators and is told a length or a split, though nothing says which engine it is."""
    told = next((word for word in launch.words if _TELLING.match(word.text)), None)
    lost = next((each for each in launch.problems if each.code == "base_not_found"), None)
    if lost is not None and launch.image is None and (told is not None or launch.gpus is not None or not launch.words):
        text = "what it starts is not known without the service that it extends: it is not checked"
        return _deployment(launch, "unknown", launch.model, Draft("unknown"), None, "", Problem("engine_not_modelled", text, lost.place))
    if told is None or launch.gpus is None:
        return None
    image = launch.image.text if launch.image else "its program"
    text = f"{told.text[:60]} is an option of an engine, and {image[:120]} is none that kvcli knows: this deployment is not checked"
    return _deployment(launch, "unknown", launch.model, Draft("unknown"), None, "", Problem("engine_not_modelled", text, told.place))


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
        unread=frozenset(draft.unread - draft.settings.keys()),
        background=launch.background,
    )
