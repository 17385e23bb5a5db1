"""The baseline: the state a team has accepted, in a file beside its manifests, and what a run changes against it."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from kvcli import __version__
from kvcli.check.compare import MEASURES, Change, changes, finite
from kvcli.check.verdict import LEVELS, Cell, Level, Measures, Outcome, Report
from kvcli.errors import BadInput
from kvcli.files import replace_text

SCHEMA_VERSION = 1
#: Far more than the state of a thousand targets; a larger file is a mistake.
MAX_BYTES = 16 * 2**20
#: What KV012 says is about the baseline itself, so no baseline holds it.
NEVER_HELD = "KV012"
#: No number of a plan reaches this; shares of larger ones would overflow.
MAX_VALUE = 2**80
WAY_OUT = "kvcli check FILE --update-baseline writes it anew"


class Entry(NamedTuple):
    """One target on one device as it was accepted. `rules`: (id, level) of each warning and note, repeated where it was said twice."""

    target: str
    device: str
    verdict: str
    measures: Measures
    rules: tuple[tuple[str, str], ...]


class Baseline(NamedTuple):
    path: str
    entries: tuple[Entry, ...]
    kvcli_version: str = __version__


def read(path: str) -> Baseline:
    """Raises BadInput, with the file and the way out, for a missing, malformed or foreign file."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        # a pipe would be waited for
        raise _bad(path, "is not a regular file", "baseline_unreadable")
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror or error}", "baseline_unreadable") from error
    if len(raw) > MAX_BYTES:
        raise _bad(path, f"is larger than {MAX_BYTES // 2**20} MiB")
    try:
        document = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _bad(path, f"is not valid JSON{where}") from error
    if not isinstance(document, dict) or not isinstance(document.get("targets"), list):
        raise _bad(path, "has no list of targets")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise _bad(path, f"has schema_version {str(version)[:40]!r}, and this kvcli reads {SCHEMA_VERSION}", "baseline_version")
    entries = tuple(_entry(path, index, each) for index, each in enumerate(document["targets"]))
    for (target, device), count in Counter((each.target, each.device) for each in entries).items():
        if count > 1:
            raise _bad(path, f"holds target {target!r} on device {device!r} {count} times")
    return Baseline(path, entries, str(document.get("kvcli_version", "")))


def against(report: Report, baseline: Baseline) -> Report:
    """The report with the baseline's numbers and rules in each cell; a cell that the baseline lacks keeps `before` None: it is new."""
    held = {(entry.target, entry.device): entry for entry in baseline.entries}
    cells = []
    for cell in report.cells:
        entry = held.get((cell.target, cell.device))
        cells.append(cell if entry is None else cell._replace(before=entry.measures, known=entry.rules))
    here = {(cell.target, cell.device) for cell in report.cells}
    vanished = tuple(sorted(key for key in held if key not in here))
    return Report(tuple(cells), baseline.path, vanished)


def regressions(cell: Cell, before: Measures, allowed: Mapping[str, float]) -> tuple[Outcome, ...]:
    """KV012: one outcome a number that got worse, none for one that is equal, better, or not known on both sides.

    `allowed`: measure -> share it may be worse by (0.05 = 5%), keys of MEASURES. A warning, an error where an allowed share is exceeded.
    Raises BadInput for a key that names no measure, and for a share that is no positive number.
    """
    keys = [measure.key for measure in MEASURES]
    for key, share in allowed.items():
        if key not in keys:
            raise BadInput(f"{key[:40]!r} is not a measure of a baseline", hint="one of " + ", ".join(keys), code="unknown_measure")
        if not finite(share) or share < 0:
            raise BadInput(f"the share allowed for {key} must be zero or more, and is {share!r}", hint=f"{key}: 5%", code="bad_share")
    return tuple(_regression(cell, change, allowed.get(change.measure.key)) for change in changes(before, cell.measures) if change.worse)


def _regression(cell: Cell, change: Change, allowed: float | None) -> Outcome:
    measure = change.measure
    share = math.inf if change.share is None else abs(change.share)
    level: Level = "warning" if allowed is None or share <= allowed else "error"
    message = f"{measure.label} went from {measure.show(change.before)} in the baseline to {measure.show(change.after)}"
    if change.percent:
        message += f" ({change.percent})"
    if allowed is not None:
        message += f", {'more than' if level == 'error' else 'within'} the {_percent(allowed)} that is allowed"
    if level == "warning":
        fix = "undo the change, or accept it with --update-baseline"
    elif share == math.inf:
        fix = "undo the change"
    else:
        # the next whole percent passes, by construction
        fix = f"undo the change, or allow {math.ceil(share * 100)}% for {measure.key}"
    return Outcome(NEVER_HELD, level, message, cell.place, change.formula, fix)


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"


def refusal(report: Report) -> str | None:
    """Why this report must not become the baseline, one sentence; None where it may."""
    failed = [f"{cell.target} on {cell.device}" for cell in report.cells if cell.verdict == "fail"]
    if not failed:
        return None
    named = ", ".join(failed[:3]) + (f" and {len(failed) - 3} more" if len(failed) > 3 else "")
    return f"the baseline is not updated, because {named} {'fails' if len(failed) == 1 else 'fail'}"


def document(report: Report) -> dict[str, Any]:
    """The file's content: targets sorted by name and device, rules sorted, so that a diff shows what changed and nothing else."""
    targets = []
    for cell in sorted(report.cells, key=lambda each: (each.target, each.device)):
        said = sorted((each.rule, each.level) for each in cell.outcomes if each.level in ("warning", "note") and each.rule != NEVER_HELD)
        measures = {key: value if finite(value) else None for key, value in cell.measures._asdict().items()}
        rules = [{"id": rule, "level": level} for rule, level in said]
        # a warning of KV012 is about the state before this one, so it is no part of the verdict that is kept
        verdict = "warn" if any(level == "warning" for _, level in said) else "pass"
        targets.append({"name": cell.target, "device": cell.device, "verdict": verdict, "measures": measures, "rules": rules})
    return {"schema_version": SCHEMA_VERSION, "kvcli_version": __version__, "targets": targets}


def write(report: Report, path: str) -> None:
    """Replaces the file in one step, following links, making its folder; a reader sees the old state or the new. Raises BadInput.

    The caller asks `refusal` first; a report that does not pass is refused here too.
    """
    refused = refusal(report)
    if refused:
        raise BadInput(refused, hint="mend or waive what fails, then update", code="baseline_refused")
    text = json.dumps(document(report), indent=2, allow_nan=False) + "\n"
    try:
        os.makedirs(os.path.dirname(os.path.realpath(path)), exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise BadInput(
            f"the baseline {path!r} cannot be written: {error.strerror or error}",
            hint="give a path in a folder that can be written",
            code="baseline_unwritable",
        ) from error


def _entry(path: str, index: int, data: Any) -> Entry:
    where = f"target {index + 1}"
    if not isinstance(data, dict):
        raise _bad(path, f"has a {where} that is no object")
    texts = {key: data.get(key) for key in ("name", "device", "verdict")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise _bad(path, f"has a {where} without a text as its {key}")
    if texts["verdict"] not in ("fail", "warn", "pass"):
        raise _bad(path, f"has a {where} with the verdict {str(texts['verdict'])[:40]!r}")
    rules = data.get("rules")
    if not isinstance(rules, list):
        raise _bad(path, f"has a {where} without a list of rules")
    pairs = []
    for rule in rules:
        if not (isinstance(rule, dict) and isinstance(rule.get("id"), str) and rule.get("level") in LEVELS):
            raise _bad(path, f"has a {where} with a rule that is not an id and a level")
        pairs.append((rule["id"], rule["level"]))
    return Entry(data["name"], data["device"], data["verdict"], _measures(path, where, data.get("measures")), tuple(pairs))


def _measures(path: str, where: str, data: Any) -> Measures:
    if not isinstance(data, dict):
        raise _bad(path, f"has a {where} without measures")
    values = {}
    for field in Measures._fields:
        value = data.get(field)
        whole = field.endswith("_bytes") or field == "sequences"
        fine = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool) and 0 <= value < MAX_VALUE
        if value is not None and not fine:
            raise _bad(path, f"has a {where} whose {field} is not a {'whole ' if whole else ''}number")
        values[field] = value
    return Measures(**values)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _bad(path: str, what: str, code: str = "bad_baseline") -> BadInput:
    return BadInput(f"the baseline {path!r} {what}", hint=WAY_OUT, code=code)
