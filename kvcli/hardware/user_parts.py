"""Parts that a user describes: a CSV file of them, or rates and sizes on the command line. Their basis is `user`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from kvcli.errors import BadInput
from kvcli.hardware.accelerators import Accelerator
from kvcli.units import parse_rate, parse_size

#: Columns of a user's file: those of presets/accelerators.csv, and two that say their unit in the cell.
REQUIRED = "id, name, memory (as in 80GiB; or mem_bytes_plan) and bandwidth (as in 3.35TB/s; or mem_bw_gbs)"
MAX_FILE_BYTES = 2**20


def custom(bandwidth_bytes_per_s: float | None, memory_bytes: int | None) -> Accelerator:
    """A device of which only this is known. Without a rate there is no floor, without a size no verdict."""
    empty = Accelerator("custom", "custom device", "", None, "", None, "not given", 0.0, 0.0, (), 0, "the user", "user", "")
    return override(empty, bandwidth_bytes_per_s, memory_bytes)


def override(part: Accelerator, bandwidth_bytes_per_s: float | None, memory_bytes: int | None) -> Accelerator:
    """The part with a user's rate, which then bounds it too, or a user's size, all of which is then usable."""
    if bandwidth_bytes_per_s is not None:
        part = replace(
            part,
            bandwidth_bytes_per_s=bandwidth_bytes_per_s,
            bandwidth_bound_bytes_per_s=bandwidth_bytes_per_s,
            bandwidth_measured_bytes_per_s=0.0,
        )
    if memory_bytes is not None:
        part = replace(part, memory_bytes=memory_bytes, memory_basis="user", usable_bytes=memory_bytes, usable_basis="user")
    given = [name for name, value in (("bandwidth", bandwidth_bytes_per_s), ("memory", memory_bytes)) if value is not None]
    rest = "" if part.id == "custom" else f"; else {part.basis}"
    return replace(part, origin=f"user ({' and '.join(given)}){rest}") if given else part


def read(path: str) -> tuple[Accelerator, ...]:
    """The parts of a user's file. Raises BadInput naming file and line."""
    import csv

    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = (error.strerror or "").lower() if isinstance(error, OSError) else ""
        raise BadInput(f"{path}: {reason or 'not a UTF-8 text file'}", hint=f"a CSV file with {REQUIRED}", code="bad_device_file") from None
    if len(content) > MAX_FILE_BYTES:
        raise BadInput(f"{path}: more than 1 MiB", hint=f"a CSV file with {REQUIRED}", code="bad_device_file")
    reader = csv.DictReader(text.splitlines())
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise BadInput(f"{path} line {reader.line_num}: {error}", code="bad_device_file") from None
    columns = [name for name in reader.fieldnames or [] if name]
    missing = [name for name in ("id", "name") if name not in columns]
    missing += [] if {"memory", "mem_bytes_plan"} & set(columns) else ["memory"]
    missing += [] if {"bandwidth", "mem_bw_gbs"} & set(columns) else ["bandwidth"]
    if missing:
        raise BadInput(f"{path} line 1: no column {', '.join(missing)}", hint=f"the first line names {REQUIRED}", code="bad_device_file")
    parts: list[Accelerator] = []
    for line, row in rows:
        part = _Row(path, line, row).part()
        if part.id in (other.id for other in parts):
            raise BadInput(f"{path} line {line}: id {part.id!r} is there twice", code="bad_device_file")
        parts.append(part)
    if not parts:
        raise BadInput(f"{path}: no part below the first line", hint=f"a line with {REQUIRED}", code="bad_device_file")
    return tuple(parts)


class _Row:
    """One line of a user's file; its errors say which."""

    def __init__(self, path: str, line: int, row: dict[str, str | None]) -> None:
        self.where = f"{path} line {line}"
        self.path = path
        self.row = row

    def cell(self, column: str) -> str:
        value = self.row.get(column)
        return value.strip() if isinstance(value, str) else ""

    def number(self, column: str) -> float:
        """A number that may be left out (0). Raises BadInput for anything that is no finite positive number."""
        text = self.cell(column)
        if not text:
            return 0.0
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e15 or not math.isfinite(value):
            raise BadInput(f"{self.where}: {column} {text[:40]!r} is not a number", code="bad_device_file")
        return value

    def part(self) -> Accelerator:
        for column in ("id", "name"):
            if not self.cell(column):
                raise BadInput(f"{self.where}: {column} is empty", code="bad_device_file")
        memory = parse_size(text, f"{self.where}: memory") if (text := self.cell("memory")) else int(self.number("mem_bytes_plan"))
        rate = parse_rate(text, f"{self.where}: bandwidth") if (text := self.cell("bandwidth")) else self.number("mem_bw_gbs") * 1e9
        if not memory or not rate:
            raise BadInput(f"{self.where}: {'bandwidth' if memory else 'memory'} is empty", code="bad_device_file")
        unit = 1e12
        columns = ("bf16_dense_tflops", "fp16_dense_tflops", "fp8_dense_tflops", "int8_dense_tops", "fp4_dense_tflops")
        peaks = tuple((column.partition("_")[0], self.number(column) * unit) for column in columns)
        return Accelerator(
            id=self.cell("id"),
            name=self.cell("name"),
            driver_name=self.cell("device_name_string"),
            memory_bytes=memory,
            memory_basis="user",
            usable_bytes=memory,
            usable_basis="user",
            bandwidth_bytes_per_s=rate,
            bandwidth_bound_bytes_per_s=max(rate, self.number("bw_bound_gbs") * 1e9),
            peak_flops=peaks,
            last_level_cache_bytes=int(self.number("last_level_cache_mb") * 2**20),
            source=self.cell("source") or "the user",
            confidence=self.cell("confidence") or "user",
            notes=self.cell("notes"),
            vendor=self.cell("vendor"),
            kind=self.cell("class"),
            link_bytes_per_s=self.number("scaleup_gbs_bidir_total") * 1e9 / 2,
            origin=f"user ({Path(self.path).name})",
        )
