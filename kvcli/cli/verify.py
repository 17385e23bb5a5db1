"""`kvcli verify`: the formula held against memory, logits and rotations; exit 1 on a mismatch."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from kvcli.cli import complete
from kvcli.cli.weights import DEFAULT_MODEL, require_run_extra
from kvcli.errors import EXIT_NO
from kvcli.model.cut import cut_layers
from kvcli.model.hub.access import HubAccess
from kvcli.model.resolve import resolve
from kvcli.units import parse_counts

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def verify(
    model: Annotated[
        str, typer.Argument(help="Preset, config.json, .gguf or hub id to check; weights are random.", autocompletion=complete.models)
    ] = DEFAULT_MODEL,
    ctx: Annotated[str, typer.Option(metavar="TOKENS", help="Contexts at which the cache's memory is checked.")] = "256,512,1024",
    layers: Annotated[int | None, typer.Option(metavar="N", help="Only the first N layers.")] = None,
    dtype: Annotated[
        str, typer.Option(metavar="T", help="fp32, bf16 or fp16; logits are compared in fp32 only.", autocompletion=complete.compute_types)
    ] = "fp32",
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:1.", autocompletion=complete.torch_devices)] = "auto",
    offline: Annotated[bool, typer.Option("--offline", help="Never use the network; hub ids come from the cache.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Prove the plan on this machine.

    Cache growth to the byte, cached logits against a full pass, and the properties of rotary positions.

    Example: kvcli verify llama3.2-1b --ctx 1024,2048,4096
    """
    contexts = parse_counts(ctx, "--ctx")
    spec = resolve(model, hub=HubAccess(lambda text: print(text, file=sys.stderr, flush=True), offline, headers=False))
    if layers is not None:
        spec = cut_layers(spec, layers)
    require_run_extra()
    from kvcli.measure.devices import pick_device, pick_dtype
    from kvcli.report.verify_table import header, line
    from kvcli.verify.checks import Check
    from kvcli.verify.verify import failure, verify_model

    torch_device = pick_device(device)

    def show(check: Check) -> None:
        print(line(check.name, check.predicted, check.observed, check.tolerance, check.unit, check.matches), flush=True)

    if not as_json:
        print(header(f"{spec.name} on {torch_device}, random {dtype} weights"), flush=True)
    answer = verify_model(spec, contexts, torch_device, pick_dtype(dtype, torch_device), None if as_json else show)
    if as_json:
        print(json.dumps(answer.document(), separators=(",", ":"), allow_nan=False))
    for skipped in () if as_json else answer.skipped:
        print(f"skipped {skipped.name}: {skipped.reason}")
    problem = failure(answer)
    if problem is not None:
        print(f"kvcli: {problem}", file=sys.stderr)
        raise typer.Exit(EXIT_NO)
