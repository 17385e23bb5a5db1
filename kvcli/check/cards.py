"""The part that a manifest's node selectors ask for: labels of device plugins and of clouds, and names of machine types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache

from kvcli.check.nodes import Word
from kvcli.errors import BadInput
from kvcli.hardware.accelerators import Accelerator
from kvcli.hardware.match import find
from kvcli.model.presets import folder

#: what the plugin puts behind a card's name where all its slices are of one profile
_SLICE = re.compile(r"-MIG-\d+g\.\d+gb[\w.+]*$")


@cache
def _patterns() -> tuple[tuple[str, str, str], ...]:
    import csv  # only manifests that name a card pay for it

    with (folder() / "cards.csv").open(newline="", encoding="utf-8") as file:
        return tuple((row["pattern"], row["part"], row["devices"]) for row in csv.DictReader(file))


def part_of_card(label: str) -> Accelerator | None:
    """The one part of a label's value, None where it names none or several; of a MIG slice the whole card.

    `NVIDIA-L4` and `Tesla-T4-SHARED` are what NVIDIA's plugin makes of a driver's name; clouds have names of their own.
    """
    label = _SLICE.sub("", label.strip().removesuffix("-SHARED"))
    text = label.lower()
    for pattern, part, _ in _patterns():
        if fnmatchcase(text, pattern):
            return find(part)
    try:
        return find(label.replace("-", " "))
    except BadInput:
        pass
    try:
        return find(text)
    except BadInput:
        return None


def devices_of(machine: str) -> int | None:
    """How many devices a cloud's machine type has; None where the table does not say, as for names of cards."""
    text = machine.strip().lower()
    found = next((devices for pattern, _, devices in _patterns() if fnmatchcase(text, pattern)), "")
    return int(found) if found else None


def common(groups: Sequence[Sequence[Word]]) -> list[Word]:
    """The words of all groups whose part every group allows. A word of no known part excludes nothing and is kept."""
    groups = [group for group in groups if group]
    if len(groups) < 2:
        return [word for group in groups for word in group]
    parts = {word.text: part.id if (part := part_of_card(word.text)) else None for group in groups for word in group}
    allowed = [{parts[word.text] for word in group} for group in groups]
    limits = [each for each in allowed if None not in each]
    return [word for group in groups for word in group if parts[word.text] is None or all(parts[word.text] in each for each in limits)]
