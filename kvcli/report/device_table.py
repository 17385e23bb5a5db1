"""The table of parts for people, spreadsheets and programs: listed, or one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from kvcli.hardware.accelerators import Accelerator
from kvcli.report.table import Column, markdown, print_terminal, write_csv
from kvcli.units import exact_bytes, format_bandwidth, format_bytes, format_flops

SCHEMA_VERSION = 1

_COLUMNS = (
    Column("id", right=False),
    Column("name", right=False),
    Column("memory"),
    Column("bandwidth"),
    Column("16-bit peak"),
    Column("confidence", right=False),
)


def _cells(part: Accelerator) -> list[str]:
    peak = part.peak("bf16", "fp16")
    return [
        part.id,
        part.name,
        format_bytes(part.memory_bytes) if part.memory_bytes else "any",
        format_bandwidth(part.bandwidth_bytes_per_s),
        f"{format_flops(peak)}/s" if peak else "",
        part.confidence,
    ]


def document(part: Accelerator) -> dict[str, Any]:
    """One part as JSON: bytes, bytes/s and dense FLOP/s; null where not known."""
    return {
        "id": part.id,
        "name": part.name,
        "vendor": part.vendor or None,
        "class": part.kind or None,
        "driver_names": list(part.driver_names),
        "memory_label": part.memory_label or None,
        "memory_type": part.memory_type or None,
        "memory_bytes": part.memory_bytes,
        "memory_basis": part.memory_basis,
        "driver_total_bytes": part.driver_total_bytes,
        "context_total_gib": part.context_total_gib or None,
        "usable_bytes": part.usable_bytes,
        "usable_basis": part.usable_basis,
        "bandwidth_bytes_per_s": part.bandwidth_bytes_per_s or None,
        "bandwidth_bound_bytes_per_s": part.bandwidth_bound_bytes_per_s or None,
        "bandwidth_measured_bytes_per_s": part.bandwidth_measured_bytes_per_s or None,
        "bandwidth_overclocked_bytes_per_s": part.bandwidth_overclocked_bytes_per_s or None,
        "dense_peak_flops": {name: rate or None for name, rate in part.peak_flops},
        "compute_basis": part.compute_basis or None,
        "max_clock_ratio": part.max_clock_ratio,
        "fp16_accumulate_ratio": part.fp16_accumulate_ratio,
        "last_level_cache_bytes": part.last_level_cache_bytes or None,
        "link_bytes_per_s": part.link_bytes_per_s or None,
        "basis": part.basis,
        "notes": part.notes or None,
    }


def listing_document(parts: Sequence[Accelerator]) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "devices": [document(part) for part in parts]}


def one_document(part: Accelerator) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "device": document(part)}


def print_list(parts: Sequence[Accelerator]) -> None:
    """Without the peak, for which 80 columns have no room."""
    kept = [index for index, column in enumerate(_COLUMNS) if "peak" not in column.title]
    print_terminal([_COLUMNS[index] for index in kept], ([cells[index] for index in kept] for cells in map(_cells, parts)))


def print_markdown(parts: Sequence[Accelerator]) -> None:
    print(markdown(_COLUMNS, map(_cells, parts)))


def print_csv(parts: Sequence[Accelerator]) -> None:
    """Every field of `document`, peaks in columns of their own and driver names joined as in the table."""
    rows = []
    for part in parts:
        fields = document(part)
        peaks = fields.pop("dense_peak_flops")
        names = "|".join(fields.pop("driver_names"))
        rows.append({**fields, "driver_names": names, **{f"dense_peak_{name}_flops": rate for name, rate in peaks.items()}})
    titles = list(dict.fromkeys(title for row in rows for title in row))
    write_csv(titles, [[row.get(title) for title in titles] for row in rows], sys.stdout)


def print_one(part: Accelerator) -> None:
    """All that is known of one part, each figure with its meaning."""
    print_terminal([Column("", right=False), Column("", right=False)], [[title, text] for title, text in _facts(part) if text])


def _facts(part: Accelerator) -> list[tuple[str, str]]:
    memory = part.memory_bytes
    bound_ratio = part.max_clock_ratio * part.fp16_accumulate_ratio
    return [
        ("id", part.id),
        ("name", part.name),
        ("driver name", " or ".join(part.driver_names) or "unknown"),
        ("memory, label", part.memory_label),
        ("memory, driver", _size(part.driver_total_bytes)),
        ("memory, context", part.context_total_gib and f"GiB, as users reported: {part.context_total_gib}"),
        ("memory, planned", f"{_size(memory)} ({part.memory_basis})" if memory else ""),
        ("usable", f"{_size(part.usable_bytes)} ({part.usable_basis})" if part.usable_bytes else ""),
        ("nominal bandwidth", "" if part.measured_on else _rate(part.bandwidth_bytes_per_s) or "unknown"),
        ("bound, used for floors", _rate(part.bandwidth_bound_bytes_per_s) or "unknown: no floors"),
        ("published or measured", _rate(part.bandwidth_measured_bytes_per_s)),
        ("memory overclocked", _rate(part.bandwidth_overclocked_bytes_per_s)),
        *((f"dense {unit} peak", f"{format_flops(rate)}/s" if rate else "") for unit, rate in part.peak_flops),
        ("peaks", part.compute_basis),
        ("peaks exceeded at most", f"{bound_ratio:.3g} times, by clock and fp16 accumulation" if bound_ratio > 1 else ""),
        ("last-level cache", _size(part.last_level_cache_bytes) or "unknown, taken as 0"),
        ("links, one direction", _rate(part.link_bytes_per_s)),
        ("basis" if part.origin else "source", part.origin or f"{part.source} (confidence {part.confidence})"),
        ("notes", part.notes),
    ]


def _size(amount: int | None) -> str:
    return f"{format_bytes(amount)} = {exact_bytes(amount)}" if amount else ""


def _rate(bytes_per_s: float) -> str:
    return format_bandwidth(bytes_per_s) if bytes_per_s else ""


#: option -> how it prints a list
LISTS: dict[str, Callable[[Sequence[Accelerator]], None]] = {"": print_list, "csv": print_csv, "md": print_markdown}
