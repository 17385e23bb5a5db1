"""`kvcli pull`: fetches a preset's weights into the cache folder, checked by SHA-256."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcli.cli import complete
from kvcli.cli.weights import DEFAULT_MODEL, ensure_weights
from kvcli.model import presets

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def pull(
    model: Annotated[str, typer.Argument(help="Preset whose weights to fetch.", autocompletion=complete.models)] = DEFAULT_MODEL,
) -> None:
    """Fetch a model's weights, checked by SHA-256.

    They go into the cache folder: KVCLI_HOME, or else the platform's.
    """
    preset = presets.find(model)
    if preset is None:
        raise presets.unknown(model)
    print(ensure_weights(preset, offline=False))
