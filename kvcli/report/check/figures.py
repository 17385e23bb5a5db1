"""The numbers of a cell in words: memory of what is usable, floors, sequences, cost, and how each moved since the baseline."""

from __future__ import annotations

from kvcli.check.compare import MEASURES, Change, Measure, changes, finite
from kvcli.check.verdict import Cell, Measures, Report
from kvcli.report.check.shown import is_new
from kvcli.units import format_bytes

FLOOR_NOTE = "a floor is a time that no correct execution beats: above a limit it refutes, below it proves nothing"


def memory(measures: Measures) -> str:
    """`60.00 GiB of 71.67 GiB usable (83.7%)`, as much of it as is known."""
    if measures.memory_bytes is None:
        return ""
    text = format_bytes(measures.memory_bytes)
    if measures.usable_bytes is None:
        return text
    share = f" ({measures.memory_bytes / measures.usable_bytes:,.1%})" if measures.usable_bytes > 0 else ""
    return f"{text} of {format_bytes(measures.usable_bytes)} usable{share}"


def value(measures: Measures, field: str) -> str:
    """One number as people read it, '' where it is not known."""
    if field == "memory_bytes":
        return memory(measures)
    amount = getattr(measures, field)
    show = next(measure.show for measure in MEASURES if measure.field == field)
    return show(amount) if finite(amount) else ""


def numbers(measures: Measures, memory_of: str = "") -> str:
    """All that is known, in one line. `memory_of`: whose memory it is, where it is not one request's."""
    said = {measure.field: _number(measure, value(measures, measure.field)) for measure in MEASURES}
    if memory_of and said["memory_bytes"]:
        said["memory_bytes"] += f" of {memory_of}"
    return ", ".join(text for text in said.values() if text)


def _number(measure: Measure, text: str) -> str:
    if not text or measure.key != "sequences":
        return text and f"{measure.short} {text}"
    return "1 sequence" if text == "1" else f"{text} {measure.short}"


def moved(cell: Cell) -> dict[str, Change]:
    """Field -> how it moved since the baseline."""
    return {change.measure.field: change for change in changes(cell.before, cell.measures)} if cell.before else {}


def since(report: Report, cell: Cell) -> str:
    """`since the baseline: memory 60.00 GiB -> 92.10 GiB (+53.5%)`; '' without a baseline or a difference."""
    if is_new(report, cell):
        return "new: the baseline does not have it"
    found = moved(cell).values()
    return "since the baseline: " + ", ".join(f"{change.measure.short} {change.text}" for change in found) if found else ""
