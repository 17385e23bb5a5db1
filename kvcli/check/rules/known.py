"""KV008, KV009, KV016: what is not known. It warns, and fails where `--strict` asks for that."""

from __future__ import annotations

import re

from kvcli.check.case import Case, Without, passed
from kvcli.check.doubts import refuses
from kvcli.check.launch import Problem
from kvcli.check.nodes import Place
from kvcli.check.rules.shape import SPLIT_CODES, of_cache_type
from kvcli.check.verdict import Outcome


def device(case: Case) -> Outcome:
    """KV008."""
    if case.part is not None:
        return passed("KV008", case)
    place = case.device.place if case.device else case.deployment.place
    if case.without_accelerator:
        return Outcome("KV008", "note", case.device_problem, place)
    return Outcome("KV008", case.unknown_level, case.device_problem, place, fix="on: [h100-sxm5-80], or any id of kvcli devices")


def model(case: Case) -> list[Outcome]:
    """KV009: the model, and what kvcli cannot plan of it."""
    word = case.target.model or case.deployment.model
    place = word.place if word else case.deployment.place
    if case.found.spec is None:
        return [Outcome("KV009", case.unknown_level, case.found.why, place, fix=case.found.fix)]
    found = []
    if case.found.label:
        found.append(Outcome("KV009", "note", case.found.label, place))
    found += [_left_out(case, each, place) for each in case.without]
    error = case.error
    # what the command line of a plan offers there is no change to a deployment
    hint = error.hint if error is not None and "--engine" not in error.hint else ""
    if error is not None and error.code not in SPLIT_CODES and not of_cache_type(error):
        found.append(Outcome("KV009", case.unknown_level, f"it cannot be planned: {error.message}", place, fix=hint))
    return found or [passed("KV009", case)]


def _left_out(case: Case, each: Without, model: Place) -> Outcome:
    """A bound is planned, and says so."""
    if each.setting == "engine":
        message = f"{in_version(case, each.error.message)}: what no engine can do without is counted instead, the least that it stores"
        return Outcome("KV009", case.unknown_level, message, model)
    message = f"{each.error.message}: it is not counted, so the target needs more than is said here"
    hint = each.error.hint if "--" not in each.error.hint else ""
    return Outcome("KV009", case.unknown_level, message, case.place(each.setting), fix=hint)


def in_version(case: Case, message: str) -> str:
    """With the engine's own version instead of the one whose rule was asked."""
    engine, said = case.deployment.engine, case.deployment.version
    version = said.text.lower().removeprefix("v") if said else case.deployment.assumed_version
    message = re.sub(rf"{engine} [\d.]+ did not know", f"kvcli has no rule of {engine} 0.0 for", message)
    return re.sub(rf"{re.escape(engine)} \d[\d.]*\d", lambda _: f"{engine} {version[:40]}".strip(), message)


def understood(case: Case) -> list[Outcome]:
    """KV016: arguments that matter and are not literal or not known; others are notes. What the engine refuses fails."""
    # the models and devices that are missing have rules of their own
    problems = [each for each in case.deployment.problems if each.code != "no_model" or case.found.spec is None]
    problems = [each for each in problems if each.code != "cpu_build" or each.matters]  # else KV008 says it
    if case.found.spec is not None:
        problems = [each for each in problems if not each.message.startswith("the model ")]
    return [_not_understood(case, each) for each in problems] or [passed("KV016", case)]


def _not_understood(case: Case, problem: Problem) -> Outcome:
    if refuses(problem, case.deployment):
        return Outcome("KV016", "error", f"{problem.message}, so it does not start", problem.place)
    return Outcome("KV016", case.unknown_level if problem.matters else "note", problem.message, problem.place)
