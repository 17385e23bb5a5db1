"""`kvcli plan`: options to requests, one call, one print."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvcli import dtypes
from kvcli.errors import BadInput, Notice
from kvcli.model.hub_access import HubAccess
from kvcli.model.resolve import resolve
from kvcli.model.spec import ModelSpec
from kvcli.plan.document import plans_document
from kvcli.plan.plan import Plan, build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.split import ALONE, Split
from kvcli.plan.storage.policy import ENGINES, EngineOptions, policy
from kvcli.plan.weights import parse_weights
from kvcli.plan.workload import Workload
from kvcli.units import check_points, parse_count, parse_counts

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator
    from kvcli.plan.sharing.offload import Offload
    from kvcli.plan.speculative import Speculation

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def plan(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Preset, config.json, folder, .gguf file or hub id owner/name.")],
    ctx: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Tokens of each sequence in the cache: 32k, 4k,32k, 4k..128k*2.")
    ] = None,
    batch: Annotated[str, typer.Option(metavar="N", help="Sequences held together; lists and ranges sweep.")] = "1",
    prompt_tokens: Annotated[str | None, typer.Option(metavar="TOKENS", help="Prompt length for the prefill floor (default: ctx).")] = None,
    kv_dtype: Annotated[str, typer.Option(metavar="T|K:V", help="Type of the cache: fp16, bf16, fp8, int8, q8_0, ...")] = "auto",
    weights: Annotated[str, typer.Option(metavar="T", help="Type of the weights, or a mix: q4_k_m (default: the file's).")] = "auto",
    device: Annotated[list[str] | None, typer.Option(metavar="NAME|local", help="Part to hold it against; repeatable.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=f"Whose storage rule, repeatable: {', '.join(ENGINES)} (default: ideal).")
    ] = None,
    devices: Annotated[str | None, typer.Option(metavar="N", help="How many share the model; alone it means --tp N.")] = None,
    tp: Annotated[str | None, typer.Option(metavar="N", help="Tensor parallel: devices that share each layer by heads.")] = None,
    pp: Annotated[str | None, typer.Option(metavar="N", help="Pipeline stages (llama.cpp: devices of its layer split).")] = None,
    ep: Annotated[str | None, typer.Option(metavar="N", help="Ranks over which routed experts are spread whole.")] = None,
    dp_attention: Annotated[
        str | None, typer.Option(metavar="[N]", help="Groups of the tensor ranks that keep sequences of their own (default: all).")
    ] = None,
    dcp: Annotated[str | None, typer.Option(metavar="N", help="Ranks among which a sequence's tokens are dealt.")] = None,
    ngl: Annotated[str | None, typer.Option(metavar="N", help="llama.cpp: layers on the device, the output counted as one.")] = None,
    n_cpu_moe: Annotated[str | None, typer.Option(metavar="N", help="llama.cpp: first layers whose experts stay on the host.")] = None,
    speculative: Annotated[
        str | None,
        typer.Option(metavar="N[:WHAT]", help="Tokens drafted before each step: by its own blocks (N:1), a model, or ngram."),
    ] = None,
    cache: Annotated[str, typer.Option(metavar="KIND", help="For --engine kvcli: static, dynamic or none.")] = "static",
    engine_version: Annotated[str | None, typer.Option(metavar="V", help="Of the engine, where versions store differently.")] = None,
    block_size: Annotated[str | None, typer.Option(metavar="TOKENS", help="vllm, trtllm: tokens of a block.")] = None,
    page_size: Annotated[str | None, typer.Option(metavar="TOKENS", help="sglang: tokens of a page.")] = None,
    max_num_batched_tokens: Annotated[str | None, typer.Option(metavar="TOKENS", help="vllm: tokens in flight.")] = None,
    ubatch: Annotated[str | None, typer.Option(metavar="TOKENS", help="llama.cpp: physical batch.")] = None,
    parallel: Annotated[str | None, typer.Option(metavar="N", help="llama.cpp: slots (default: --batch).")] = None,
    kv_unified: Annotated[bool, typer.Option("--kv-unified", help="llama.cpp: one buffer for all slots.")] = False,
    swa_full: Annotated[bool, typer.Option("--swa-full", help="llama.cpp: windows at full length.")] = False,
    static: Annotated[bool, typer.Option("--static", help="For --engine transformers: its preallocated cache.")] = False,
    encoder_tokens: Annotated[str | None, typer.Option(metavar="TOKENS", help="Encoder output that cross-attention looks at.")] = None,
    assume: Annotated[str | None, typer.Option(metavar="KIND", help="Plan an unknown model_type as plain attention: gqa.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never use the network; hub ids come from the cache.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print each equation with its numbers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values on stdout.")] = False,
    as_md: Annotated[bool, typer.Option("--md", help="A Markdown table on stdout.")] = False,
) -> None:
    """Predict a KV cache's bytes and its floors.

    Example: kvcli plan llama3-8b --ctx 32k --device h100-sxm5-80
    """
    if sum((explain, as_json, as_csv, as_md)) > 1:
        raise BadInput("--explain, --json, --csv and --md exclude each other", code="usage")
    human = not (as_json or as_csv or as_md)
    if assume not in (None, "gqa"):
        raise BadInput(f"--assume {assume!r} is not an assumption kvcli makes", hint="--assume gqa", code="usage")
    asked = None if weights.strip().lower() == "auto" else parse_weights(weights)
    hub = HubAccess(lambda text: print(text, file=sys.stderr, flush=True), offline, headers=asked is None)
    specs = [resolve(model, assume, hub) for model in models]
    parts, local = _devices(device, look=human)
    prompt = 0 if prompt_tokens is None else parse_count(prompt_tokens, "--prompt-tokens")
    encoder = 0 if encoder_tokens is None else parse_count(encoder_tokens, "--encoder-tokens")
    options = EngineOptions(
        cache,
        static,
        engine_version,
        block_size=_count(block_size, "--block-size"),
        page_size=_count(page_size, "--page-size"),
        ubatch=_count(ubatch, "--ubatch"),
        parallel=_count(parallel, "--parallel"),
        kv_unified=kv_unified,
        swa_full=swa_full,
        max_num_batched_tokens=_count(max_num_batched_tokens, "--max-num-batched-tokens"),
        drafted=0 if speculative is None else parse_count(speculative.partition(":")[0], "--speculative"),
    )
    offload = _offload(ngl, n_cpu_moe)
    split = _split(devices, tp, pp, ep, dp_attention, dcp)
    rules = [policy(name, options) for name in dict.fromkeys(engine or ["ideal" if offload is None else "llama.cpp"])]
    speculations = {spec.name: _speculation(spec, speculative, options.drafted, hub) for spec in specs}
    batches = parse_counts(batch, "--batch")
    contexts = {spec.name: _contexts(spec, ctx, human and not explain) for spec in specs}
    check_points(sum(len(each) for each in contexts.values()) * len(batches) * len(parts) * len(rules))
    requests = [
        PlanRequest(
            spec=spec,
            workload=Workload(context, sequences, prompt, encoder),
            engine=rule,
            kv=None if kv_dtype.strip().lower() == "auto" else dtypes.parse_kv(kv_dtype),
            weights=asked,
            device=part,
            split=split,
            offload=offload,
            speculation=speculations[spec.name],
        )
        for spec in specs
        for context in contexts[spec.name]
        for sequences in batches
        for part in parts
        for rule in rules
    ]
    plans = [build(request) for request in requests]
    if as_json:
        # one string first, so that an interrupt cannot leave half a document
        print(json.dumps(plans_document(plans), separators=(",", ":"), allow_nan=False))
    else:
        _print_human(plans, explain, as_csv, as_md, local)


def _count(text: str | None, option: str) -> int | None:
    return None if text is None else parse_count(text, option)


def _split(devices: str | None, tp: str | None, pp: str | None, ep: str | None, dp_attention: str | None, dcp: str | None) -> Split:
    if (devices, tp, pp, ep, dp_attention, dcp) == (None,) * 6:
        return ALONE
    from kvcli.plan.sharing.checks import read_split

    groups = 0 if dp_attention == "all" else _count(dp_attention, "--dp-attention")
    return read_split(
        _count(devices, "--devices"), _count(tp, "--tp"), _count(pp, "--pp"), _count(ep, "--ep"), groups, _count(dcp, "--dcp")
    )


def _offload(ngl: str | None, n_cpu_moe: str | None) -> Offload | None:
    if ngl is None and n_cpu_moe is None:
        return None
    from kvcli.plan.sharing.offload import Offload

    return Offload(_layers(ngl, "--ngl"), _layers(n_cpu_moe, "--n-cpu-moe") or 0)


def _speculation(spec: ModelSpec, text: str | None, drafted: int, hub: HubAccess) -> Speculation | None:
    if text is None:
        return None
    from kvcli.plan.speculative import speculate

    what = text.partition(":")[2].strip()
    if what and not what.isdigit() and what.lower() != "ngram":
        return speculate(spec, drafted, draft=resolve(what, None, hub))
    return speculate(spec, drafted, blocks=int(what[:9]) if what.isdigit() else None, ngram=what.lower() == "ngram")


def _layers(text: str | None, option: str) -> int | None:
    """A number of layers, which may be 0."""
    return 0 if text is not None and text.strip() == "0" else _count(text, option)


def _devices(asked: list[str] | None, look: bool) -> tuple[list[Accelerator | None], list[Notice]]:
    """The parts to plan for. Without a name, people get the GPU of this machine; documents never depend on it."""
    if asked:
        from kvcli.hardware.accelerators import find
        from kvcli.hardware.local import local_part

        return [local_part() if name.strip().lower() == "local" else find(name) for name in asked], []
    if look:
        from kvcli.hardware.local import local_gpus

        gpus = local_gpus()
        if gpus and gpus[0].part:
            return [gpus[0].part], [
                Notice("local_device", f"this machine's GPU, {gpus[0].driver_name}, was taken; name others with --device")
            ]
        if gpus:
            return [None], [Notice("unknown_device", f"this machine's GPU, {gpus[0].driver_name}, is not in the table of parts")]
    return [None], []


def _contexts(spec: ModelSpec, asked: str | None, column: bool) -> list[int]:
    """The contexts asked for; without any the trained maximum, and for people a column of lengths up to it."""
    if asked is not None:
        return parse_counts(asked, "--ctx")
    longest = spec.max_context_tokens
    if not column:
        return [longest]
    lengths = []
    length = 1024
    while length < longest:
        lengths.append(length)
        length *= 4 if longest > 65536 else 2
    return [*lengths, longest]


def _print_human(plans: list[Plan], explain: bool, as_csv: bool, as_md: bool, local: list[Notice]) -> None:
    from kvcli.report import explain as explained
    from kvcli.report import plan_table

    if as_csv:
        plan_table.print_csv(plans)
    elif as_md:
        plan_table.print_markdown(plans)
    elif explain:
        explained.print_equations(plans)
    else:
        plan_table.print_terminal(plans)
    notices = [notice for plan in plans for notice in plan.notices] + local
    for code in dict.fromkeys(notice.code for notice in notices):
        messages = list(dict.fromkeys(notice.message for notice in notices if notice.code == code))
        more = f" (and {len(messages) - 1} more notes of this kind)" if len(messages) > 1 else ""
        print(f"note: {messages[0]}{more}", file=sys.stderr)
