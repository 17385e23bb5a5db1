"""From the name that a driver or a person gives to one part of the table. Ambiguity asks; nothing is guessed from a piece of a name.

First the exact name a driver reports, then the same words in another spelling; the memory size tells parts of one name apart.
"""

from __future__ import annotations

import re

from kvcli.errors import BadInput
from kvcli.hardware.accelerators import Accelerator, by_driver_name, table

#: How far a driver's total may lie from the table's: error correction of GDDR6 takes 1/16, a label is in other units.
MEMORY_TOLERANCE = 0.08
#: Words that say who made it, and nothing about which part it is.
_MAKERS = frozenset(("nvidia", "amd", "intel", "apple", "corporation", "tesla", "r", "tm", "graphics", "gpu"))
MOST_SHOWN = 12


def words(name: str) -> frozenset[str]:
    """The words of a name that tell parts apart; `SXM4-80GB`, `sxm4 80gb` and `SXM4 80 GB` are the same."""
    spelt = re.sub(r"(\d+)\s*(gb?)\b", r"\1\2", re.sub(r"[^a-z0-9.]+", " ", name.lower()))
    return frozenset(spelt.split()) - _MAKERS


def _agrees(part: Accelerator, memory_bytes: int) -> bool:
    return part.memory_bytes is not None and abs(part.memory_bytes - memory_bytes) <= MEMORY_TOLERANCE * part.memory_bytes


def _nearest(named: list[Accelerator], memory_bytes: int) -> list[Accelerator]:
    """Those whose memory agrees; of several the one within 2%, if it is one."""
    agreeing = [part for part in named if _agrees(part, memory_bytes)]
    closest = [part for part in agreeing if part.memory_bytes and abs(part.memory_bytes - memory_bytes) <= 0.02 * part.memory_bytes]
    return closest if len(agreeing) > 1 and closest else agreeing


def candidates(name: str, memory_bytes: int = 0) -> list[Accelerator]:
    """One part: it is that. Several: the name (and memory) fits each of them. None: no part has this name.

    `memory_bytes` is what the driver reports, or 0 where it is not known; a size that contradicts the name leaves none.
    """
    named = by_driver_name(name.strip())
    if not named:
        wanted = words(name)
        named = [part for part in table() if wanted and wanted in (words(part.name), *map(words, part.driver_names))]
    if memory_bytes and any(part.memory_bytes for part in named):
        return _nearest(named, memory_bytes)
    return named


def similar(name: str) -> list[Accelerator]:
    """Parts that a piece of a name may mean, to ask about; nearest spellings where no part has all of its words."""
    wanted = words(name)
    found = [part for part in table() if wanted and wanted <= words(f"{part.name} {part.driver_name} {part.id}")]
    found += [part for part in table() if name.strip() and part.id.startswith(name.strip().lower()) and part not in found]
    if found:
        return found
    import difflib

    near = difflib.get_close_matches(name.lower(), [part.id for part in table()], n=4, cutoff=0.5)
    return [part for part in table() if part.id in near]


def one(name: str, memory_bytes: int = 0) -> Accelerator:
    """The one part of that name. Raises BadInput: `ambiguous_device` with all candidates, `unknown_device` with the nearest."""
    from kvcli.hardware.mig import instance_of  # a slice reports its part and its profile

    if sliced := instance_of(name):
        return sliced
    named = candidates(name, memory_bytes)
    if len(named) == 1:
        return named[0]
    if named:
        listed = ", ".join(part.id for part in named)
        raise BadInput(f"{name[:80]!r} is what several parts report: {listed}", hint="give one of these ids", code="ambiguous_device")
    near = similar(name)
    what = f"no device is called {name[:80]!r}"
    if memory_bytes and candidates(name):
        what += f" and has {memory_bytes / 2**30:.1f} GiB"
    listed = ", ".join(part.id for part in near[:MOST_SHOWN])
    raise BadInput(what, hint=f"did you mean {listed}?" if near else "kvcli devices lists all", code="unknown_device")


def find(text: str, parts: tuple[Accelerator, ...] = ()) -> Accelerator:
    """The part of that id, or of that driver name, among `parts` (a user's) and the table.

    Raises BadInput that lists the nearest or all candidates.
    """
    wanted = text.strip()
    for part in (*parts, *table()):
        if part.id.lower() == wanted.lower():
            return part
    return one(wanted)
