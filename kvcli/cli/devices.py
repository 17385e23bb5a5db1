"""`kvcli devices`: the parts that can be named, `match` for the name a driver reports, `show` for one, `--measure` for this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcli.cli import complete
from kvcli.errors import BadInput

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


def _words(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete.after_verb({"show": complete.devices, "match": complete.devices}, ctx.params.get("words") or [], incomplete)


@app.command()
def devices(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[show ID | match NAME]", help="Without words, all parts are listed.", show_default=False, autocompletion=_words
        ),
    ] = None,
    vendor: Annotated[str | None, typer.Option(metavar="NAME", help="Only parts of this vendor: nvidia, amd, apple, ...")] = None,
    kind: Annotated[str | None, typer.Option("--class", metavar="CLASS", help="Only this class: datacenter, consumer, cpu, ...")] = None,
    min_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Only parts with at least this: 40GiB.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="With match: what the driver reports, to tell parts apart.")] = None,
    mig: Annotated[str | None, typer.Option(metavar="PROFILE", help="With show or match: this MIG slice of it.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine's read bandwidth and keep it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values on stdout.")] = False,
    as_md: Annotated[bool, typer.Option("--md", help="A Markdown table on stdout.")] = False,
) -> None:
    """List the parts that --device takes, or show one.

    `match NAME` finds the part whose driver reports NAME, and lists candidates where several do. `local` and `cpu` are this machine's.

    Example: kvcli devices match "NVIDIA H100 80GB HBM3"
    """
    from kvcli.report import device_table

    if sum((as_json, as_csv, as_md)) > 1:
        raise BadInput("--json, --csv and --md exclude each other", code="usage")
    if measure:
        if words or vendor or kind or min_memory or memory or mig:
            raise BadInput("--measure takes no words and no filter", hint="kvcli devices --measure", code="usage")
        part = _measured()
    elif words:
        if vendor or kind or min_memory:
            raise BadInput("--vendor, --class and --min-memory are for the list", hint="kvcli devices --vendor nvidia", code="usage")
        part = _one(words, memory, mig)
    else:
        if memory or mig:
            raise BadInput("--memory and --mig need a device", hint="kvcli devices match NAME --memory 80GiB", code="usage")
        parts = _filtered(vendor, kind, min_memory)
        if as_json:
            _print_json(device_table.listing_document(parts))
        else:
            device_table.LISTS["csv" if as_csv else "md" if as_md else ""](parts)
        return
    if as_json:
        _print_json(device_table.one_document(part))
    elif as_csv or as_md:
        device_table.LISTS["csv" if as_csv else "md"]([part])
    else:
        device_table.print_one(part)


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, separators=(",", ":"), allow_nan=False))


def _one(words: list[str], memory: str | None, mig: str | None) -> Accelerator:
    """The part that the words name: `show ID`, `match NAME`, or an id or name alone. A name may come unquoted."""
    from kvcli.units import parse_size

    verb = words[0] if words[0] in ("show", "match") else ""
    name = " ".join(words[1:] if verb else words).strip()
    if not name:
        raise BadInput(f"devices {verb} needs a name", hint=f"kvcli devices {verb} h100-sxm5-80", code="usage")
    if verb == "match":
        from kvcli.hardware.match import one

        part = one(name, 0 if memory is None else parse_size(memory, "--memory"))
    else:
        if memory:
            raise BadInput("--memory goes with match", hint=f"kvcli devices match {name!r} --memory {memory}", code="usage")
        from kvcli.cli.plan_request import device_of

        part = device_of(name)
    if mig is None:
        return part
    from kvcli.hardware.mig import instance

    return instance(part, mig)


def _filtered(vendor: str | None, kind: str | None, min_memory: str | None) -> list[Accelerator]:
    """Rows of the table. A vendor or class that none has is an error that lists those there are; parts of any size pass a size."""
    from kvcli.hardware.accelerators import table
    from kvcli.units import parse_size

    parts = list(table())
    for option, wanted, field in (("--vendor", vendor, "vendor"), ("--class", kind, "kind")):
        if wanted is not None:
            known = sorted({getattr(part, field).lower() for part in table()})
            if wanted.strip().lower() not in known:
                raise BadInput(f"{option} {wanted[:40]!r} is none of the table's", hint=", ".join(known), code="unknown_filter")
            parts = [part for part in parts if getattr(part, field).lower() == wanted.strip().lower()]
    if min_memory is not None:
        least = parse_size(min_memory, "--min-memory")
        parts = [part for part in parts if part.memory_bytes is None or part.memory_bytes >= least]
    return parts


def _measured() -> Accelerator:
    """Measures this machine's processor now, keeps the rate, and gives it as a part."""
    from datetime import UTC, datetime

    from kvcli.errors import CannotRunHere, missing_extra
    from kvcli.hardware.machine import cpu_part, keep_rate

    try:
        from kvcli.measure.bandwidth import cpu_read_rate
    except ImportError as error:
        raise missing_extra("run", error.name or "torch") from None

    measured = cpu_read_rate()
    if measured is None:
        raise CannotRunHere("there is too little free memory to measure the read bandwidth", hint="1 GiB is needed", code="out_of_memory")
    rate, threads = measured
    keep_rate(rate.document(), threads, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    return cpu_part()
