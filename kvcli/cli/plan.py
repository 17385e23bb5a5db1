"""`kvcli plan`: options to requests, one call, one print."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from kvcli import dtypes
from kvcli.cli.plan_request import budget_of, contexts_of, count, devices_of, offload_of, speculation_of, split_of
from kvcli.errors import BadInput, Notice
from kvcli.model.hub_access import HubAccess
from kvcli.model.resolve import resolve
from kvcli.plan.document import plans_document
from kvcli.plan.plan import Plan, build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import ENGINES, EngineOptions, policy
from kvcli.plan.weights import parse_weights
from kvcli.plan.workload import Workload
from kvcli.units import check_points, parse_count, parse_counts

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
    parts, local = devices_of(device, look=human)
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
    offload = offload_of(ngl, n_cpu_moe)
    budget = budget_of(
        utilization, activations, graphs, reserve, kv_memory, max_num_seqs, lora, encoder_cache, host_memory, cache_ram, parts
    )
    split = split_of(devices, tp, pp, ep, dp_attention, dcp)
    rules = [policy(name, options) for name in dict.fromkeys(engine or ["ideal" if offload is None else "llama.cpp"])]
    speculations = {spec.name: speculation_of(spec, speculative, options.drafted, hub) for spec in specs}
    batches = parse_counts(batch, "--batch")
    contexts = {spec.name: contexts_of(spec, ctx, human and not explain) for spec in specs}
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
            budget=budget,
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
