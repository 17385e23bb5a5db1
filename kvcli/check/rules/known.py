"""KV008, KV009, KV016: what is not known. It warns, and fails where `--strict` asks for that."""

from __future__ import annotations

from kvcli.check.case import Case, passed
from kvcli.check.rules.shape import SPLIT_CODES
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
    error = case.error
    # what the command line of a plan offers there is no change to a deployment
    hint = error.hint if error is not None and "--engine" not in error.hint else ""
    if error is not None and error.code not in (*SPLIT_CODES, "unsupported_kv_dtype", "unknown_dtype"):
        found.append(Outcome("KV009", case.unknown_level, f"it cannot be planned: {error.message}", place, fix=hint))
    return found or [passed("KV009", case)]


def understood(case: Case) -> list[Outcome]:
    """KV016: arguments that matter and are not literal or not known; others are notes."""
    # the models and devices that are missing have rules of their own
    problems = [each for each in case.deployment.problems if each.code != "no_model" or case.found.spec is None]
    problems = [each for each in problems if each.code != "cpu_build" or each.matters]  # else KV008 says it
    if case.found.spec is not None:
        problems = [each for each in problems if not each.message.startswith("the model ")]
    found = [Outcome("KV016", case.unknown_level if each.matters else "note", each.message, each.place) for each in problems]
    return found or [passed("KV016", case)]
