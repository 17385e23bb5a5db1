"""TensorRT-LLM: `trtllm-serve` with its YAML file, which overrides the command line, and `trtllm-build`.

Sources: NVIDIA/TensorRT-LLM, `tensorrt_llm/commands/serve.py`, `commands/build.py` and `llmapi/llm_args.py` (0.20 to 1.2).
memory_fraction is the share of what is free after weights and activations, as this engine counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from kvcli.check.engines import config_file
from kvcli.check.engines.settings import TYPES, Draft, Rule, any_of, fraction, whole
from kvcli.check.engines.table import CLICK, Option, options_of, parse
from kvcli.check.launch import Launch
from kvcli.check.nodes import Place, Word

_SERVE = """
--tokenizer --custom-tokenizer --host --port --backend --custom-module-dirs --log-level --max-beam-width --max-batch-size
--max-num-tokens --max-seq-len --tensor-parallel-size,--tp-size --pipeline-parallel-size,--pp-size
--context-parallel-size,--cp-size --moe-expert-parallel-size,--ep-size --moe-cluster-parallel-size,--cluster-size
--gpus-per-node --free-gpu-memory-fraction,--kv-cache-free-gpu-memory-fraction --num-postprocess-workers
--trust-remote-code! --revision --extra-llm-api-options,--config --reasoning-parser --tool-parser
--metadata-server-config-file --server-role --fail-fast-on-attention-window-too-large! --otlp-traces-endpoint
--disagg-cluster-uri --enable-chunked-prefill! --media-io-kwargs --chat-template --served-model-name --kv-cache-dtype
--telemetry! --no-telemetry! --grpc! --help!
"""
_BUILD = """
--checkpoint-dir --model-config --build-config --model-cls-file --model-cls-name --output-dir --max-batch-size --max-input-len
--max-seq-len,--max-decoder-seq-len --max-beam-width --max-num-tokens --opt-num-tokens --max-encoder-input-len
--max-prompt-embedding-table-size --kv-cache-type --paged-kv-cache --input-timing-cache --output-timing-cache
--profiling-verbosity --strip-plan! --weight-sparsity! --weight-streaming! --fast-build! --workers --log-level
--enable-debug-output! --visualize-network --dry-run! --monitor-memory! --logits-dtype --gather-context-logits!
--gather-generation-logits! --gather-all-token-logits! --lora-dir+ --lora-ckpt-source --lora-target-modules+ --max-lora-rank
--speculative-decoding-mode --max-draft-len --gemm-plugin --gpt-attention-plugin --remove-input-padding --context-fmha
--use-paged-context-fmha --use-fp8-context-fmha --multiple-profiles --reduce-fusion --tokens-per-block --nccl-plugin
--moe-plugin --mamba-conv1d-plugin --bert-attention-plugin --low-latency-gemm-plugin --lora-plugin --use-fused-mlp
--user-buffer --norm-quant-fusion --gemm-swiglu-plugin --fp8-rowwise-gemm-plugin --tp-size --pp-size --cp-size
--auto-parallel --cluster-key --help,-h!
"""
RULES = {
    "--max-seq-len": Rule("context_tokens", whole()),
    "--max-batch-size": Rule("max_sequences", whole()),
    "--max-num-tokens": Rule("max_batched_tokens", whole()),
    "--tensor-parallel-size": Rule("tensor_parallel", whole()),
    "--pipeline-parallel-size": Rule("pipeline_parallel", whole()),
    "--moe-expert-parallel-size": Rule("expert_parallel", whole()),
    "--free-gpu-memory-fraction": Rule("memory_fraction", fraction),
    "--tokens-per-block": Rule("block_tokens", whole()),
    "--tp-size": Rule("tensor_parallel", whole()),
    "--pp-size": Rule("pipeline_parallel", whole()),
}
_KV = any_of({name: TYPES[name] for name in ("auto", "fp8", "bfloat16", "float16")} | {"nvfp4": "nvfp4"})
#: keys of the file, nested ones with a dot -> the same
FILE_RULES = {
    **{name[2:].replace("-", "_"): rule for name, rule in RULES.items()},
    "kv_cache_config.free_gpu_memory_fraction": Rule("memory_fraction", fraction),
    "kv_cache_config.max_tokens": Rule("kv_tokens", whole()),
    "kv_cache_config.max_gpu_total_bytes": Rule("kv_memory_bytes", whole(0)),
    "kv_cache_config.tokens_per_block": Rule("block_tokens", whole()),
    "kv_cache_config.host_cache_size": Rule("kv_offload_bytes", whole(0)),
    "kv_cache_config.dtype": Rule("kv_dtype", _KV),
    "kv_cache_dtype": Rule("kv_dtype", _KV),
}
_FILE_SWITCHES = {
    "enable_attention_dp": "dp_attention",
    "enable_chunked_prefill": "chunked_prefill",
    "trust_remote_code": "trust_remote_code",
    "kv_cache_config.enable_block_reuse": "prefix_caching",
}
_FILE_MATTERS = {
    "context_parallel_size": "sequences dealt among ranks",
    "kv_cache_config.max_attention_window": "windows for layers by hand",
    "quant_config": "weights quantised as they load",
    "sparse_attention_config": "attention to a part of the cache",
    "moe_config.load_balancer": "copies of experts",
    "kv_cache_config.mamba_ssm_cache_dtype": "states of another type",
}
#: its own numbers are no absolute bound where they are zero or null
_NONE = (None, 0)


@cache
def options(build: bool) -> dict[str, Option]:
    return options_of(_BUILD if build else _SERVE)


def read(launch: Launch, words: Sequence[Word], draft: Draft, version: str, build: bool = False) -> Word | None:
    """Fills `draft` from the words behind the program; returns the model: the positional, or the checkpoint that is built."""
    parsed = parse(words, options(build), CLICK)
    draft.problems += parsed.problems
    given = {each.option: each for each in parsed.given}
    for each in parsed.given:
        if each.option in RULES:
            draft.apply(each, RULES[each.option])
        elif each.option in ("--enable-chunked-prefill", "--trust-remote-code"):
            draft.set(each.option[2:].replace("-", "_").removeprefix("enable_"), True, each.said, each.place)
        elif each.option == "--kv-cache-dtype":
            draft.apply(each, Rule("kv_dtype", _KV))
        elif each.option == "--context-parallel-size":
            draft.problem("option_not_modelled", f"kvcli has no rule for {each.said}: {_FILE_MATTERS['context_parallel_size']}", each.place)
        elif each.option == "--speculative-decoding-mode":
            draft.problem("option_not_modelled", f"kvcli has no rule for {each.said}: engines built for speculation", each.place)
    file = given.get("--extra-llm-api-options")
    if file is not None and file.values:
        for entry in config_file.entries_of(file.values[0], launch.files, draft):
            _file_entry(draft, entry)
    _defaults(draft, version, build)
    rest = [word for word in parsed.rest if word.text != "serve"]
    for word in rest[1:]:
        draft.problem("stray_word" if word.literal else "not_literal", f"trtllm does not know what {word.text[:60]!r} is for", word.place)
    if build and "--checkpoint-dir" in given:
        return given["--checkpoint-dir"].values[0]
    return rest[0] if rest else launch.model


def _file_entry(draft: Draft, entry: config_file.Entry) -> None:
    key, value = entry.key.text, entry.value
    if key == "speculative_config" and isinstance(value, dict):
        _speculation(draft, value, entry.place)
    elif key == "cuda_graph_config" and value is None:
        draft.set("eager", True, "cuda_graph_config: null", entry.place)
    elif key == "lora_config" and isinstance(value, dict):
        for name, setting in (("max_loras", "lora_adapters"), ("max_lora_rank", "lora_rank")):
            if isinstance(value.get(name), int):
                draft.set(setting, value[name], f"{key}.{name}: {value[name]}", entry.places.get(name, entry.place))
    elif isinstance(value, dict):
        for name, inner in value.items():
            _file_value(draft, f"{key}.{name}", inner, entry.places.get(name, entry.place))
        if key in _FILE_MATTERS and value:
            _matters(draft, key, entry.place)
    else:
        _file_value(draft, key, value, entry.place)


def _file_value(draft: Draft, key: str, value: Any, place: Place) -> None:
    said = f"{key}: {value}"[:120]
    if key in FILE_RULES and value not in _NONE:
        draft.read(FILE_RULES[key], str(value), said, place)
    elif key in _FILE_SWITCHES and isinstance(value, bool):
        draft.set(_FILE_SWITCHES[key], value, said, place)
    elif key in _FILE_MATTERS and value not in _NONE:
        _matters(draft, key, place)


def _matters(draft: Draft, key: str, place: Place) -> None:
    draft.problem("option_not_modelled", f"kvcli has no rule for {key}: {_FILE_MATTERS[key]}", place)


def _speculation(draft: Draft, config: dict[str, Any], place: Place) -> None:
    kind = str(config.get("decoding_type", "")).lower()
    tokens = next((config[key] for key in ("max_draft_len", "num_nextn_predict_layers") if isinstance(config.get(key), int)), 1)
    model = config.get("speculative_model") or config.get("speculative_model_dir")
    said = f"speculative_config: {kind} {tokens}"
    if kind == "mtp":
        draft.set("speculation", str(tokens), said, place)
    elif kind == "ngram":
        draft.set("speculation", f"{tokens}:ngram", said, place)
    elif isinstance(model, str):
        draft.set("speculation", f"{tokens}:{model}", said, place)
        if kind != "drafttarget" and kind != "draft_target":
            text = f"kvcli has no rule for {kind[:20]} heads and counts {model[:60]} as a draft model"
            draft.problem("speculation_not_modelled", text, place)
    else:
        draft.problem("option_not_modelled", f"kvcli has no rule for {said}", place)


def _defaults(draft: Draft, version: str, build: bool) -> None:
    named = f"trtllm {version}"
    for key in ("tensor_parallel", "pipeline_parallel"):
        draft.default(key, 1, named)
    draft.default("memory_fraction", 0.9, named, "of what weights leave free")
    draft.default("max_sequences", 2048, named)
    draft.default("max_batched_tokens", 8192, named)
    draft.default("kv_dtype", "auto", named)
    draft.default("prefix_caching", True, named)
    draft.default("chunked_prefill", False, named)
    draft.default("eager", False, named)
