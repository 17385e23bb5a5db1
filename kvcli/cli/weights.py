"""Shared by commands that need weights or an extra: finding them, fetching them, and saying so."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from kvcli.errors import BadInput, missing_extra
from kvcli.model.presets import Preset
from kvcli.model.store import WeightsSource, present, target, verify
from kvcli.units import format_bytes

#: The model that `run` and `pull` take when none is named.
DEFAULT_MODEL = "smollm2-135m"


def require_run_extra() -> None:
    """Raises CannotRunHere where a package of the extra `run` is missing."""
    for package in ("torch", "numpy", "gguf", "tokenizers", "jinja2"):
        if find_spec(package) is None:
            raise missing_extra("run", package)


def weights_source(preset: Preset) -> WeightsSource:
    """Where a preset's weights can be had. Raises BadInput for presets that are shapes only."""
    if "weights" not in preset.block:
        raise BadInput(
            f"kvcli has no weights for {preset.name}, only its shape",
            hint=f"pass a .gguf file, or kvcli run {preset.name} --random-weights",
            code="no_weights",
        )
    return WeightsSource.from_json(preset.block["weights"], f"preset {preset.name}")


def ensure_weights(preset: Preset, offline: bool) -> Path:
    """The preset's file, fetched on first use. Says on stderr what it is about to fetch."""
    from kvcli.model import fetch
    from kvcli.report.progress import byte_bar

    source = weights_source(preset)
    found = present(source) or verify(source)
    if found is not None:
        return found
    if offline:
        raise fetch.offline_error(preset.name, source)
    print(f"fetching {preset.name} ({format_bytes(source.size_bytes)}) into {target(source)}", file=sys.stderr)
    with byte_bar(preset.name) as progress:
        return fetch.fetch(source, progress)
