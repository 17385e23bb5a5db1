"""`kvcli run`: real text from the built-in transformer, its time held against the floor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcli.cli import complete
from kvcli.cli.weights import DEFAULT_MODEL, ensure_weights, require_run_extra
from kvcli.errors import EXIT_INTERRUPTED, EXIT_NO, BadInput
from kvcli.model import presets
from kvcli.model.cut import cut_layers
from kvcli.model.resolve import expand, is_path, resolve
from kvcli.units import parse_counts

if TYPE_CHECKING:
    from kvcli.measure.run import Runner
    from kvcli.model.gguf.header import GgufHeader
    from kvcli.model.spec import ModelSpec
    from kvcli.runtime.sampling import SamplingOptions
    from kvcli.runtime.source import Source

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def run(
    model: Annotated[
        str, typer.Argument(help="Preset with weights, or a .gguf file; any model with --random-weights.", autocompletion=complete.models)
    ] = DEFAULT_MODEL,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The prompt; - reads stdin, @FILE a file.")] = None,
    max_new_tokens: Annotated[str, typer.Option(metavar="N", help="New tokens at most; a list under --compare.")] = "128",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest set of tokens with this mass; 1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens below this share of the likeliest; 0 is off.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Makes tokens already seen less likely; 1 is off.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Repeats the same draws.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Plain completion, without the chat template.")] = False,
    cache: Annotated[
        str, typer.Option(metavar="KIND", help="static, dynamic or none (recompute).", autocompletion=complete.caches)
    ] = "static",
    compare: Annotated[str | None, typer.Option(metavar="KINDS", help="Time several caches on one prompt: none,static.")] = None,
    dtype: Annotated[str, typer.Option(metavar="T", help="Compute in fp32, bf16 or fp16.", autocompletion=complete.compute_types)] = "auto",
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:1.", autocompletion=complete.torch_devices)] = "auto",
    random_weights: Annotated[bool, typer.Option("--random-weights", help="The model's shape with random numbers.")] = False,
    layers: Annotated[int | None, typer.Option(metavar="N", help="Only the first N layers.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never fetch weights.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON record on stdout instead of the text.")] = False,
) -> None:
    """Generate text and hold its time against the floor.

    The text comes from the built-in cached transformer and goes to stdout, the numbers to stderr.

    Example: kvcli run --prompt "What is gravity?"
    """
    text = _prompt_text(prompt)
    lengths = parse_counts(max_new_tokens, "--max-new-tokens")
    kinds = _kinds(compare, cache, lengths)
    require_run_extra()
    from kvcli.measure.devices import TORCH_DTYPES, local_part, pick_device, pick_dtype
    from kvcli.measure.run import Runner, check_length, check_memory, run_plan
    from kvcli.runtime.sampling import SamplingOptions

    options = SamplingOptions(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    if not temperature and (top_k or top_p != 1 or min_p):
        print("note: --top-k, --top-p and --min-p do nothing at temperature 0, which takes the likeliest token", file=sys.stderr)
    if compare and temperature:
        raise BadInput("--compare needs greedy choices, so that tokens can be compared", hint="leave --temperature out", code="usage")
    torch_device = pick_device(device)
    compute = pick_dtype(dtype, torch_device)
    source = _source(model, random_weights, layers, offline)
    ids = source.encode(text, raw)
    longest = max(lengths)
    check_length(source.spec, len(ids), longest)
    part = local_part(torch_device)
    check_memory(run_plan(source.spec, compute, kinds[0], len(ids), len(ids) + longest, part), torch_device)
    transformer = source.load(TORCH_DTYPES[compute.name], torch_device, len(ids) + longest)
    runners = [Runner(transformer, compute, kind, source.weights, part) for kind in kinds]
    if compare:
        _compare(runners, options, ids, lengths, as_json)
    else:
        _generate(runners[0], source, options, ids, longest, as_json)


def _prompt_text(prompt: str | None) -> str:
    """The prompt itself, stdin, or a file's text."""
    if prompt is None:
        raise BadInput("run needs a prompt", hint='kvcli run --prompt "What is gravity?"', code="usage")
    try:
        if prompt == "-":
            return sys.stdin.buffer.read().decode()
        if prompt.startswith("@"):
            return expand(prompt[1:]).read_bytes().decode()
    except UnicodeDecodeError:
        raise BadInput("the prompt is not UTF-8 text", code="bad_prompt") from None
    except OSError as error:
        raise BadInput(f"the prompt file {prompt[1:]} cannot be read: {(error.strerror or '').lower()}", code="bad_prompt") from None
    try:
        prompt.encode()
    except UnicodeEncodeError:  # bytes of the command line that are not UTF-8
        raise BadInput("the prompt is not UTF-8 text", code="bad_prompt") from None
    return prompt


def _kinds(compare: str | None, cache: str, lengths: list[int]) -> list[str]:
    from kvcli.plan.storage.policy import CACHES

    kinds = [kind.strip() for kind in compare.split(",")] if compare is not None else [cache]
    for kind in kinds:
        if kind not in CACHES:
            raise BadInput(f"{kind[:40]!r} is not a kind of cache", hint="one of " + ", ".join(CACHES), code="unknown_cache")
    if compare is not None and len(set(kinds)) < 2:
        raise BadInput("--compare needs two kinds of cache", hint="--compare none,static", code="usage")
    if compare is None and len(lengths) > 1:
        raise BadInput("--max-new-tokens takes several numbers only with --compare", code="usage")
    return list(dict.fromkeys(kinds))


def _source(model: str, random: bool, layers: int | None, offline: bool) -> Source:
    """The weights and vocabulary to use: a GGUF file, a preset's file (fetched on first use), or random numbers."""
    from kvcli.runtime.source import open_source

    spec, header = _spec_and_header(model, random, offline)
    for notice in spec.notices:
        print(f"note: {notice.message}", file=sys.stderr)
    if layers is not None:
        spec = cut_layers(spec, layers)
    if random and header is None:
        print("note: random weights have no vocabulary: each byte of the prompt is one token, and no text comes out", file=sys.stderr)
    return open_source(spec, header, random)


def _spec_and_header(model: str, random: bool, offline: bool) -> tuple[ModelSpec, GgufHeader | None]:
    from dataclasses import replace

    from kvcli.model.gguf.config import spec_from_header
    from kvcli.model.gguf.header import read_header

    if is_path(model):
        path = expand(model)
        if path.suffix.lower() == ".gguf":
            header = read_header(path)
            # records keep the file's name, never the path, which may name a person
            return replace(spec_from_header(header), source=path.name), header
        if not random:
            resolve(model)  # a path that is no model is named as such first
            raise BadInput(
                f"{model} has no GGUF weights, and run reads no other kind",
                hint="pass a .gguf file, or --random-weights for the shape alone",
                code="no_weights",
            )
        return replace(resolve(model), source=Path(model).name), None
    preset = presets.find(model)
    if preset is None or random:
        return resolve(model), None
    header = read_header(ensure_weights(preset, offline))
    return replace(spec_from_header(header), name=preset.name, source=header.path.name), header


def _generate(runner: Runner, source: Source, options: SamplingOptions, ids: list[int], new_tokens: int, as_json: bool) -> None:
    """Streams the text as it is made, then shows the numbers; under --json only the record."""
    from kvcli.measure.bandwidth import read_rate
    from kvcli.measure.run import INTERRUPTED, attach_reference
    from kvcli.records import dumps
    from kvcli.report.run_table import print_run
    from kvcli.runtime.sampling import Sampler

    device = runner.model.device
    tokenizer = source.tokenizer
    stream = tokenizer.stream() if tokenizer is not None else None
    pieces: list[str] = []

    def show(piece: str) -> None:
        pieces.append(piece)
        if not as_json:
            sys.stdout.write(piece)
            sys.stdout.flush()

    def on_token(token: int) -> None:
        show(stream.push(token) if stream is not None else f"{token} ")

    stop = tokenizer.eos_ids if tokenizer is not None else frozenset[int]()
    record, _ = runner.measure(ids, Sampler(options, device), new_tokens, stop, on_token)
    if stream is not None:
        show(stream.finish())
        record.text = "".join(pieces)
    if runner.part is None and record.error is None:
        try:
            attach_reference(record, read_rate(device))
        except KeyboardInterrupt:  # the run itself is measured and is shown all the same
            record.error = INTERRUPTED
    if as_json:
        print(dumps(record.document()))
    else:
        print()
        sys.stdout.flush()
        print_run(record)
    if record.error is not None:
        raise typer.Exit(EXIT_INTERRUPTED)


def _compare(runners: list[Runner], options: SamplingOptions, ids: list[int], lengths: list[int], as_json: bool) -> None:
    """Every length with every kind of cache; exit 1 where tokens or logits disagree."""
    from kvcli.measure.compare import agreements, measure_all
    from kvcli.report.run_table import print_comparison

    records, results = measure_all(runners, options, ids, lengths)
    agreed = agreements(results)
    if as_json:
        document: dict[str, Any] = {"schema_version": 1, "records": [record.document() for record in records]}
        document["agreements"] = [agreement.document() for agreement in agreed]
        print(json.dumps(document, separators=(",", ":"), allow_nan=False))
    else:
        print_comparison(results, agreed)
    if any(record.error for record in records):
        raise typer.Exit(EXIT_INTERRUPTED)
    if not all(agreement.holds for agreement in agreed):
        raise typer.Exit(EXIT_NO)
