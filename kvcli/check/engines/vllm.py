"""vLLM's server: `vllm serve`, the api_server module, and what wraps them (KServe's and Dynamo's servers).

Sources of rules and defaults: vllm-project/vllm, `vllm/engine/arg_utils.py`, `vllm/config/cache.py` (0.6, 0.7, 0.11, 0.20, 0.25, 0.33).
What an omitted option leaves to the engine is absent: the context (the model's own), the block (the backend's), and what depends on
the card (`card_defaults`).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcli.check.deployment import Setting
from kvcli.check.engines import config_file, vllm_json
from kvcli.check.engines.settings import ACCELERATED, TYPES, Draft, Rule, any_of, boolean, counts, fraction, gib, human, one_of, whole
from kvcli.check.engines.table import FLEXIBLE, Given, Parsed, parse
from kvcli.check.engines.versions import numbers
from kvcli.check.engines.vllm_options import options
from kvcli.check.launch import Launch
from kvcli.check.nodes import Word

_KV_TYPES = {**TYPES, "nvfp4": "nvfp4", "int8_per_token_head": "int8", "fp8_per_token_head": "fp8"}
del _KV_TYPES["half"], _KV_TYPES["float"]
_DTYPES = {name: TYPES[name] for name in ("auto", "half", "float16", "bfloat16", "float", "float32")}


def _length(text: str) -> int | str:
    """`auto` and -1: it is lowered until it fits (0.12 and later)."""
    return "auto" if text.strip().lower() in ("auto", "-1") else human(text)


RULES = {
    "--max-model-len": Rule("context_tokens", _length),
    "--max-num-seqs": Rule("max_sequences", whole()),
    "--max-num-batched-tokens": Rule("max_batched_tokens", human),
    "--tensor-parallel-size": Rule("tensor_parallel", whole()),
    "--pipeline-parallel-size": Rule("pipeline_parallel", whole()),
    "--data-parallel-size": Rule("data_parallel", whole()),
    "--data-parallel-size-local": Rule("data_parallel_local", whole(0)),
    "--nnodes": Rule("nodes", whole()),
    "--decode-context-parallel-size": Rule("decode_context_parallel", whole()),
    "--kv-cache-dtype": Rule("kv_dtype", any_of(_KV_TYPES)),
    "--dtype": Rule("dtype", one_of(_DTYPES)),
    "--gpu-memory-utilization": Rule("memory_fraction", fraction),
    "--kv-cache-memory-bytes": Rule("kv_memory_bytes", human),
    "--block-size": Rule("block_tokens", whole()),
    "--cpu-offload-gb": Rule("weights_offload_bytes", gib),
    "--kv-offloading-size": Rule("kv_offload_bytes", gib),
}
#: options without a value -> what they set
SWITCHES = {
    "--enable-prefix-caching": "prefix_caching",
    "--enforce-eager": "eager",
    "--enable-sleep-mode": "sleep_mode",
    "--enable-expert-parallel": "expert_parallel",
    "--trust-remote-code": "trust_remote_code",
}
#: methods that make smaller weights of 16-bit files; others name what a file already is, and set nothing
QUANTIZED_AT_LOAD = {
    **dict.fromkeys(("fp8", "ptpc_fp8", "fp8_per_tensor", "fp8_per_block", "mxfp8"), "fp8"),
    **dict.fromkeys(("experts_int8", "int8_per_channel_weight_only"), "int8"),
    "bitsandbytes": "int4",
}
#: options that change what is stored or who stores it, and that kvcli has no rule for
MATTERS = {
    "--prefill-context-parallel-size": "a cache dealt among ranks of the prefill",
    "--offload-group-size": "layers that wait in the host's memory",
    "--device": "another kind of device",
}
#: those that leave the weights as they are
CACHE_MATTERS = {
    "--kv-cache-dtype-skip-layers": "layers with another type of cache",
    "--disable-hybrid-kv-cache-manager": "windows kept in full",
    "--disable-sliding-window": "the context cut to the window",
    "--mamba-cache-dtype": "states of another type",
    "--mamba-ssm-cache-dtype": "states of another type",
    "--mamba-cache-mode": "states kept for every block",
    "--performance-mode": "another number of sequences and tokens a step",
}
#: those that make smaller weights of the same model
TYPES_MATTER = {"--qlora-adapter-name-or-path": "weights quantised as they load"}
#: those that only add to what is stored
ADDS = {
    "--enable-eplb": "copies of experts",
    "--eplb-config": "copies of experts",
    "--num-redundant-experts": "copies of experts",
    "--enable-prompt-adapter": "adapters of prompts",
}
#: variables that change what is stored -> (the value that does, None for any; why; the Problem's code). VLLM_ATTENTION_BACKEND only picks
#: kernels and blocks.
VARIABLES = {
    "VLLM_MLA_DISABLE": ("1", "expanded keys and values are stored instead of latent rows", "cache_variable_not_modelled"),
    "VLLM_USE_V1": ("0", "it is another engine with other defaults", "cache_variable_not_modelled"),
    "VLLM_PP_LAYER_PARTITION": (None, "layers are dealt to stages by hand", "variable_not_modelled"),
}
BLOCK_TOKENS = 16
#: The longest context whose prompts are taken whole where nothing is said, before 0.8.
WHOLE_PROMPTS = 32768


def read(launch: Launch, words: Sequence[Word], draft: Draft, version: str) -> Word | None:
    """Fills `draft` from the words behind the program; returns the model. `version`: known or assumed, for defaults."""
    switches = frozenset(name for option in options().values() for name in option.negated)
    parsed = _parsed(words)
    named = {each.option for each in parsed.given}
    for each in parsed.given:
        if each.option in ("--config", "--kaito-config-file") and each.values:
            base = _parsed(config_file.as_words(_file(draft, each, launch), switches))
            own = tuple(other for other in base.given if other.option not in named)
            parsed = Parsed((*own, *parsed.given), (*parsed.rest, *base.rest), (*base.problems, *parsed.problems))
    draft.problems += parsed.problems
    given = {each.option: each for each in parsed.given}
    for each in parsed.given:
        if not _refused(draft, each, numbers(version)):
            _take(draft, each, given, launch)
    _variables(draft, launch, given)
    _together(draft, given)
    _steps(draft, given, numbers(version), launch)
    if "--kaito-max-probe-steps" in given:
        draft.default("context_tokens", "auto", "kaito", "it probes for the longest that fits")
    _defaults(draft, version)
    return _model(draft, parsed, given, launch)


def _file(draft: Draft, given: Given, launch: Launch) -> Sequence[config_file.Entry]:
    """Options of `--config`, which vLLM only knows as two words, and of Kaito's file, where they stand below `vllm`."""
    if given.option == "--config" and "=" in given.word.text:
        text = "vllm does not read --config=FILE: only --config FILE as two words"
        draft.problem("config_file_not_read", text, given.place)
        return ()
    entries = config_file.entries_of(given.values[0], launch.files, draft)
    return entries if given.option == "--config" else [inner for entry in entries if entry.key.text == "vllm" for inner in entry.inner()]


def _parsed(words: Sequence[Word]) -> Parsed:
    return parse(vllm_json.undotted(words), options(), FLEXIBLE)


def _take(draft: Draft, given: Given, others: dict[str, Given], launch: Launch) -> None:
    name = given.option
    if name in RULES:
        draft.apply(given, RULES[name])
    elif name in SWITCHES:
        draft.set(SWITCHES[name], not given.off, given.said, given.place)
    elif name == "--enable-chunked-prefill":
        if given.values:
            draft.apply(given, Rule("chunked_prefill", boolean))
        else:
            draft.set("chunked_prefill", not given.off, given.said, given.place)
    elif name == "--quantization":
        text = draft.literal(given)
        if text in QUANTIZED_AT_LOAD:
            draft.set("weights", QUANTIZED_AT_LOAD[text], given.said, given.place)
        elif text and text.lower() not in ("none", "auto"):
            draft.set("quantization", text, given.said, given.place)
    elif name == "--speculative-config" and (config := draft.json(given)) is not None:
        vllm_json.speculation(draft, config, given.said, given.place)
    elif name == "--speculative-model":
        _old_speculation(draft, given, others.get("--num-speculative-tokens"))
    elif name == "--kv-transfer-config" and (config := draft.json(given)) is not None:
        vllm_json.tiers(draft, config, launch.environment, given.said, given.place)
    elif name in ("--rope-scaling", "--hf-overrides"):
        pass  # after --max-model-len, see _together
    elif name == "--distributed-executor-backend" and draft.literal(given) == "ray":
        draft.set("ray", True, given.said, given.place)
    elif name in ("--data-parallel-rank", "--data-parallel-external-lb") and not given.off:
        draft.set("data_parallel_local", 1, given.said, given.place)
    elif name in ("--optimization-level", "--compilation-config"):
        _compilation(draft, given)
    elif name == "--device" and draft.literal(given) in ACCELERATED:
        pass
    elif not given.off:
        draft.not_modelled(given, MATTERS, CACHE_MATTERS, TYPES_MATTER, ADDS)


def _refused(draft: Draft, given: Given, at: tuple[int, ...]) -> bool:
    """Values that this version does not take: lengths in words before 0.8 and 0.12, a yes or no behind a switch from 0.10 on."""
    text = given.values[0].text.strip().lower() if given.values else ""
    if given.option == "--max-model-len":
        refused = (at < (0, 12) and text in ("auto", "-1")) or (at < (0, 8) and text[-1:] in "kmgt")
    else:
        refused = given.option == "--enable-chunked-prefill" and bool(text) and at >= (0, 10)
    if refused and given.option == "--max-model-len":
        draft.unread.add("context_tokens")
    if refused and given.values[0].literal:
        draft.problem("bad_argument", f"vllm {'.'.join(map(str, at[:2]))} refuses {given.said}", given.place)
    return refused


def _old_speculation(draft: Draft, given: Given, tokens: Given | None) -> None:
    """`--speculative-model` with `--num-speculative-tokens`, before 0.9."""
    text, number = draft.literal(given), draft.literal(tokens) if tokens else None
    if text is None:
        return
    count = int(number) if number and counts(number) else number
    said = f"{given.said} {tokens.said if tokens else ''}".strip()
    vllm_json.speculation(draft, {"model": text, "num_speculative_tokens": count}, said, given.place)


def _compilation(draft: Draft, given: Given) -> None:
    """Level 0 and a graph mode of none leave CUDA graphs out."""
    text = draft.literal(given)
    if text is None:
        return
    if counts(text.strip()):
        off = int(text) == 0
    else:
        config = draft.json(given) or {}
        off = str(config.get("cudagraph_mode", "")).upper() == "NONE" or 0 in (config.get("level", 1), config.get("mode", 1))
    if off:
        draft.set("eager", True, given.said, given.place)


def _together(draft: Draft, given: dict[str, Given]) -> None:
    """Options whose meaning depends on others."""
    for name in ("--rope-scaling", "--hf-overrides"):
        if name in given and (config := draft.json(given[name])) is not None:
            (vllm_json.rope if name == "--rope-scaling" else vllm_json.overrides)(draft, config, given[name].said, given[name].place)
    if "--enable-lora" in given and not given["--enable-lora"].off:
        for key, name, default in (("lora_adapters", "--max-loras", 1), ("lora_rank", "--max-lora-rank", 16)):
            if name in given:
                draft.apply(given[name], Rule(key, whole()))
            else:
                draft.set(key, default, f"{given['--enable-lora'].said}: {name} {default} by default", given["--enable-lora"].place)
    blocks = given.get("--num-gpu-blocks-override")
    if blocks is not None:
        draft.apply(blocks, Rule("kv_tokens", whole()))
        tokens = draft.settings.get("kv_tokens")
        if tokens is not None:
            size = int(draft.value("block_tokens") or BLOCK_TOKENS)
            draft.set("kv_tokens", int(tokens.value) * size, f"{tokens.said} x {size} tokens", tokens.place)


def _steps(draft: Draft, given: dict[str, Given], at: tuple[int, ...], launch: Launch) -> None:
    """A step must have a token for each sequence, and a whole prompt where it is not taken in chunks (`SchedulerConfig` of 0.6 to 0.33).

    Whether prompts are taken in chunks is sure before 0.8 alone: later versions do so whatever they are told, or most of them.
    """
    step, most, length = (given.get(name) for name in ("--max-num-batched-tokens", "--max-num-seqs", "--max-model-len"))
    tokens, sequences, longest = (draft.value(key) for key in ("max_batched_tokens", "max_sequences", "context_tokens"))
    if step is None or not isinstance(tokens, int):
        return
    if most is not None and isinstance(sequences, int) and tokens < sequences:
        draft.problem("bad_argument", f"vllm refuses {step.said} with {most.said}: a step has a token for each sequence", step.place)
    unsaid = draft.value("chunked_prefill") is None and "chunked_prefill" not in draft.unread and "VLLM_USE_V1" not in launch.environment
    whole_prompts = (0, 6) <= at < (0, 8) and (draft.value("chunked_prefill") is False or unsaid)
    if whole_prompts and length is not None and isinstance(longest, int) and tokens < longest <= WHOLE_PROMPTS:
        text = f"vllm {at[0]}.{at[1]} refuses {step.said} with {length.said}: a prompt is not taken in chunks"
        draft.problem("bad_argument", text, step.place)


def _variables(draft: Draft, launch: Launch, given: dict[str, Given]) -> None:
    for name, (value, why, code) in VARIABLES.items():
        word = launch.environment.get(name)
        if word is not None and word.text.strip() and (not word.literal or value in (None, word.text.strip())):
            draft.problem(code, f"{name}={word.text[:40]}: {why}, and kvcli has no rule for it", word.place)
    draft.switch("longer_allowed", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", launch.environment)
    space = launch.environment.get("VLLM_CPU_KVCACHE_SPACE")
    if space is not None and "--kv-cache-memory-bytes" not in given:
        if launch.gpus is None:
            text = f"VLLM_CPU_KVCACHE_SPACE={space.text[:20]} sizes the cache of vLLM's CPU build, which uses no accelerator"
            draft.problem("cpu_build", text, space.place, matters=False)
            return
        text = f"VLLM_CPU_KVCACHE_SPACE={space.text[:20]} sizes the cache of vLLM's CPU build, and no other build reads it"
        draft.problem("variable_not_read", text, space.place, matters=False)


def _defaults(draft: Draft, version: str) -> None:
    """Of `version`. Before 0.8 chunked prefill and prefix caching were off, the first but for long contexts, which is left out."""
    at = numbers(version)
    named = f"vllm {version}"
    draft.default("memory_fraction", 0.92 if at >= (0, 20) else 0.9, named)
    for key in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        draft.default(key, 1, named)
    draft.default("kv_dtype", "auto", named)
    draft.default("dtype", "auto", named)
    draft.default("eager", False, named)
    draft.default("prefix_caching", at >= (0, 8), named)
    if at >= (0, 8):
        draft.default("chunked_prefill", True, named)
    else:
        draft.default("max_sequences", 256, named)


def card_defaults(version: str, memory_bytes: int, card: str) -> dict[str, Setting]:
    """max_sequences and max_batched_tokens of a server where neither is given, which depend on the card from 0.8 on.

    From 70 GiB, A100 excepted: 1,024 and 8,192; else 256 and 2,048 (get_batch_defaults). The engine then takes no more tokens than
    max_sequences contexts, and without chunked prefill at least one context.
    """
    if numbers(version) < (0, 8):
        return {}
    large = memory_bytes >= 70 * 2**30 and "a100" not in card.lower()
    said = f"vllm {version} default for {'70 GiB and more' if large else 'less than 70 GiB, and for A100'}"
    return {"max_sequences": Setting(1024 if large else 256, said), "max_batched_tokens": Setting(8192 if large else 2048, said)}


def _model(draft: Draft, parsed: Parsed, given: dict[str, Given], launch: Launch) -> Word | None:
    """The positional, `--model`, what a wrapper calls it, else what the manifest says beside the command."""
    rest = list(parsed.rest)
    named = next((given[name] for name in ("--model", "--model-id", "--model-dir", "--model-tag") if name in given), None)
    model = named.values[0] if named and named.values else rest.pop(0) if rest else launch.model
    for word in rest:
        if word.literal:
            draft.problem("stray_word", f"vllm does not know what {word.text[:60]!r} is for", word.place, matters=False)
        else:
            draft.problem("not_literal", f"{word.text[:60]} is only known where it runs, and may set anything", word.place)
    return model
