"""The part that a manifest's node selectors ask for: labels of device plugins and of clouds, and names of machine types."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

from kvcli.errors import BadInput
from kvcli.hardware.accelerators import Accelerator, find
from kvcli.model.presets import folder


@cache
def _patterns() -> tuple[tuple[str, str], ...]:
    import csv  # only manifests that name a card pay for it

    with (folder() / "cards.csv").open(newline="", encoding="utf-8") as file:
        return tuple((row["pattern"], row["part"]) for row in csv.DictReader(file))


def part_of_card(label: str) -> Accelerator | None:
    """The one part of a label's value, None where it names none or several.

    `NVIDIA-L4` and `Tesla-T4-SHARED` are what NVIDIA's plugin makes of a driver's name; clouds have names of their own.
    """
    text = label.strip().lower()
    for pattern, part in _patterns():
        if fnmatchcase(text, pattern):
            return find(part)
    try:
        return find(label.strip().removesuffix("-SHARED").replace("-", " "))
    except BadInput:
        pass
    try:
        return find(text)
    except BadInput:
        return None
