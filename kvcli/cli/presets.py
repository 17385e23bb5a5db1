"""`kvcli presets`: the models that can be named."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def presets(as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False) -> None:
    """List the models that can be named."""
    from kvcli.model import presets as known

    specs = [known.load(name).spec() for name in known.names()]
    if as_json:
        import json

        rows = [
            {"name": s.name, "model_type": s.model_type, "parameters": s.parameters, "max_context_tokens": s.max_context_tokens}
            for s in specs
        ]
        print(json.dumps({"schema_version": 1, "presets": rows}, separators=(",", ":")))
        return
    from kvcli.report.table import Column, print_terminal
    from kvcli.units import format_tokens

    columns = [Column("name", right=False), Column("type", right=False), Column("parameters"), Column("trained context")]
    print_terminal(columns, [[s.name, s.model_type, f"{s.parameters:,}", format_tokens(s.max_context_tokens)] for s in specs])
