"""SGLang's server: `python -m sglang.launch_server`, `sglang serve`, and Dynamo's.

Sources: sgl-project/sglang, `python/sglang/srt/server_args.py` and `docs/advanced_features/server_arguments.md` (0.5). Absent where
the engine chooses: the context (the model's own), the page (by backend), and by a ladder of cards the memory fraction, the chunk of
a prefill and the running requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcli.check.engines import config_file
from kvcli.check.engines.settings import ACCELERATED, TYPES, Draft, Rule, any_of, counts, fraction, human, one_of, whole
from kvcli.check.engines.sglang_options import options
from kvcli.check.engines.table import ARGPARSE, Given, Parsed, parse
from kvcli.check.engines.versions import numbers
from kvcli.check.engines.vllm_json import rope
from kvcli.check.launch import Launch
from kvcli.check.nodes import Word

_KV_TYPES = {name: TYPES[name] for name in ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16")} | {"fp4_e2m1": "mxfp4"}
_DTYPES = {name: TYPES[name] for name in ("auto", "half", "float16", "bfloat16", "float", "float32")}


def _gigabytes(text: str) -> int:
    """`--cpu-offload-gb`: whole GiB (`int(...) * 1024**3`)."""
    return whole(0, 10**6)(text) * 2**30


RULES = {
    "--context-length": Rule("context_tokens", human),
    "--max-running-requests": Rule("max_sequences", whole()),
    "--max-total-tokens": Rule("kv_tokens", whole()),
    "--mem-fraction-static": Rule("memory_fraction", fraction),
    "--tp-size": Rule("tensor_parallel", whole()),
    "--pp-size": Rule("pipeline_parallel", whole()),
    "--dp-size": Rule("data_parallel", whole()),
    "--nnodes": Rule("nodes", whole()),
    "--ep-size": Rule("expert_parallel", whole()),
    "--kv-cache-dtype": Rule("kv_dtype", any_of(_KV_TYPES)),
    "--dtype": Rule("dtype", one_of(_DTYPES)),
    "--page-size": Rule("block_tokens", whole()),
    "--cpu-offload-gb": Rule("weights_offload_bytes", _gigabytes),
}
#: The first version in which DP attention always has its --dp-size; up to 0.4.3 every tensor rank was a group of its own.
NAMED_GROUPS = (0, 5)
#: switches -> (key, value)
SWITCHES = {
    "--enable-dp-attention": ("dp_attention", True),
    "--disable-radix-cache": ("prefix_caching", False),
    "--disable-cuda-graph": ("eager", True),
    "--trust-remote-code": ("trust_remote_code", True),
}
QUANTIZED_AT_LOAD = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4_online": "nvfp4", "bitsandbytes": "int4"}
#: options that change what is stored or who stores it, and that kvcli has no rule for
MATTERS = {
    "--attn-cp-size": "attention's tokens dealt among ranks",
    "--moe-dp-size": "experts in groups",
    "--moe-dense-tp-size": "dense layers split another way",
    "--kt-num-gpu-experts": "experts on the host",
    "--kt-weight-path": "experts on the host",
    "--offload-group-size": "layers that wait in the host's memory",
    "--device": "another kind of device",
}
#: those that leave the weights as they are
CACHE_MATTERS = {
    "--swa-full-tokens-ratio": "another share of windows in the pool",
    "--disable-hybrid-swa-memory": "windows kept in full",
    "--max-mamba-cache-size": "another number of states",
    "--mamba-ssm-dtype": "states of another type",
    "--mamba-full-memory-ratio": "another share of states in the pool",
    "--hybrid-kvcache-ratio": "another share of windows in the pool",
    "--disable-mla": "expanded keys and values instead of latent rows",
    "--enable-lmcache": "a tier of the cache of a size that is not said",
}
#: those that make smaller weights of the same model
TYPES_MATTER = {"--torchao-config": "weights quantised as they load", "--modelopt-quant": "weights quantised as they load"}
#: those that only add to what is stored
ADDS = {"--ep-num-redundant-experts": "copies of experts"}


def read(launch: Launch, words: Sequence[Word], draft: Draft, version: str) -> Word | None:
    """Fills `draft` from the words behind the program; returns the model."""
    parsed = parse(words, options(), ARGPARSE)
    file = next((each for each in parsed.given if each.option == "--config"), None)
    if file is not None and file.values:
        entries = config_file.entries_of(file.values[0], launch.files, draft)
        base = parse(config_file.as_words(entries, frozenset()), options(), ARGPARSE)
        named = {each.option for each in parsed.given}
        own = tuple(each for each in base.given if each.option not in named)
        parsed = Parsed((*own, *parsed.given), (*parsed.rest, *base.rest), (*base.problems, *parsed.problems))
    draft.problems += parsed.problems
    given = {each.option: each for each in parsed.given}
    for each in parsed.given:
        _take(draft, each)
    _experts(draft, given)
    _speculation(draft, given)
    _tiers(draft, given)
    _adapters(draft, given)
    draft.switch("longer_allowed", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", launch.environment)
    named_version = f"sglang {version}"
    if "--enable-dp-attention" in given and "--dp-size" not in given and numbers(version) < NAMED_GROUPS:
        switch = given["--enable-dp-attention"]
        draft.set("data_parallel", int(draft.value("tensor_parallel") or 1), f"{switch.said} of {named_version}", switch.place)
    for key in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        draft.default(key, 1, named_version)
    draft.default("kv_dtype", "auto", named_version)
    draft.default("dtype", "auto", named_version)
    draft.default("prefix_caching", True, named_version)
    draft.default("chunked_prefill", True, named_version)
    draft.default("eager", False, named_version)
    for word in parsed.rest:
        if not word.literal:
            draft.problem("not_literal", f"{word.text[:60]} is only known where it runs, and may set anything", word.place)
        else:
            draft.problem("stray_word", f"sglang does not know what {word.text[:60]!r} is for", word.place, matters=False)
    model = given.get("--model-path")
    return model.values[0] if model and model.values else launch.model


def _take(draft: Draft, given: Given) -> None:
    name = given.option
    if name in RULES:
        draft.apply(given, RULES[name])
    elif name in SWITCHES:
        draft.set(*SWITCHES[name], given.said, given.place)
    elif name == "--chunked-prefill-size":
        _chunk(draft, given)
    elif name == "--quantization":
        text = draft.literal(given)
        if text in QUANTIZED_AT_LOAD:
            draft.set("weights", QUANTIZED_AT_LOAD[text], given.said, given.place)
        elif text and text.lower() not in ("none", "auto"):
            draft.set("quantization", text, given.said, given.place)
    elif name == "--json-model-override-args":
        _overrides(draft, given)
    elif name != "--device" or draft.literal(given) not in ACCELERATED:
        draft.not_modelled(given, MATTERS, CACHE_MATTERS, TYPES_MATTER, ADDS)


def _experts(draft: Draft, given: dict[str, Given]) -> None:
    """`--moe-a2a-backend deepep` and the switches it replaced deal experts to all tensor ranks, whatever --ep-size says."""
    backend = given.get("--moe-a2a-backend")
    which = given.get("--enable-deepep-moe") or given.get("--enable-ep-moe")
    if backend is not None and draft.literal(backend) not in (None, "none"):
        which = backend
    if which is not None:
        draft.set("expert_parallel", int(draft.value("tensor_parallel") or 1), which.said, which.place)


def _chunk(draft: Draft, given: Given) -> None:
    """Tokens of one step of a prefill; -1 switches chunks off."""
    text = draft.literal(given)
    if text is None:
        return
    if text.strip() == "-1":
        draft.set("chunked_prefill", False, given.said, given.place)
    else:
        draft.apply(given, Rule("max_batched_tokens", whole()))


def _overrides(draft: Draft, given: Given) -> None:
    config = draft.json(given)
    for key, value in (config or {}).items():
        if key in ("rope_scaling", "rope_parameters") and isinstance(value, dict):
            rope(draft, value, given.said, given.place)
        elif key == "max_position_embeddings" and isinstance(value, int) and value > 0:
            if "context_tokens" in draft.settings:
                text = f"--json-model-override-args gives the model {value:,} positions"
                draft.problem("positions_overridden", text, given.place)
            else:
                draft.set("context_tokens", value, given.said, given.place)
        elif key not in ("architectures", "rope_theta"):
            text = f"--json-model-override-args sets {str(key)[:40]}, which may change the model kvcli computes with"
            draft.problem("option_not_modelled", text, given.place)


def _speculation(draft: Draft, given: dict[str, Given]) -> None:
    """A step drafts `--speculative-num-draft-tokens` less one token in a chain, as many as there are steps; a tree (topk above 1)
    holds all its nodes. What the model's own table leaves out is taken as 3 steps (auto_choose_speculative_params of 0.5)."""
    algorithm = given.get("--speculative-algorithm")
    if algorithm is None:
        return
    name = (draft.literal(algorithm) or "").upper()
    numbers: dict[str, int] = {}
    for option in ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"):
        if option in given and (text := draft.literal(given[option])) is not None:
            if not counts(text) or int(text) < 1:
                draft.problem("bad_argument", f"sglang refuses {given[option].said}", given[option].place)
                return
            numbers[option] = int(text)
    steps, nodes = numbers.get("--speculative-num-steps"), numbers.get("--speculative-num-draft-tokens")
    drafted = nodes - 1 if nodes and nodes > 1 else steps
    said, place = algorithm.said, algorithm.place
    if name == "NGRAM":
        drafted = nodes or 12
    elif drafted is None:
        drafted = 3
        text = f"{said} leaves the drafted tokens to sglang's table of models, which kvcli takes as 3"
        draft.problem("drafted_tokens_assumed", text, place, matters=False)
    path = given.get("--speculative-draft-model-path")
    model = draft.literal(path) if path else None
    if name == "NGRAM":
        draft.set("speculation", f"{drafted}:ngram", said, place)
    elif model is None and name in ("NEXTN", "EAGLE"):
        draft.set("speculation", str(drafted), said, place)
    elif model is None:
        draft.problem("drafter_not_said", f"sglang refuses {said}: it needs --speculative-draft-model-path", place)
    else:
        draft.set("speculation", f"{drafted}:{model}", said, place)
        if name != "STANDALONE":
            text = f"kvcli has no rule for {name} heads, and counts {model[:60]} as a draft model where it knows it"
            draft.problem("speculation_not_modelled", text, place)


def _tiers(draft: Draft, given: dict[str, Given]) -> None:
    """`--hicache-size` GB (10^9) a rank; without it a multiple of the pool, which is not known here."""
    switch = given.get("--enable-hierarchical-cache")
    if switch is None:
        return
    size = given.get("--hicache-size")
    text = draft.literal(size) if size else None
    if size and text and counts(text) and int(text):
        draft.set("kv_offload_bytes", int(text) * 10**9, size.said, size.place)
    else:
        words = f"{switch.said} keeps a multiple of the pool in the host's memory, 2 unless --hicache-ratio says otherwise"
        draft.problem("kv_tier_unknown", words, switch.place, matters=False)


def _adapters(draft: Draft, given: dict[str, Given]) -> None:
    """LoRA is on with `--enable-lora` or `--lora-paths`; without --max-lora-rank the rank is that of the adapters."""
    switch = given.get("--enable-lora") or given.get("--lora-paths")
    if switch is None:
        return
    if "--max-loras-per-batch" in given:
        draft.apply(given["--max-loras-per-batch"], Rule("lora_adapters", whole()))
    else:
        draft.set("lora_adapters", 8, f"{switch.option}: --max-loras-per-batch 8 by default", switch.place)
    if "--max-lora-rank" in given:
        draft.apply(given["--max-lora-rank"], Rule("lora_rank", whole()))
    else:
        draft.problem("lora_rank_unknown", f"{switch.option} without --max-lora-rank takes the rank of its adapters", switch.place)
