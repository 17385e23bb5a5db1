"""`kvcli plan`: options to requests, one call, one print."""

from __future__ import annotations

import gc
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvcli import dtypes
from kvcli.cli import complete
from kvcli.cli.plan_request import budget_of, built, contexts_of, count, devices_of, offload_of, speculation_of, split_of, sweep_of
from kvcli.errors import BadInput, Notice
from kvcli.model.hub.access import HubAccess
from kvcli.model.resolve import resolve
from kvcli.plan.document import plans_document
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import ENGINES, EngineOptions, policy
from kvcli.plan.weights import parse_weights
from kvcli.plan.workload import Workload
from kvcli.units import check_points, parse_count, parse_counts

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator

#: From so many plans on the collector of cycles is switched off.
MANY_POINTS = 500

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def plan(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="Preset, config.json, folder, .gguf file or hub id owner/name.", autocompletion=complete.models
        ),
    ],
    ctx: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Tokens of each sequence in the cache: 32k, 4k,32k, 4k..128k*2.")
    ] = None,
    batch: Annotated[str, typer.Option(metavar="N", help="Sequences held together; lists and ranges sweep.")] = "1",
    prompt_tokens: Annotated[str | None, typer.Option(metavar="TOKENS", help="Prompt length for the prefill floor (default: ctx).")] = None,
    new_tokens: Annotated[str | None, typer.Option(metavar="N", help="Tokens generated after the prompt: floors over all (1).")] = None,
    shared_prefix: Annotated[str | None, typer.Option(metavar="TOKENS", help="With which all sequences begin.")] = None,
    uncached_tokens: Annotated[str | None, typer.Option(metavar="TOKENS", help="Of the prompt, to prefill (default: all).")] = None,
    host_bandwidth: Annotated[str | None, typer.Option(metavar="RATE", help="Of the host's memory, with --ngl: 80GB/s.")] = None,
    efficiency: Annotated[str | None, typer.Option(metavar="SHARE", help="Estimate at this share of the floors' rates: 0.7.")] = None,
    calibrate: Annotated[str | None, typer.Option(metavar="FILE", help="Estimate from records measured on the device.")] = None,
    slo: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Published limits: mlperf:llama3.1-8b-interactive, ...", autocompletion=complete.limits),
    ] = None,
    price_hour: Annotated[str | None, typer.Option(metavar="PRICE", help="Of all devices together: least cost of 1M tokens.")] = None,
    kv_dtype: Annotated[
        str, typer.Option(metavar="T|K:V", help="Type of the cache: fp16, bf16, fp8, int8, q8_0, ...", autocompletion=complete.kv_types)
    ] = "auto",
    weights: Annotated[
        str,
        typer.Option(
            metavar="T", help="Type of the weights, or a mix: q4_k_m (default: the file's).", autocompletion=complete.weights_types
        ),
    ] = "auto",
    device: Annotated[
        list[str] | None, typer.Option(metavar="NAME|local", help="Part to hold it against; repeatable.", autocompletion=complete.devices)
    ] = None,
    mig: Annotated[str | None, typer.Option(metavar="PROFILE", help="A MIG slice of the device: 3g.40gb.")] = None,
    device_file: Annotated[str | None, typer.Option(metavar="FILE", help="A CSV file of parts of your own.")] = None,
    bandwidth: Annotated[str | None, typer.Option(metavar="RATE", help="Your own figure for the device: 3.35TB/s.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Your own figure for what the device has: 80GiB.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help=f"Whose storage rule, repeatable: {', '.join(ENGINES)} (default: ideal).", autocompletion=complete.engines
        ),
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
    cache: Annotated[
        str, typer.Option(metavar="KIND", help="For --engine kvcli: static, dynamic or none.", autocompletion=complete.caches)
    ] = "static",
    engine_version: Annotated[str | None, typer.Option(metavar="V", help="Of the engine, where versions store differently.")] = None,
    block_size: Annotated[str | None, typer.Option(metavar="TOKENS", help="vllm, trtllm: tokens of a block.")] = None,
    page_size: Annotated[str | None, typer.Option(metavar="TOKENS", help="sglang: tokens of a page.")] = None,
    max_num_batched_tokens: Annotated[str | None, typer.Option(metavar="TOKENS", help="vllm: tokens in flight.")] = None,
    utilization: Annotated[str | None, typer.Option(metavar="SHARE", help="vllm, sglang, trtllm: of memory, that it may take.")] = None,
    max_num_seqs: Annotated[str | None, typer.Option(metavar="N", help="Sequences it makes logits for at once.")] = None,
    activations: Annotated[str | None, typer.Option(metavar="SIZE", help="Peak of activations, logits included: 2GiB.")] = None,
    graphs: Annotated[str | None, typer.Option(metavar="SIZE", help="CUDA graphs; 0 where there are none.")] = None,
    reserve: Annotated[str | None, typer.Option(metavar="SIZE", help="All else on a device: context, links, slack, others.")] = None,
    kv_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="The pool of one device, as a log prints it: 24.05GiB.")] = None,
    lora: Annotated[str | None, typer.Option(metavar="SLOTS:RANK", help="Adapters held at once.")] = None,
    encoder_cache: Annotated[str | None, typer.Option(metavar="TOKENS", help="Embeddings of images that wait.")] = None,
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Of the host, as a second budget.")] = None,
    cache_ram: Annotated[str | None, typer.Option(metavar="SIZE", help="Host memory for prompts (llama.cpp: 8192MiB).")] = None,
    ubatch: Annotated[str | None, typer.Option(metavar="TOKENS", help="llama.cpp: physical batch.")] = None,
    parallel: Annotated[str | None, typer.Option(metavar="N", help="llama.cpp: slots (default: --batch).")] = None,
    kv_unified: Annotated[bool, typer.Option("--kv-unified", help="llama.cpp: one buffer for all slots.")] = False,
    swa_full: Annotated[bool, typer.Option("--swa-full", help="llama.cpp: windows at full length.")] = False,
    static: Annotated[bool, typer.Option("--static", help="For --engine transformers: its preallocated cache.")] = False,
    encoder_tokens: Annotated[str | None, typer.Option(metavar="TOKENS", help="Encoder output that cross-attention looks at.")] = None,
    assume: Annotated[str | None, typer.Option(metavar="KIND", help="Plan an unknown model_type as plain attention: gqa.")] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help="fits, headroom>=10%, tpot<=20ms, ttft<=500ms, batch>=8; else exit 1."),
    ] = None,
    solve: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT", help="What passes: ctx, batch, devices, tp, kv-dtype, device, ngl, n-cpu-moe.", autocompletion=complete.unknowns
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=VALUES", help="One or two of ctx, batch, device, kv-dtype, tp over values."),
    ] = None,
    emit: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help="Print the plan's launch line: vllm, sglang or llama.cpp.", autocompletion=complete.emitted),
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Also draw it: .png, .svg or .pdf.")] = None,
    panels: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Of the picture: cache, memory, latency, roofline (default: all that apply).")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Also write a report as one .html file.")] = None,
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
    files = None
    if (plot, html, panels) != (None,) * 3:
        from kvcli.cli.plan_files import files_of  # only files pay for it

        files = files_of(context, plot, html, panels)
    if assume not in (None, "gqa"):
        raise BadInput(f"--assume {assume!r} is not an assumption kvcli makes", hint="--assume gqa", code="usage")
    asked = None if weights.strip().lower() == "auto" else parse_weights(weights)
    hub = HubAccess(lambda text: print(text, file=sys.stderr, flush=True), offline, headers=asked is None)
    specs = [resolve(model, assume, hub) for model in models]
    over = sweep_of(sweep, {"ctx": ctx, "batch": None if batch == "1" else batch, "device": device, "tp": tp})
    solving = solve[0] if solve else None
    if solve and len(solve) > 1:
        raise BadInput("--solve asks for one thing at a time", hint=f"--solve {solving}", code="usage")
    parts, local = devices_of(over.get("device") or device, human, mig, device_file, bandwidth, memory)
    ranked: tuple[Accelerator, ...] = ()
    if solving == "device" and not device:  # parts of the user are ranked with those of the table
        parts, ranked = [None], tuple(part for part in parts if part is not None and device_file)
    prompt = 0 if prompt_tokens is None else parse_count(prompt_tokens, "--prompt-tokens")
    encoder = 0 if encoder_tokens is None else parse_count(encoder_tokens, "--encoder-tokens")
    options = EngineOptions(
        cache,
        static,
        engine_version,
        block_size=count(block_size, "--block-size"),
        page_size=count(page_size, "--page-size"),
        ubatch=count(ubatch, "--ubatch"),
        parallel=count(parallel, "--parallel"),
        kv_unified=kv_unified,
        swa_full=swa_full,
        max_num_batched_tokens=count(max_num_batched_tokens, "--max-num-batched-tokens"),
        drafted=0 if speculative is None else parse_count(speculative.partition(":")[0], "--speculative"),
    )
    new = 1 if new_tokens is None else parse_count(new_tokens, "--new-tokens")
    parts_of_prompt = (count(shared_prefix, "--shared-prefix") or 0, count(uncached_tokens, "--uncached-tokens") or 0, new)
    timing = None
    scheduler = count(max_num_seqs, "--max-num-seqs") or options.parallel, options.max_num_batched_tokens
    if (host_bandwidth, efficiency, calibrate, slo, price_hour, *scheduler) != (None,) * 7:
        from kvcli.cli.plan_time import timing_of  # only those who ask about time pay for it

        timing = timing_of(host_bandwidth, efficiency, calibrate, slo, price_hour, *scheduler, needs_device=None in parts)
    lengths_given = ctx is not None
    if ctx is None and prompt and new_tokens is not None and solving != "ctx":
        ctx = str(prompt + new - 1)
    offload = offload_of(ngl, n_cpu_moe)
    budget = budget_of(
        utilization, activations, graphs, reserve, kv_memory, max_num_seqs, lora, encoder_cache, host_memory, cache_ram, parts
    )
    # where ranks are solved for, experts are spread over as many as are asked for to begin with
    ranks = ep if solving in ("tp", "devices") and tp is None and devices is None else tp
    splits = [split_of(devices, each, pp, ep, dp_attention, dcp) for each in over.get("tp", [ranks])]
    kinds = [None if each.strip().lower() == "auto" else dtypes.parse_kv(each) for each in over.get("kv-dtype", kv_dtype.split(","))]
    offloads = offload is not None or solving in ("ngl", "n-cpu-moe")
    rules = [policy(name, options) for name in dict.fromkeys(engine or ["llama.cpp" if offloads else "ideal"])]
    speculations = [speculation_of(spec, speculative, options.drafted, hub) for spec in specs]
    batches = parse_counts(",".join(over.get("batch", [batch])), "--batch")
    lengths = ",".join(over["ctx"]) if "ctx" in over else ctx
    asks = bool(require or solve or emit)
    contexts = [contexts_of(spec, lengths, human and not explain and not asks, prompt) for spec in specs]
    points = sum(map(len, contexts)) * len(batches) * len(parts) * len(rules) * len(splits) * len(kinds)
    check_points(points)
    if points > MANY_POINTS:
        gc.disable()  # plans hold no cycles, and looking for some in a large sweep takes as long as planning
    requests = [
        PlanRequest(
            spec=spec,
            workload=Workload(length, sequences, prompt, encoder, *parts_of_prompt),
            engine=rule,
            kv=kind,
            weights=asked,
            device=part,
            split=split,
            offload=offload,
            speculation=speculation,
            timing=timing,
            budget=budget,
        )
        for spec, lengths_of, speculation in zip(specs, contexts, speculations, strict=True)
        for length in lengths_of
        for sequences in batches
        for part in parts
        for kind in kinds
        for split in splits
        for rule in rules
    ]
    if asks:
        from kvcli.cli.plan_answers import print_answers  # searches and launch lines are asked for seldom

        given: dict[str, object] = {
            "ctx": lengths_given or "ctx" in over,
            "batch": batch != "1",
            "devices": devices or tp or pp,
            "tp": devices or tp,
            "kv-dtype": kv_dtype != "auto",
        }
        given |= {"device": device, "ngl": ngl, "n-cpu-moe": n_cpu_moe}
        view = next((name for name, on in (("json", as_json), ("csv", as_csv), ("md", as_md), ("explain", explain)) if on), "")
        print_answers(requests, require or [], solving, emit, view, bool(given.get(solving or "")), local, ranked, files, list(over))
        return
    plans, failed = built(requests, sweeping=bool(over))
    if files is not None:
        lost = {id(each.request) for each in failed}
        files.write([each for each in requests if id(each) not in lost], plans, local, failed=failed, axes=list(over))
    if human and len(plans) > 1 and not explain and (efficiency, calibrate, slo, price_hour) != (None,) * 4:
        local.append(Notice("one_plan_only", "costs, limits and estimates are shown for one context on one device: --ctx, --device"))
    if over and human and not explain:
        from kvcli.report.matrix import print_matrix

        print_matrix(plans, failed, list(over))
        for notice in local:
            print(f"note: {notice.message}", file=sys.stderr)
        return
    if as_json:
        # one string first, so that an interrupt cannot leave half a document
        print(json.dumps(plans_document(plans, failed), separators=(",", ":"), allow_nan=False))
    else:
        _print_human(plans, explain, as_csv, as_md, local)
        if failed:
            from kvcli.report.matrix import print_lost

            print_lost(failed, list(over))


def _print_human(plans: list[Plan], explain: bool, as_csv: bool, as_md: bool, local: list[Notice]) -> None:
    from kvcli.report import explain as explained
    from kvcli.report import plan_table
    from kvcli.report.notes import note_lines

    if as_csv:
        plan_table.print_csv(plans)
    elif as_md:
        plan_table.print_markdown(plans)
    elif explain:
        explained.print_equations(plans)
    else:
        plan_table.print_terminal(plans)
    for line in note_lines([notice for plan in plans for notice in plan.notices] + local):
        print(f"note: {line}", file=sys.stderr)
