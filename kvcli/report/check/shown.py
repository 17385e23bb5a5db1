"""What all formats share: the text of a user made harmless, findings in one order, and which of them a baseline leaves unsaid."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from kvcli.check.compare import changes
from kvcli.check.verdict import LEVELS, RULES, Cell, Level, Outcome, Report

#: levels that are findings, the worst first; the others say that a rule passed or why it did not run
FINDINGS: tuple[Level, ...] = ("error", "warning", "note")
#: cells that are named where many share a remark
MOST_NAMES = 3
VERDICTS: tuple[Literal["fail", "warn", "pass"], ...] = ("fail", "warn", "pass")

# controls, line and paragraph separators, marks that turn the direction of text, surrogates, and what XML 1.0 cannot hold
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]")
# both log formats find their commands anywhere in a line
_COMMAND = re.compile(r"##(?=\[|vso\[)", re.IGNORECASE)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def plain(text: str) -> str:
    """One line of text that no terminal, log, or XML reader takes for anything else: what is not text is shown as an escape."""
    return _COMMAND.sub(r"##\\", _UNSAFE.sub(_escape, text))


def encodable(text: str) -> str:
    """The text as it is, but for surrogates, which no encoding can hold: they are shown as escapes."""
    return re.sub("[\ud800-\udfff]", _escape, text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _NAMED.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")


def repository_path(file: str) -> str:
    """The path without `./`, doubled slashes and inner `..`."""
    return posixpath.normpath(file) if file else ""


class Finding(NamedTuple):
    """An outcome and its cell. `nth`: which of the cell's outcomes of this rule it is; `known`: the baseline holds it already."""

    cell: Cell
    outcome: Outcome
    nth: int
    known: bool

    @property
    def where(self) -> str:
        return f"{plain(self.cell.target)} on {plain(self.cell.device)}"

    @property
    def rule(self) -> str:
        """`KV001 does-not-fit`."""
        return rule_title(self.outcome.rule)

    @property
    def place(self) -> str:
        return f"{plain(repository_path(self.outcome.place.file))}:{self.outcome.place.line}"

    @property
    def waived(self) -> str:
        """`waived until 2026-12-31: reason`, '' where it is not."""
        waiver = self.outcome.waiver
        return f"waived until {plain(waiver.expires)}: {plain(waiver.reason)}" if waiver else ""

    def lines(self) -> list[str]:
        """Message, equation, way out, waiver, each on a line of its own, those that there are; all harmless."""
        said = [plain(self.outcome.message)]
        said += [f"formula: {plain(self.outcome.formula)}"] if self.outcome.formula else []
        said += [f"what passes: {plain(self.outcome.fix)}"] if self.outcome.fix else []
        return said + ([self.waived] if self.waived else [])

    @property
    def fingerprint(self) -> str:
        """The same for the same finding after lines have moved and numbers have changed."""
        outcome = self.outcome
        key = (outcome.rule, self.cell.target, self.cell.device, repository_path(outcome.place.file), str(self.nth))
        return hashlib.sha256("\0".join(key).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def rule_title(rule: str) -> str:
    return f"{plain(rule)} {RULES[rule][0]}" if rule in RULES else plain(rule)


def of_cell(cell: Cell) -> list[Finding]:
    """Every outcome of a cell, the worst first, then by rule. A baseline that holds a rule once knows one outcome of it."""
    held, count, found = Counter(cell.known), Counter[str](), []
    for outcome in cell.outcomes:
        key = (outcome.rule, outcome.level)
        known = outcome.level in ("warning", "note") and held[key] > 0
        held[key] -= known
        found.append(Finding(cell, outcome, count[outcome.rule], known))
        count[outcome.rule] += 1
    return sorted(found, key=lambda each: (LEVELS.index(each.outcome.level), each.outcome.rule, each.outcome.place, each.nth))


def findings(report: Report) -> list[Finding]:
    """All findings of all cells, the worst first, then by place, rule and cell."""
    found = [each for cell in report.cells for each in of_cell(cell) if each.outcome.level in FINDINGS]
    return sorted(
        found,
        key=lambda each: (LEVELS.index(each.outcome.level), each.outcome.place, each.outcome.rule, each.cell.target, each.cell.device),
    )


def unknown_only(found: Iterable[Finding]) -> list[Finding]:
    """Without what the baseline holds already. Errors are never left out."""
    return [each for each in found if not each.known]


def summary(report: Report) -> str:
    """`kvcli check failed: 2 fail, 1 warn, 3 pass`."""
    count = Counter(cell.verdict for cell in report.cells)
    numbers = ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict]) or "nothing to check"
    return f"kvcli check {'passed' if report.passed else 'failed'}: {numbers}"


def unsaid(report: Report) -> str:
    """How many findings the baseline keeps out of sight, one sentence; '' where none."""
    count = Counter(each.outcome.level for each in findings(report) if each.known)
    parts = [f"{count[level]} {level}{'s' if count[level] > 1 else ''}" for level in FINDINGS if count[level]]
    if not parts:
        return ""
    is_or_are = "is" if sum(count.values()) == 1 else "are"
    return f"{' and '.join(parts)} that the baseline {plain(report.against or '')} already holds {is_or_are} not shown"


def gone(report: Report) -> list[str]:
    """`chat on h100-pool` for each target that the baseline has and the report has not."""
    return [f"{plain(target)} on {plain(device)}" for target, device in report.vanished]


def beyond(cell: Cell) -> str:
    """Whose memory it is that is more than the device has, and why that need not fail; '' where nothing goes beyond it, or where KV001
    fails with that very number."""
    used, has = cell.measures.memory_bytes, cell.measures.usable_bytes
    levels = {each.level for each in cell.outcomes if each.rule == "KV001"}
    if used is None or has is None or used <= has:
        return ""
    if "error" in levels:
        return f"this is {cell.memory_of}, of which an engine lets some wait; KV001 counts one request" if cell.memory_of else ""
    if "warning" in levels:
        if cell.memory_of:
            return f"this is {cell.memory_of}, of which an engine lets some wait; KV001 counts one request"
        return "this is more than the device has, and KV001 says why that need not fail"
    if "note" in levels:
        return "this is more than the device has, which a waiver of KV001 accepts"
    held = cell.measures.sequences
    number = f" {held:,}" if held else " as many as fit"
    return f"this is all users at their p99 context at once, of whom the engine holds{number} and lets the others wait"


def remarks(report: Report) -> list[str]:
    """What is no finding and must not go unsaid, a line each: rules that did not run, what was assumed, what has gone, what is known.

    With a baseline, of the cells alone that something has happened to.
    """
    cells = [cell for cell in report.cells if not unchanged(report, cell)]
    skipped = (
        (f"{each.rule} ({plain(each.outcome.message)})", cell)
        for cell in cells
        for each in of_cell(cell)
        if each.outcome.level == "skipped"
    )
    lines = _together("skipped", skipped)
    lines += _together("assumed", ((plain(each), cell) for cell in cells for each in cell.assumed))
    lines += [f"gone since the baseline: {name}" for name in gone(report)]
    lines += [f"memory of {plain(cell.target)} on {plain(cell.device)}: {said}" for cell in cells if (said := beyond(cell))]
    return lines + [line for line in (same(report), unsaid(report)) if line]


def _together(kind: str, said: Iterable[tuple[str, Cell]]) -> list[str]:
    """One line for all that is said of the same cells: `skipped for chat on l4s: KV002 headroom-... (no limit ...); KV005 ...`."""
    cells: dict[str, list[str]] = {}
    for text, cell in said:
        cells.setdefault(text, []).append(f"{plain(cell.target)} on {plain(cell.device)}")
    lines: dict[tuple[str, ...], list[str]] = {}
    for text, names in cells.items():
        lines.setdefault(tuple(dict.fromkeys(names)), []).append(text)
    found = []
    for of, texts in lines.items():
        more = f" and {len(of) - MOST_NAMES} more" if len(of) > MOST_NAMES else ""
        found.append(f"{kind} for {', '.join(of[:MOST_NAMES])}{more}: {'; '.join(texts)}")
    return found


def unchanged(report: Report, cell: Cell) -> bool:
    """Whether the baseline has the cell, and all that is found of it, with the same numbers."""
    if report.against is None or cell.before is None or changes(cell.before, cell.measures):
        return False
    return not unknown_only(each for each in of_cell(cell) if each.outcome.level in FINDINGS)


def same(report: Report) -> str:
    """`3 of 5 unchanged since the baseline F`; '' where none is."""
    count = sum(unchanged(report, cell) for cell in report.cells)
    return f"{count} of {len(report.cells)} unchanged since the baseline {plain(report.against or '')}" if count else ""


def is_new(report: Report, cell: Cell) -> bool:
    return report.against is not None and cell.before is None
