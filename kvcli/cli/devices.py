"""`kvcli devices`: the parts that can be named."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def devices(
    name: Annotated[str | None, typer.Argument(help="Show one part, by its id or the exact name its driver reports.")] = None,
) -> None:
    """List the parts that --device takes, or show one."""
    from kvcli.hardware.accelerators import find, table
    from kvcli.report.table import Column, print_terminal
    from kvcli.units import format_bandwidth, format_bytes, format_flops

    if name is not None:
        part = find(name)
        memory = [] if part.memory_bytes is None else [["memory", f"{format_bytes(part.memory_bytes)} ({part.memory_basis})"]]
        usable = [] if part.usable_bytes is None else [["usable", f"{format_bytes(part.usable_bytes)} ({part.usable_basis})"]]
        rows = [
            ["id", part.id],
            ["name", part.name],
            ["driver name", part.driver_name or "unknown"],
            *memory,
            *usable,
            ["nominal bandwidth", format_bandwidth(part.bandwidth_bytes_per_s)],
            ["bound, used for floors", format_bandwidth(part.bandwidth_bound_bytes_per_s)],
            *([f"dense {unit} peak", f"{format_flops(rate)}/s"] for unit, rate in part.peak_flops if rate),
            ["last-level cache", format_bytes(part.last_level_cache_bytes) if part.last_level_cache_bytes else "unknown, taken as 0"],
            ["source", f"{part.source} (confidence {part.confidence})"],
            *([["notes", part.notes]] if part.notes else []),
        ]
        print_terminal([Column("", right=False), Column("", right=False)], rows)
        return
    rows = [
        [p.id, p.name, format_bytes(p.memory_bytes) if p.memory_bytes else "any", format_bandwidth(p.bandwidth_bytes_per_s), p.confidence]
        for p in table()
    ]
    print_terminal(
        [Column("id", right=False), Column("name", right=False), Column("memory"), Column("bandwidth"), Column("confidence")], rows
    )
