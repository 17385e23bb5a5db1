"""Variables that look like settings and that the engine does not read: whoever set them believes in a limit that is not there."""

from __future__ import annotations

from kvcli.check.deployment import SETTINGS
from kvcli.check.engines.settings import Draft
from kvcli.check.launch import Launch

#: what people write -> the setting they mean
_MEANT = {
    "MAX_MODEL_LEN": "context_tokens",
    "MAX_MODEL_LENGTH": "context_tokens",
    "MAX_SEQ_LEN": "context_tokens",
    "CONTEXT_LENGTH": "context_tokens",
    "MAX_CONTEXT_LENGTH": "context_tokens",
    "CTX_SIZE": "context_tokens",
    "MAX_TOTAL_TOKENS": "context_tokens",
    "GPU_MEMORY_UTILIZATION": "memory_fraction",
    "MEM_FRACTION_STATIC": "memory_fraction",
    "MAX_NUM_SEQS": "max_sequences",
    "MAX_RUNNING_REQUESTS": "max_sequences",
    "MAX_NUM_BATCHED_TOKENS": "max_batched_tokens",
    "TENSOR_PARALLEL_SIZE": "tensor_parallel",
    "TP_SIZE": "tensor_parallel",
    "NUM_SHARD": "tensor_parallel",
    "PIPELINE_PARALLEL_SIZE": "pipeline_parallel",
    "DATA_PARALLEL_SIZE": "data_parallel",
    "KV_CACHE_DTYPE": "kv_dtype",
    "QUANTIZATION": "weights",
    "CPU_OFFLOAD_GB": "weights_offload_bytes",
    "NUM_PARALLEL": "slots",
}
#: beginnings of such names that are the engine's own fashion
_PREFIXES = {
    "vllm": ("VLLM_",),
    "sglang": ("SGLANG_", "SGL_"),
    "llama.cpp": ("LLAMA_",),
    "tgi": ("TGI_",),
    "trtllm": ("TRTLLM_",),
    "ollama": (),
}
#: engines that read the plain names themselves
_READS = {"tgi": {"MAX_TOTAL_TOKENS", "NUM_SHARD", "KV_CACHE_DTYPE"}}


def report(draft: Draft, engine: str, launch: Launch) -> None:
    """A Problem for each such variable whose setting the command line leaves alone (where it sets it, the variable may be what it says)."""
    for name, word in launch.environment.items():
        plain = next((name.removeprefix(prefix) for prefix in _PREFIXES.get(engine, ()) if name.startswith(prefix)), name)
        key = _MEANT.get(plain)
        if key is None or key not in SETTINGS or name in _READS.get(engine, ()):
            continue
        setting = draft.settings.get(key)
        if setting is not None and setting.place is not None:
            continue
        stands = f"{key} stands at {setting.value}" if setting else f"{key} stands at its default"
        text = f"{engine} does not read {name}={word.text[:40]}: {stands}"
        draft.problem("variable_not_read", text, word.place)
