"""`kvcli presets`: the models that can be named; `kvcli presets show NAME` their layers and sizes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kvcli.cli import complete
from kvcli.errors import BadInput

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


def _words(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete.after_verb({"show": complete.models}, ctx.params.get("words") or [], incomplete)


@app.command()
def presets(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[show NAME]", help="Without words, all models are listed.", autocompletion=_words)
    ] = None,
    family: Annotated[str | None, typer.Option(metavar="TYPE", help="Only models whose model_type starts with this.")] = None,
    max_params: Annotated[str | None, typer.Option(metavar="N", help="Only models of at most this size: 8B, 500M.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List the models that can be named, or show one.

    `show NAME` prints layer groups, parameters and sources.

    Example: kvcli presets --family qwen --max-params 10B
    """
    from kvcli.report import preset_table

    if words:
        if words[0] != "show" or len(words) != 2 or family or max_params:
            raise BadInput("presets takes no words, or `show NAME`", hint="kvcli presets show llama3-8b", code="usage")
        document, show = preset_table.one(words[1])
    else:
        document, show = preset_table.listing(family, max_params)
    if as_json:
        print(json.dumps(document, separators=(",", ":")))
    else:
        show()
