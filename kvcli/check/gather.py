"""From files to cases: capacity files with what they refer to, and manifests given directly."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kvcli.check.capacity import Capacity, Pool, Target
from kvcli.check.capacity_file import NAMES, is_capacity_file, read_capacity
from kvcli.check.cards import part_of_card
from kvcli.check.case import Case, make_case
from kvcli.check.deployment import Deployment
from kvcli.check.engines.read import deployment_of
from kvcli.check.launch import Launch, Problem
from kvcli.check.manifests.read import launch_of_command, launches_at, read_launches
from kvcli.check.models import Found, Models
from kvcli.check.neighbours import with_neighbours
from kvcli.check.nodes import Place, Word
from kvcli.check.yaml_reader import load_documents, read_text
from kvcli.errors import BadInput
from kvcli.hardware.accelerators import Accelerator
from kvcli.hardware.match import find
from kvcli.hardware.mig import instance

#: codes of errors that are about the reference to a manifest, not about what the manifest says
_OF_REFERENCE = ("unknown_reference", "bad_reference", "unreadable_file", "not_a_file")


class Gathered(NamedTuple):
    """`capacities` are the capacity files among those given; their folders are where their paths begin. `passed_over`: a sentence for each
    file of a folder that cannot be read and starts no engine."""

    cases: tuple[Case, ...]
    capacities: tuple[Capacity, ...]
    passed_over: tuple[str, ...] = ()


class Device(NamedTuple):
    """Where a deployment runs: what the file calls it, and the part, or why there is none."""

    word: Word | None
    pool: Pool | None
    part: Accelerator | None
    problem: str = ""


def gather(paths: Sequence[Path], devices: Sequence[str] = (), strict: bool = False) -> Gathered:
    """Raises BadInput, with the file and line, for what cannot be read. `devices`: for manifests that are given directly.

    A folder with a capacity file is what that file says; other folders are their manifests.
    """
    capacities, manifests = [], []
    for path in dict.fromkeys(_capacity_of_folder(each) for each in paths):
        capacity = _capacity(path)
        if capacity is None:
            manifests.append(path)
        else:
            capacities.append((capacity, path.parent))
    if devices and not manifests:
        hint = "in a capacity file the target says it: on: [h100-sxm5-80]"
        raise BadInput("--device is for manifests given directly, and none is given", hint, "usage")
    for name in devices:
        find(name)
    cases: list[Case] = []
    passed_over: list[str] = []
    for capacity, base in capacities:
        models = Models(capacity.models, base)
        for each in capacity.files:
            if not os.path.exists(base / each.text):
                raise BadInput(f"{each.place.label}: files: there is no {each.text[:200]}", "check the path", "unreadable_file")
        also = [base / each.text for each in capacity.files]
        for target in capacity.targets:
            cases += _of_target(target, capacity, models, base, also, strict, passed_over)
    if manifests:
        cases += _direct(manifests, tuple(dict.fromkeys(devices)), strict, passed_over)
    if not cases:
        names = ", ".join(path.as_posix() for path in paths)
        message = f"{names[:400]}: nothing there starts an engine that kvcli knows"
        raise BadInput(message, "give a kvcli.yaml, or manifests of model servers", "nothing_to_check")
    return Gathered(tuple(_with_own_names(cases)), tuple(capacity for capacity, _ in capacities), tuple(dict.fromkeys(passed_over)))


def _capacity_of_folder(path: Path) -> Path:
    return next((path / name for name in NAMES if os.path.isfile(path / name)), path)


def _capacity(path: Path) -> Capacity | None:
    if os.path.isdir(path) or path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return None
    file = path.as_posix()
    documents = load_documents(read_text(path), file)
    ours = [each for each in documents if is_capacity_file(each, file)]
    if ours and len(documents) > 1:
        raise BadInput(f"{documents[1].place.label}: a capacity file is one document", "give the manifests a file of their own", "bad_file")
    return read_capacity(ours[0], file) if ours else None


def _with_own_names(cases: list[Case]) -> list[Case]:
    """Two deployments of one name on one device (overlays, engines in one pod) are told apart, so that a baseline can keep both."""
    held = Counter(_key(case) for case in cases)
    for longer in (_with_file, _with_container):
        again = [case._replace(target=case.target._replace(name=longer(case))) if held[_key(case)] > 1 else case for case in cases]
        if len({_key(case) for case in again}) > len(held):
            cases, held = again, Counter(_key(case) for case in again)
    counted: Counter[tuple[str, str]] = Counter()
    for index, case in enumerate(cases):
        counted[_key(case)] += 1
        if counted[_key(case)] > 1:
            name = f"{case.target.name} ({counted[_key(case)]})"
            cases[index] = case._replace(target=case.target._replace(name=name))
    return cases


def _key(case: Case) -> tuple[str, str]:
    return case.target.name, case.device.text if case.device else ""


def _with_container(case: Case) -> str:
    return f"{case.target.name}/{case.deployment.container}" if case.deployment.container else case.target.name


def _with_file(case: Case) -> str:
    return f"{case.target.place.file}#{case.target.name}"


def _of_target(
    target: Target, capacity: Capacity, models: Models, base: Path, also: list[Path], strict: bool, passed_over: list[str]
) -> list[Case]:
    deployments = _deployments(target, base, also, passed_over)
    found = []
    engine = target.engine.text if target.engine else None
    for deployment in with_neighbours(
        [each._replace(settings={**each.settings, **target.settings}, engine=engine or each.engine) for each in deployments]
    ):
        own = deployment
        named = target if len(deployments) == 1 else target._replace(name=f"{target.name}/{deployment.container or deployment.name}")
        model = models.find(target.model, own=True) if target.model else models.find(own.model)
        own = own if "weights" in target.settings else _as_in_file(own, model)
        for device in _devices(target, own, capacity):
            found.append(make_case(named, own, models, device.word, device.pool, device.part, device.problem, model, strict))
    return found


def _deployments(target: Target, base: Path, also: list[Path], passed_over: list[str]) -> list[Deployment]:
    launches: tuple[Launch, ...] = ()
    if target.source is not None:
        try:
            launches = launches_at(target.source.text, base, also, passed_over)
        except BadInput as error:
            if error.code not in _OF_REFERENCE:  # the manifest itself is at fault, and the message says where
                raise
            raise BadInput(f"{target.source.place.label}: {error.message}", error.hint, error.code) from None
    elif target.command is not None:
        launches = (launch_of_command(target.command.text, target.command.place, target.command.spots),)
    else:
        engine = target.engine.text if target.engine else "ideal"
        return [Deployment(target.name, "", target.place, engine, target.model, target.settings, target.engine_version)]
    found = [
        deployment
        for launch in launches
        if launch.role != "init" and (deployment := deployment_of(launch, target.engine_version)) is not None
    ]
    if not found:
        word = target.source or target.command
        what = word.text if word else target.name
        hint = "name the container: FILE#Kind/name/container" if target.source else "write it as its shell would run it: vllm serve MODEL …"
        raise BadInput(f"{(word or target).place.label}: {what[:200]!r} starts no engine that kvcli knows", hint, "nothing_to_check")
    return found


def _as_in_file(deployment: Deployment, model: Found) -> Deployment:
    """An engine that is told to quantise leaves a checkpoint alone that is quantised already. Files that the command line calls
    quantised, where the model kvcli found is not, are of a type that is not known here."""
    said = deployment.settings.get("quantization")
    if model.spec is not None and model.spec.quantization is None and said is not None and said.place is not None and not model.weights:
        text = f"{said.said} says that the files are quantised, and kvcli counts {model.spec.name} as it was published"
        return _with_doubt(deployment, text, said.place)
    if model.doubt and "weights" not in deployment.settings and deployment.model is not None:
        return _with_doubt(deployment, model.doubt, deployment.model.place, "weights_of_copy" if model.copy else "weights_not_known")
    if "weights" not in deployment.settings or model.spec is None or model.spec.quantization is None:
        return deployment
    return deployment._replace(settings={key: value for key, value in deployment.settings.items() if key != "weights"})


def _with_doubt(deployment: Deployment, text: str, place: Place, code: str = "weights_not_known") -> Deployment:
    problem = Problem(code, f"{text}: weights: in the target says their type", place)
    return deployment._replace(problems=(*deployment.problems, problem))


def _devices(target: Target, deployment: Deployment, capacity: Capacity) -> list[Device]:
    """The pools and parts a target names, else those of the manifest's node selectors."""
    cpu = next((each for each in deployment.problems if each.code == "cpu_build"), None)
    found = _on(target, deployment, capacity) if target.on else _cards(deployment)
    if cpu is None:
        return found
    return [
        each
        if each.part and each.part.kind == "cpu"
        else each._replace(word=each.word or Word("cpu", cpu.place), part=None, problem=cpu.message)
        for each in found
    ]


def _on(target: Target, deployment: Deployment, capacity: Capacity) -> list[Device]:
    found = []
    for word in {each.text: each for each in target.on}.values():
        pool = capacity.pools.get(word.text)
        device = _part(pool.device if pool else word, word, pool, deployment)
        if device.part is None and pool is None and capacity.pools:
            device = device._replace(problem=_no_pool(word.text, capacity.pools) or device.problem)
        found.append(device)
    return found


def _no_pool(name: str, pools: Mapping[str, Pool]) -> str:
    """A pool's name with a slip in it; empty where none is alike."""
    near = difflib.get_close_matches(name, pools, 1)
    return f"no pool and no device is called {name[:60]!r} (did you mean {near[0]}?)" if near else ""


def _part(device: Word, called: Word, pool: Pool | None, deployment: Deployment) -> Device:
    try:
        part = find(device.text)
        asked = deployment.gpus.profile if deployment.gpus else None
        profile = pool.mig.text if pool and pool.mig else asked
        return Device(called, pool, instance(part, profile) if profile else part)
    except BadInput as error:
        hint = f" ({error.hint})" if error.hint else ""
        return Device(Word(called.text, device.place), pool, None, f"{error.message}{hint}")


def _cards(deployment: Deployment) -> list[Device]:
    gpus = deployment.gpus
    parts: dict[str, Device] = {}
    for card in gpus.cards if gpus else ():
        part = part_of_card(card.text) if card.literal else None
        if part is not None:
            parts.setdefault(part.id, _part(Word(part.id, card.place), Word(part.id, card.place), None, deployment))
    if parts:
        return list(parts.values())
    cards = ", ".join(card.text for card in gpus.cards) if gpus and gpus.cards else ""
    why = f"no part is known by {cards[:200]}" if cards else "nothing says on which device it runs"
    return [Device(None, None, None, why)]


def _direct(manifests: list[Path], devices: Sequence[str], strict: bool, passed_over: list[str]) -> list[Case]:
    """Targets of manifests without a capacity file: every launch that starts an engine, named as its manifest names it."""
    models = Models({}, Path())
    found = []
    # what is no deployment is a sidecar, or ends before the server starts
    started = (deployment_of(launch) for launch in read_launches(manifests, passed_over=passed_over) if launch.role != "init")
    for deployment in with_neighbours([each for each in started if each is not None]):
        on = tuple(Word(name, deployment.place) for name in devices)
        target = Target(deployment.name, deployment.place, on=on)
        model = models.find(deployment.model)
        deployment = _as_in_file(deployment, model)
        for device in _devices(target, deployment, Capacity("", ())):
            found.append(make_case(target, deployment, models, device.word, device.pool, device.part, device.problem, model, strict))
    return found
