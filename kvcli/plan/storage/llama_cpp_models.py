"""What llama.cpp does with the layers of each architecture: which windows it honours, which states it has a rule for."""

from __future__ import annotations

from kvcli.errors import NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.spec import ModelSpec

#: model_types whose window (or chunk) layers have a cache of their own size
WINDOWED = frozenset(
    [
        *("afmoe", "cohere2", "exaone4", "exaone_moe", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss"),
        *("laguna", "llama4_text", "mimo_v2_flash", "olmo3", "step3p5"),
    ]
)
#: model_types whose window it does not read, or reads and switches off (Phi-3), so that all tokens stay
UNWINDOWED = frozenset(["ministral", "mistral", "mixtral", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "starcoder2"])
#: model_types with recurrent or convolution states of its shapes
RECURRENT = frozenset(
    [
        *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "mamba", "mamba2"),
        *("nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
    ]
)
#: model_types with a cache of index keys beside keys and values
INDEXED = frozenset(("minimax_m3_vl_text",))


def windows(spec: ModelSpec, engine: str) -> dict[CacheRecord, int]:
    """The records that get a window cache, with their window. A chunk counts as a window.

    Raises NotModelled where kvcli does not know what llama.cpp does with this architecture's windows, and where
    they differ from layer to layer: llama.cpp has one.
    """
    found: dict[CacheRecord, int] = {}
    for group in spec.groups:
        for record in group.records:
            if isinstance(record, Attention) and record.owns_cache:
                width = record.chunk_tokens or record.window_tokens
                if width is not None:
                    found[record] = width
    if not found or spec.model_type in UNWINDOWED:
        return {}
    hint = "--swa-full stores them in full" if engine == "llama.cpp" else "use --engine ideal"
    if spec.model_type not in WINDOWED:
        raise NotModelled(
            f"kvcli does not know whether {engine} keeps the windows of {spec.model_type} apart",
            hint=hint,
            code="no_storage_rule",
        )
    if len(set(found.values())) > 1:
        text = f"{spec.name} has windows of different lengths, and {engine} has one length for all"
        raise NotModelled(text, hint=hint, code="no_storage_rule")
    return found
