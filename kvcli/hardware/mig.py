"""Slices of a part: NVIDIA's Multi-Instance GPU profiles, `presets/mig.csv`.

Fractions of memory, cache and multiprocessors are those of NVIDIA's MIG user guide; multiprocessor counts and memory are what
`nvidia-smi mig -lgip` prints (`lgip`) or users of a slice reported (`reported`), since both differ from the plain fractions. A 1g
profile with two memory slices is given two cache slices: the guide says one for some parts, and the larger keeps floors low.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.hardware.accelerators import GIB, Accelerator, by_driver_name
from kvcli.model.presets import folder

SOURCE = "NVIDIA MIG user guide (v580), for H20 the vGPU documentation; nvidia-smi mig -lgip captures"
#: Where nobody reported a slice's memory: what slices of other parts lack at most against their plain share.
UNREPORTED = Fraction(9, 10)


class Profile(NamedTuple):
    """Shares of a part's compute, bandwidth and cache; `multiprocessors` None and `memory_bytes` None where not reported."""

    part: str
    name: str
    compute: Fraction
    compute_text: str
    memory: Fraction
    cache: Fraction
    multiprocessors: Fraction | None
    memory_bytes: int | None
    memory_basis: str


@cache
def profiles() -> tuple[Profile, ...]:
    """All rows of the table, one for each part and profile."""
    import csv

    found = []
    with (folder() / "mig.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            size = int(Fraction(row["memory_gib"]) * GIB) if row["memory_gib"] else None
            units = Fraction(row["sms"]) if row["sms"] else None
            shares = Fraction(row["compute"]), row["compute"], Fraction(row["memory"]), Fraction(row["cache"])
            found += [Profile(part, row["profile"], *shares, units, size, row["memory_basis"]) for part in row["parts"].split()]
    return tuple(found)


def instance(part: Accelerator, profile: str) -> Accelerator:
    """That slice of the part, as a part. Raises BadInput that lists the part's profiles."""
    wanted = (
        profile.strip().lower().removeprefix("mig").strip(" -").partition("+")[0].removesuffix(".me")
    )  # media engines change nothing here
    own = [each for each in profiles() if each.part == part.id]
    if not own:
        raise BadInput(
            f"{part.id} has no MIG profile that kvcli knows",
            hint="parts with: " + ", ".join(dict.fromkeys(each.part for each in profiles())),
            code="no_mig",
        )
    for each in own:
        if each.name == wanted:
            return _slice(part, each)
    raise BadInput(
        f"{part.id} has no MIG profile {profile[:40]!r}", hint="it has " + ", ".join(each.name for each in own), code="unknown_mig_profile"
    )


def larger(part: Accelerator) -> list[tuple[str, Accelerator]]:
    """(profile, slice) of the same card with more memory than the slice `part`, the smallest first; empty where it is no slice."""
    whole = by_driver_name(part.driver_name.partition(" MIG ")[0]) if is_slice(part) else []
    own = [(each.name, _slice(whole[0], each)) for each in profiles() if len(whole) == 1 and each.part == whole[0].id]
    return sorted(
        (pair for pair in own if (pair[1].memory_bytes or 0) > (part.memory_bytes or 0)), key=lambda pair: pair[1].memory_bytes or 0
    )


def is_slice(part: Accelerator) -> bool:
    return " MIG " in part.name


def instance_of(name: str) -> Accelerator | None:
    """The slice of a name such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`; None where the name is not of this kind."""
    whole, found, profile = name.strip().partition(" MIG ")
    parts = by_driver_name(whole) if found else []
    return instance(parts[0], profile) if len(parts) == 1 else None


def _slice(part: Accelerator, profile: Profile) -> Accelerator:
    total = part.memory_bytes or 0
    memory = profile.memory_bytes or int(total * profile.memory * UNREPORTED)
    compute = profile.multiprocessors or profile.compute
    share = profile.memory
    # without a count of multiprocessors a slice may have up to one more compute slice's worth
    one = Fraction(1, int(profile.compute_text.partition("/")[2]))
    slack = 1.0 if profile.multiprocessors else float(min(Fraction(1), profile.compute + one) / profile.compute)
    basis = {
        "lgip": "instance memory, as nvidia-smi mig -lgip lists it",
        "reported": "instance memory, as reported by users",
        "share": "share of the driver's total less a tenth, which slices of other parts lack at most",
    }[profile.memory_basis]
    return replace(
        part,
        id=f"{part.id} {profile.compute_text} ({profile.name})",
        name=f"{part.name} MIG {profile.name}",
        driver_name=f"{part.driver_names[0]} MIG {profile.name}" if part.driver_names else "",
        memory_bytes=memory,
        memory_basis=basis,
        usable_bytes=memory,
        usable_basis=basis,
        bandwidth_bytes_per_s=part.bandwidth_bytes_per_s * float(share),
        bandwidth_bound_bytes_per_s=part.bandwidth_bound_bytes_per_s * float(share),
        bandwidth_measured_bytes_per_s=0.0,
        peak_flops=tuple((name, rate * float(compute)) for name, rate in part.peak_flops),
        last_level_cache_bytes=int(part.last_level_cache_bytes * profile.cache),
        max_clock_ratio=part.max_clock_ratio * slack,
        driver_total_bytes=memory if profile.memory_basis == "lgip" else None,
        context_total_gib="",
        link_bytes_per_s=0.0,  # slices do not reach each other's memory
        source=f"{part.source}; {SOURCE}",
        notes=f"{profile.memory} of the memory's bandwidth, {compute} of the multiprocessors, {profile.cache} of the cache",
    )
