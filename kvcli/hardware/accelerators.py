"""The table of parts: `presets/accelerators.csv`, one row a part, with its source and how far it is trusted.

A part is found by its exact id or by the exact name its driver reports. Nothing is guessed from a piece of a name: the
common mistakes of planners are of that kind (an H100 SXM does not say SXM, an A10G is not an A10).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from kvcli.model.presets import folder

GIB = 2**30
#: What the CUDA context takes below the driver's total on parts where nobody has reported it.
CONTEXT_GAP_BYTES = int(0.7 * GIB)
UNREPORTED_GAP_BYTES = int(0.5 * GIB)


#: Turing to Ada: tensor cores multiply integers of 4 bits twice as fast as those of 8 (data sheets of T4 and A100).
INT4_TARGETS = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One part. Bandwidth in bytes/s, peaks in dense FLOP/s (0 where unknown or not supported).

    `memory_bytes` is the driver's total (or the label, see `memory_basis`), None for parts sold with any amount;
    `usable_bytes` is what a process can get of it.
    `bandwidth_bound_bytes_per_s` is a rate the part as sold cannot exceed: the nominal one unless the table knows better; 0 where
    none is known, and then there is no floor. `bandwidth_measured_bytes_per_s` is the best that somebody published, or this machine
    measured; it is no bound. `link_bytes_per_s` is one direction of all links to other devices. `max_clock_ratio` and
    `fp16_accumulate_ratio` say how far peaks may be exceeded: by the highest clock, and by tensor cores that add up in fp16.
    """

    id: str
    name: str
    driver_name: str
    memory_bytes: int | None
    memory_basis: str
    usable_bytes: int | None
    usable_basis: str
    bandwidth_bytes_per_s: float
    bandwidth_bound_bytes_per_s: float
    peak_flops: tuple[tuple[str, float], ...]
    last_level_cache_bytes: int
    source: str
    confidence: str
    notes: str
    vendor: str = ""
    kind: str = ""
    memory_label: str = ""
    memory_type: str = ""
    driver_total_bytes: int | None = None
    context_total_gib: str = ""
    bandwidth_measured_bytes_per_s: float = 0.0
    bandwidth_overclocked_bytes_per_s: float = 0.0
    compute_basis: str = ""
    max_clock_ratio: float = 1.0
    fp16_accumulate_ratio: float = 1.0
    link_bytes_per_s: float = 0.0
    origin: str = ""
    measured_on: str = ""

    @property
    def basis(self) -> str:
        """Where its numbers come from: `user …`, `measured …`, or the table with its source."""
        return self.origin or f"constant ({self.source}; confidence {self.confidence})"

    @property
    def driver_names(self) -> tuple[str, ...]:
        """All names that drivers report for it."""
        return tuple(name for name in self.driver_name.split("|") if name)

    @property
    def unified(self) -> bool:
        """Whether it shares its memory with the host's processors."""
        return "unified" in self.memory_label or self.kind == "cpu"

    def peak_bound(self, *types: str) -> float:
        """A rate in FLOP/s that the named types cannot exceed on the part as sold; 0 where none is known."""
        known = dict(self.peak_flops)
        rates = [rate * (self.fp16_accumulate_ratio if name in ("fp16", "fp8") else 1.0) for name, rate in self.peak_flops if name in types]
        if "fp8" in types and known.get("fp8"):
            rates.append(known.get("int8", 0.0))  # units that add up fp8 products in fp16 are as fast as int8's
        return self.max_clock_ratio * max(rates, default=0.0)

    def peak(self, *types: str) -> float:
        """The fastest of the named types, in FLOP/s; 0 where none is known."""
        return max((rate for name, rate in self.peak_flops if name in types), default=0.0)


def _float(text: str) -> float:
    return float(text) if text else 0.0


def _usable(row: dict[str, str]) -> tuple[int | None, str]:
    """What a context can use: reported by one where known, else the driver's total less a usual gap, else the label's."""
    if not row["mem_bytes_plan"]:
        return None, "not fixed by the part"
    planned = int(row["mem_bytes_plan"])
    seen = re.match(r"\d+(?:\.\d+)?", row["cuda_context_total_gib_seen"])
    if seen:
        return min(planned, int(float(seen[0]) * GIB)), "context total, as reported by users"
    if row["mem_total_mib_reported"]:
        return planned - CONTEXT_GAP_BYTES, "driver total less 0.7 GiB"
    if row["class"] in ("cpu", "soc", "tpu", "asic"):
        return planned, "label"
    label = planned - planned // 16 if row["mem_type"].startswith("GDDR6") and row["class"] == "datacenter" else planned
    return label - UNREPORTED_GAP_BYTES, "label less ECC where it costs memory, less 0.5 GiB"


def _accelerator(row: dict[str, str]) -> Accelerator:
    nominal = _float(row["mem_bw_gbs"]) * 1e9
    usable, basis = _usable(row)
    peaks = (
        ("bf16", row["bf16_dense_tflops"]),
        ("fp16", row["fp16_dense_tflops"]),
        ("fp8", row["fp8_dense_tflops"]),
        ("int8", row["int8_dense_tops"]),
        ("fp4", row["fp4_dense_tflops"]),
    )
    int4 = (("int4", 2 * _float(row["int8_dense_tops"]) * 1e12),) if row["cc_or_target"] in INT4_TARGETS else ()
    return Accelerator(
        id=row["id"],
        name=row["name"],
        driver_name=row["device_name_string"],
        memory_bytes=int(row["mem_bytes_plan"]) if row["mem_bytes_plan"] else None,
        memory_basis=row["mem_basis"],
        usable_bytes=usable,
        usable_basis=basis,
        bandwidth_bytes_per_s=nominal,
        bandwidth_bound_bytes_per_s=max(nominal, _float(row["bw_bound_gbs"]) * 1e9),
        peak_flops=tuple((name, _float(value) * 1e12) for name, value in peaks) + int4,
        # vendors mean binary megabytes; the larger reading is also the safe one for a floor
        last_level_cache_bytes=int(_float(row["last_level_cache_mb"]) * 2**20),
        source=row["source"],
        confidence=row["confidence"],
        notes=row["notes"],
        vendor=row["vendor"],
        kind=row["class"],
        memory_label=row["mem_vendor_label"],
        memory_type=row["mem_type"],
        driver_total_bytes=int(row["mem_total_mib_reported"]) * 2**20 if row["mem_total_mib_reported"] else None,
        context_total_gib=row["cuda_context_total_gib_seen"],
        bandwidth_measured_bytes_per_s=_float(row["bw_measured_gbs"]) * 1e9,
        bandwidth_overclocked_bytes_per_s=_float(row["bw_overclock_gbs"]) * 1e9,
        compute_basis=row["compute_basis"],
        max_clock_ratio=_float(row["max_clock_ratio"]) or 1.0,
        fp16_accumulate_ratio=_float(row["fp16_acc_ratio"]) or 1.0,
        link_bytes_per_s=_float(row["scaleup_gbs_bidir_total"]) * 1e9 / 2,
    )


@cache
def table() -> tuple[Accelerator, ...]:
    """All parts of the table, in its order."""
    import csv  # only a device pays for it

    with (folder() / "accelerators.csv").open(newline="", encoding="utf-8") as file:
        return tuple(_accelerator(row) for row in csv.DictReader(file) if row["mem_bw_gbs"])


def by_driver_name(name: str) -> list[Accelerator]:
    """Every part whose driver reports exactly this name; several where the name does not tell them apart."""
    return [part for part in table() if name and name in part.driver_names]
