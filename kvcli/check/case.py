"""A case: one deployment on one kind of device, with everything a rule asks about. Plans are built once and kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from kvcli.check.capacity import Limit, Load, Pool, Target
from kvcli.check.deployment import Deployment, Setting
from kvcli.check.models import Found, Models
from kvcli.check.nodes import Place, Word
from kvcli.check.requests import Asked, ask, drafted
from kvcli.check.verdict import Level, Outcome
from kvcli.errors import KvcliError, NotModelled
from kvcli.hardware.accelerators import Accelerator
from kvcli.model.spec import ModelSpec
from kvcli.plan.build import build
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest


class Without(NamedTuple):
    """Something of a deployment that its plan does not count: the setting, or `engine` for the engine's own way to store the cache."""

    setting: str
    error: KvcliError


class Case(NamedTuple):
    """`device` is what the file calls the devices; `part` None: not said, or unknown, as `device_problem` then tells.

    `asked` and `plan`, one sequence of the longest admitted context, are None where `error` says why. `without`: what they leave out,
    (setting, why), so that they are the least of it. `strict`: what is unknown fails.
    """

    target: Target
    deployment: Deployment
    models: Models
    device: Word | None
    pool: Pool | None
    part: Accelerator | None
    device_problem: str
    found: Found
    asked: Asked | None
    plan: Plan | None
    error: KvcliError | None
    strict: bool = False
    without: tuple[Without, ...] = ()

    @property
    def load(self) -> Load:
        return self.target.load

    @property
    def own(self) -> bool:
        """Whether the capacity file says all itself, so that changes are named in its words."""
        return self.target.source is None and self.target.command is None and bool(self.target.settings or self.target.model)

    @property
    def unknown_level(self) -> Level:
        return "error" if self.strict else "warning"

    @property
    def without_accelerator(self) -> bool:
        """Whether it is a build for processors, so that no device holds it."""
        return self.part is None and any(each.code == "cpu_build" for each in self.deployment.problems)

    @property
    def unknown(self) -> str:
        """Why nothing can be planned, empty where something can."""
        if self.found.spec is None:
            return "the model is not known"
        if self.part is None:
            return self.device_problem if self.without_accelerator else "the device is not known"
        return self.error.message if self.error is not None else ""

    def limit(self, name: str) -> Limit | None:
        return self.target.limits.get(name)

    def setting(self, key: str) -> Setting | None:
        return self.deployment.settings.get(key)

    def place(self, *keys: str) -> Place:
        """Where the first of these settings was written, else where the deployment stands."""
        found = (self.setting(key) for key in keys)
        return next((each.place for each in found if each is not None and each.place is not None), self.deployment.place)

    def question(self, without: tuple[str, ...] = ()) -> tuple[Hashable, ...]:
        """What the plans of a case depend on, and the words its changes are named in: equal for deployments that are alike."""
        said = sorted((key, str(each.value)) for key, each in self.deployment.settings.items() if key not in without)
        version = self.deployment.version.text if self.deployment.version else self.deployment.assumed_version
        pool = self.pool and (self.pool.devices, self.pool.mig and self.pool.mig.text)
        asks = (self.deployment.gpus.resource if self.deployment.gpus else None, self.deployment.replicas)
        return id(self.found.spec), self.found.weights, self.deployment.engine, version, tuple(said), self.part, pool, asks, self.own

    def changed(self, **settings: int | float | str | bool) -> Case:
        """The same with other settings, asked and planned anew."""
        own = {key: Setting(value, f"{key} {value}", self.place(key)) for key, value in settings.items()}
        deployment = self.deployment._replace(settings={**self.deployment.settings, **own})
        return make_case(
            self.target, deployment, self.models, self.device, self.pool, self.part, self.device_problem, self.found, self.strict
        )


def make_case(
    target: Target,
    deployment: Deployment,
    models: Models,
    device: Word | None,
    pool: Pool | None,
    part: Accelerator | None,
    device_problem: str,
    found: Found,
    strict: bool = False,
) -> Case:
    least, without = (_Planned(), ()) if found.spec is None else _least(deployment, found.spec, part, models, found.weights)
    return Case(target, deployment, models, device, pool, part, device_problem, found, *least, strict, without)


class _Planned(NamedTuple):
    asked: Asked | None = None
    plan: Plan | None = None
    error: KvcliError | None = None


def _least(
    deployment: Deployment, spec: ModelSpec, part: Accelerator | None, models: Models, weights: str
) -> tuple[_Planned, tuple[Without, ...]]:
    """The plan; else one without the drafter that is not known, or without the engine's rule where it has none, which are bounds."""
    found, least = _plan(deployment, spec, part, models, weights), deployment
    without: list[Without] = []
    drafts = deployment.settings.get("speculation")
    if found.error is not None and drafts is not None:
        # drafted tokens without a drafter are those that are looked up in the text: a step may emit them all
        least = deployment._replace(settings={**deployment.settings, "speculation": drafts._replace(value=f"{drafted(deployment)}:ngram")})
        other = _plan(least, spec, part, models, weights)
        if other.error is None or other.error.message != found.error.message:
            without.append(Without("speculation", found.error))
            found = other
    if isinstance(found.error, NotModelled):
        other = _plan(least, spec, part, models, weights, ideal=True)
        if other.error is None:
            without.append(Without("engine", found.error))
            found = other
    return found, tuple(without)


def _plan(deployment: Deployment, spec: ModelSpec, part: Accelerator | None, models: Models, weights: str, ideal: bool = False) -> _Planned:
    try:
        asked = ask(deployment, spec, part, models, weights, ideal)
        plan = build(asked.request)
    except KvcliError as refused:
        return _Planned(error=refused)
    unread = _unread_weights(plan)
    return _Planned(error=unread) if unread else _Planned(asked, plan)


def _unread_weights(plan: Plan) -> KvcliError | None:
    """A checkpoint whose quantisation is not understood is planned in the config's type, which is not the one the engine loads."""
    notice = next((each for each in plan.notices if each.code == "quantized_weights"), None)
    if notice is None:
        return None
    what = notice.message.partition(": weights are planned")[0]
    return NotModelled(what, hint="say in the target what its weights are, as in weights: fp8", code="unknown_weights")


def planned(request: PlanRequest) -> Plan | None:
    """The plan, None where the request contradicts the model or the engine."""
    try:
        return build(request)
    except KvcliError:
        return None


def passed(rule: str, case: Case, message: str = "", formula: str = "") -> Outcome:
    return Outcome(rule, "passed", message, case.deployment.place, formula)


def skipped(rule: str, case: Case, why: str) -> Outcome:
    return Outcome(rule, "skipped", why, case.deployment.place)
