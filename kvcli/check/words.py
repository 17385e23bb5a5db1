"""How each engine, and the capacity file itself, spells a setting: for the changes that are proposed."""

from __future__ import annotations

import re

from kvcli.check.case import Case
from kvcli.units import plural

#: engine -> setting -> option
OPTIONS: dict[str, dict[str, str]] = {
    "vllm": {
        "context_tokens": "--max-model-len",
        "kv_dtype": "--kv-cache-dtype",
        "tensor_parallel": "--tensor-parallel-size",
        "pipeline_parallel": "--pipeline-parallel-size",
        "data_parallel": "--data-parallel-size",
        "max_sequences": "--max-num-seqs",
        "memory_fraction": "--gpu-memory-utilization",
        "kv_memory_bytes": "--kv-cache-memory-bytes",
        "dtype": "--dtype",
    },
    "sglang": {
        "context_tokens": "--context-length",
        "kv_dtype": "--kv-cache-dtype",
        "tensor_parallel": "--tp-size",
        "pipeline_parallel": "--pp-size",
        "data_parallel": "--dp-size",
        "max_sequences": "--max-running-requests",
        "memory_fraction": "--mem-fraction-static",
        "dtype": "--dtype",
    },
    "llama.cpp": {"slots": "--parallel", "gpu_layers": "--n-gpu-layers"},
    "tgi": {"context_tokens": "--max-total-tokens", "tensor_parallel": "--num-shard", "memory_fraction": "--cuda-memory-fraction"},
    "trtllm": {
        "context_tokens": "--max_seq_len",
        "tensor_parallel": "--tp_size",
        "pipeline_parallel": "--pp_size",
        "max_sequences": "--max_batch_size",
        "memory_fraction": "--kv_cache_free_gpu_memory_fraction",
    },
    "ollama": {"context_tokens": "OLLAMA_CONTEXT_LENGTH", "slots": "OLLAMA_NUM_PARALLEL", "kv_dtype": "OLLAMA_KV_CACHE_TYPE"},
}
#: the capacity file's keys
KEYS = {
    "context_tokens": "ctx",
    "kv_dtype": "kv_dtype",
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "data_parallel": "dp",
    "max_sequences": "max_sequences",
    "memory_fraction": "memory_fraction",
    "kv_memory_bytes": "kv_memory",
    "slots": "parallel",
    "gpu_layers": "ngl",
}
#: what engines call kvcli's types
_TYPES = {"sglang": {"fp8": "fp8_e4m3"}, "vllm": {"int8": "int8_per_token_head"}}


def spelled(case: Case, key: str, value: int | float | str) -> str:
    """The setting with its value, as one would write it where the deployment is written."""
    engine = case.deployment.engine
    if case.own or key not in OPTIONS.get(engine, {}):
        if engine == "llama.cpp" and not case.own:
            return _llama(case, key, value)
        return f"{KEYS.get(key, key)}: {value}{'B' if key == 'kv_memory_bytes' else ''}"
    if key == "kv_dtype":
        value = _TYPES.get(engine, {}).get(str(value), value)
    option = OPTIONS[engine][key]
    return f"{option}={value}" if option.isupper() else f"{option} {value}"


def written(case: Case, tokens: int) -> str:
    """The number alone of a length, as one would write it there."""
    return re.split("[ =]", spelled(case, "context_tokens", tokens))[-1]


def _llama(case: Case, key: str, value: int | float | str) -> str:
    if key == "context_tokens":
        slots = case.setting("slots")
        unified = case.setting("kv_unified")
        count = slots.value if slots and isinstance(slots.value, int) and not (unified and unified.value) else 1
        return f"-c {int(value) * count}"
    if key == "kv_dtype":
        key_type, _, value_type = str(value).partition(":")
        return f"-ctk {key_type} -ctv {value_type or key_type} -fa on"
    return f"{KEYS.get(key, key)}: {value}"


def are(count: int, word: str) -> str:
    """`1 user is`, `8 users are`."""
    return f"{plural(count, word)} {'is' if count == 1 else 'are'}"


def in_words(case: Case, text: str) -> str:
    """A sentence that names options of `kvcli plan`, with those of the engine, or the keys of the capacity file, instead."""
    options = OPTIONS.get(case.deployment.engine, {})
    for option, key in (("--tp", "tensor_parallel"), ("--pp", "pipeline_parallel")):
        named = f"{KEYS[key]}:" if case.own or key not in options else options[key]
        text = re.sub(rf"{option}(?=[ ,:]|$)", named, text)
    return text
