"""A case: one deployment on one kind of device, with everything a rule asks about. Plans are built once and kept."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.check.capacity import Limit, Load, Pool, Target
from kvcli.check.deployment import Deployment, Setting
from kvcli.check.models import Found, Models
from kvcli.check.nodes import Place, Word
from kvcli.check.requests import Asked, ask
from kvcli.check.verdict import Level, Outcome
from kvcli.errors import KvcliError, NotModelled
from kvcli.hardware.accelerators import Accelerator
from kvcli.plan.build import build
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest


class Case(NamedTuple):
    """`device` is what the file calls the devices; `part` None: not said, or unknown, as `device_problem` then tells.

    `asked` and `plan`, one sequence of the longest admitted context, are None where `error` says why. `strict`: what is unknown fails.
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
    asked, plan = None, None
    error: KvcliError | None = None
    if found.spec is not None:
        try:
            asked = ask(deployment, found.spec, part, models, found.weights)
            plan = build(asked.request)
            error = _unread_weights(plan)
            asked, plan = (None, None) if error else (asked, plan)
        except KvcliError as refused:
            error = refused
    return Case(target, deployment, models, device, pool, part, device_problem, found, asked, plan, error, strict)


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
