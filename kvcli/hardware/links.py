"""How fast parts of the table send to each other: one direction of the scale-up link."""

from __future__ import annotations

from functools import cache

from kvcli.model.presets import folder


@cache
def _rates() -> dict[str, float]:
    import csv  # only several devices pay for it

    with (folder() / "accelerators.csv").open(newline="", encoding="utf-8") as file:
        rows = [(row["id"], row["scaleup_gbs_bidir_total"]) for row in csv.DictReader(file)]
    # the table has the sum of both directions
    return {name: float(text) / 2 * 1e9 for name, text in rows if text}


def link_bytes_per_s(device_id: str) -> float:
    """Bytes/s that one part can receive from all others together; 0 where the table knows no link."""
    return _rates().get(device_id, 0.0)
