"""Hugging Face's text-generation-inference: `text-generation-launcher`, each option with a variable of the same name.

Sources: huggingface/text-generation-inference, `launcher/src/main.rs` and `docs/source/reference/launcher.md` (1.4, 2.4, 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from kvcli.check.engines.settings import TYPES, Draft, Rule, boolean, counts, fraction, one_of, positive, whole
from kvcli.check.engines.table import CLAP, Given, Option, options_of, parse
from kvcli.check.engines.versions import numbers
from kvcli.check.launch import Launch
from kvcli.check.nodes import Word

_OPTIONS = """
--model-id --revision --validation-workers --sharded --num-shard --quantize --speculate --dtype --kv-cache-dtype
--trust-remote-code! --max-concurrent-requests --max-best-of --max-stop-sequences --max-top-n-tokens --max-input-tokens
--max-input-length --max-total-tokens --waiting-served-ratio --max-batch-prefill-tokens --max-batch-total-tokens
--max-waiting-tokens --max-batch-size --cuda-graphs --hostname --port,-p --prometheus-port --shard-uds-path --master-addr
--master-port --huggingface-hub-cache --weights-cache-override --disable-custom-kernels! --cuda-memory-fraction
--rope-scaling --rope-factor --json-output! --otlp-endpoint --otlp-service-name --cors-allow-origin --api-key
--watermark-gamma --watermark-delta --ngrok! --ngrok-authtoken --ngrok-edge --tokenizer-config-path
--disable-grammar-support! --env,-e! --max-client-batch-size --lora-adapters --usage-stats --payload-limit
--enable-prefill-logprobs! --disable-crash-report! --graceful-termination-timeout --help,-h! --version,-V!
"""
_DTYPES = {"float16": "fp16", "bfloat16": "bf16"}
RULES = {
    "--max-total-tokens": Rule("context_tokens", whole()),
    "--num-shard": Rule("tensor_parallel", whole()),
    "--dtype": Rule("dtype", one_of(_DTYPES)),
    "--kv-cache-dtype": Rule("kv_dtype", one_of({name: TYPES[name] for name in ("fp8_e4m3fn", "fp8_e5m2")})),
    "--max-batch-prefill-tokens": Rule("max_batched_tokens", whole()),
    "--max-batch-total-tokens": Rule("kv_tokens", whole()),
    "--cuda-memory-fraction": Rule("memory_fraction", fraction),
    "--max-batch-size": Rule("max_sequences", whole()),
    "--rope-factor": Rule("rope_factor", positive),
}
QUANTIZED_AT_LOAD = {"eetq": "int8", "bitsandbytes": "int8", "bitsandbytes-nf4": "int4", "bitsandbytes-fp4": "int4", "fp8": "fp8"}
#: variables without an option
_ALSO_READ = {"PREFIX_CACHING", "USE_PREFIX_CACHING", "ATTENTION", "HF_TOKEN", "HF_HUB_CACHE"}


@cache
def options() -> dict[str, Option]:
    return options_of(_OPTIONS)


def read(launch: Launch, words: Sequence[Word], draft: Draft, version: str) -> Word | None:
    """Fills `draft` from the words behind the program and the variables, which the words override; returns the model."""
    parsed = parse(words, options(), CLAP)
    draft.problems += parsed.problems
    given = {**_variables(launch), **{each.option: each for each in parsed.given}}
    for word in parsed.rest:
        draft.problem("stray_word" if word.literal else "not_literal", f"tgi does not know what {word.text[:60]!r} is for", word.place)
    for name, rule in RULES.items():
        if name in given:
            draft.apply(given[name], rule)
    _others(draft, given, launch)
    _lengths(draft, given)
    _defaults(draft, given, launch, version)
    model = given.get("--model-id")
    return model.values[0] if model and model.values else launch.model


def _variables(launch: Launch) -> dict[str, Given]:
    """MAX_TOTAL_TOKENS for `--max-total-tokens`; empty ones are not given."""
    found: dict[str, Given] = {}
    for option in dict.fromkeys(options().values()):
        name = option.name[2:].upper().replace("-", "_")
        word = launch.environment.get(name)
        if word is None or not word.text.strip():
            continue
        shown = Word(name, word.place, word.literal)
        if option.arity == "none":
            if word.text.strip().lower() in ("true", "1", "t", "yes", "y", "on"):
                found[option.name] = Given(option.name, shown)
        else:
            found[option.name] = Given(option.name, shown, (word,))
    return found


def _others(draft: Draft, given: dict[str, Given], launch: Launch) -> None:
    quantize, speculate, graphs = given.get("--quantize"), given.get("--speculate"), given.get("--cuda-graphs")
    if quantize and (text := draft.literal(quantize)):
        at_load = QUANTIZED_AT_LOAD.get(text)
        draft.set("weights" if at_load else "quantization", at_load or text, quantize.said, quantize.place)
    if speculate and (text := draft.literal(speculate)) is not None:
        if counts(text):
            if int(text):
                draft.set("speculation", f"{int(text)}:ngram", speculate.said, speculate.place)
        else:
            draft.problem("bad_argument", f"tgi refuses {speculate.said}", speculate.place)
    if graphs and draft.literal(graphs) == "0":
        draft.set("eager", True, graphs.said, graphs.place)
    if "--trust-remote-code" in given:
        draft.set("trust_remote_code", True, given["--trust-remote-code"].said, given["--trust-remote-code"].place)
    adapters = given.get("--lora-adapters")
    if adapters and (text := draft.literal(adapters)):
        draft.set("lora_adapters", text.count(",") + 1, adapters.said, adapters.place)
    sharded = given.get("--sharded")
    if sharded and (text := draft.literal(sharded)) is not None:
        try:
            if not boolean(text):
                draft.set("tensor_parallel", 1, sharded.said, sharded.place)
        except ValueError:
            draft.problem("bad_argument", f"tgi refuses {sharded.said}", sharded.place)
    prefix = launch.environment.get("PREFIX_CACHING") or launch.environment.get("USE_PREFIX_CACHING")
    if prefix is not None and prefix.literal:
        draft.set("prefix_caching", prefix.text.strip().lower() in ("1", "true"), f"PREFIX_CACHING={prefix.text[:20]}", prefix.place)


def _lengths(draft: Draft, given: dict[str, Given]) -> None:
    """The prompt must be shorter than the whole, else it does not start."""
    prompt = given.get("--max-input-tokens") or given.get("--max-input-length")
    total = draft.value("context_tokens")
    text = draft.literal(prompt) if prompt else None
    if prompt is None or text is None:
        return
    if not counts(text) or (isinstance(total, int) and int(text) >= total):
        draft.problem("bad_argument", f"tgi refuses {prompt.said}: it must be a number below --max-total-tokens", prompt.place)


def _defaults(draft: Draft, given: dict[str, Given], launch: Launch, version: str) -> None:
    """A length that is not given: what fits, at most the model's own (3); the model's own up to 4,096 (2); 2,048 (1).

    Shards that are not given: every device the container sees.
    """
    at, named = numbers(version), f"tgi {version}"
    if at >= (3,):
        draft.default("context_tokens", "auto", named)
    else:
        draft.default("context_tokens", 4096 if at >= (2,) else 2048, named)
    draft.every_device("tensor_parallel", launch.gpus, named)
    if "max_sequences" not in draft.settings:
        requests = given.get("--max-concurrent-requests")
        if requests is not None:
            draft.apply(requests, Rule("max_sequences", whole()))
        draft.default("max_sequences", 128, named, "--max-concurrent-requests")
    draft.default("memory_fraction", 1.0, named)
    draft.default("kv_dtype", "auto", named)
    draft.default("dtype", "auto", named)
    draft.default("prefix_caching", at >= (3,), named)
    draft.default("chunked_prefill", at >= (3,), named)
