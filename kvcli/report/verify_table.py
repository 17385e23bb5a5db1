"""A verification for people: predicted beside observed, each line as it is done."""

from __future__ import annotations


def header(title: str) -> str:
    return f"{title}\n{_row('check', 'predicted', 'observed', 'tolerance')}"


def line(name: str, predicted: float, observed: float, tolerance: float, unit: str, matches: bool) -> str:
    """One check. Bytes are whole numbers with their unit; other amounts are bare."""
    amounts = (f"{value:,} {unit}" if isinstance(value, int) else f"{value:.2g}" for value in (predicted, observed, tolerance))
    return f"{_row(name, *amounts)}  {'ok' if matches else 'DIFFERS'}"


def _row(name: str, predicted: str, observed: str, tolerance: str) -> str:
    return f"{name:<32}{predicted:>16}{observed:>16}{tolerance:>11}"
