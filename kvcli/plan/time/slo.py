"""Published limits: `presets/slo.csv`, one row a limit, with its source."""

from __future__ import annotations

from functools import cache

from kvcli.errors import BadInput
from kvcli.model.presets import folder
from kvcli.plan.time.options import Slo


@cache
def limits() -> tuple[Slo, ...]:
    import csv  # only --slo pays for it

    with (folder() / "slo.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return tuple(Slo(row["name"], float(row["ttft_ms"]) / 1e3, float(row["tpot_ms"]) / 1e3, row["source"]) for row in rows)


def find_slo(text: str) -> Slo:
    """Raises BadInput that lists the known ones."""
    wanted = text.strip().lower()
    for each in limits():
        if each.name == wanted:
            return each
    known = ", ".join(each.name for each in limits())
    raise BadInput(f"--slo {text[:60]!r} is not a published limit that kvcli knows", hint=f"one of {known}", code="unknown_slo")
