"""ollama: OLLAMA_* variables and the model of `ollama run`. It moves layers to the host until the rest fits.

Sources: ollama/ollama, `envconfig/config.go`, `docs/faq.mdx` and `docs/context-length.mdx` (0.5 to 0.17).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcli.check.deployment import Setting
from kvcli.check.engines.settings import Draft, Rule, one_of, whole
from kvcli.check.engines.versions import numbers
from kvcli.check.launch import Launch
from kvcli.check.nodes import Word

RULES = {
    "OLLAMA_CONTEXT_LENGTH": Rule("context_tokens", whole()),
    "OLLAMA_NUM_PARALLEL": Rule("slots", whole()),
    "OLLAMA_KV_CACHE_TYPE": Rule("kv_dtype", one_of({"f16": "fp16", "q8_0": "q8_0", "q4_0": "q4_0"})),
}
_KNOWN = """
OLLAMA_DEBUG OLLAMA_FLASH_ATTENTION OLLAMA_GPU_OVERHEAD OLLAMA_HOST OLLAMA_KEEP_ALIVE OLLAMA_LLM_LIBRARY OLLAMA_LOAD_TIMEOUT
OLLAMA_MAX_LOADED_MODELS OLLAMA_MAX_QUEUE OLLAMA_MODELS OLLAMA_NOHISTORY OLLAMA_NOPRUNE OLLAMA_ORIGINS OLLAMA_SCHED_SPREAD
OLLAMA_MULTIUSER_CACHE OLLAMA_NEW_ENGINE OLLAMA_NEW_ESTIMATES OLLAMA_INTEL_GPU OLLAMA_VULKAN OLLAMA_AUTH OLLAMA_REMOTES
OLLAMA_EDITOR OLLAMA_NO_CLOUD OLLAMA_DEBUG_LOG_REQUESTS
"""


def read(launch: Launch, words: Sequence[Word], draft: Draft, version: str) -> Word | None:
    """`words`: behind `ollama`. Fills `draft`; returns the model, which only `run` and `pull` name."""
    for name, word in launch.environment.items():
        said = f"{name}={word.text[:60]}"
        if name in RULES:
            if not word.literal:
                draft.problem("not_literal", f"{said} is only known where it runs, so kvcli cannot take it into account", word.place)
            elif word.text.strip() not in ("", "0"):
                draft.read(RULES[name], word.text.strip(), said, word.place)
        elif name.startswith("OLLAMA_") and name not in _KNOWN.split():
            draft.problem("variable_not_read", f"ollama does not read {name}", word.place, matters=False)
    models = launch.environment.get("OLLAMA_MAX_LOADED_MODELS")
    if models is not None and models.text.strip() not in ("", "0", "1"):
        text = f"OLLAMA_MAX_LOADED_MODELS={models.text[:20]} lets other models share the device"
        draft.problem("option_not_modelled", text, models.place)
    named = f"ollama {version}"
    draft.default("slots", 1, named)
    draft.default("kv_unified", False, named)
    draft.default("kv_dtype", "auto", named)
    draft.default("ubatch", 512, named)
    draft.default("gpu_layers", "auto", named)
    if "-" not in version and numbers(version) < (0, 15):
        draft.default("context_tokens", 4096 if numbers(version) >= (0, 6) else 2048, named)
    given = list(words)
    if len(given) > 1 and given[0].text in ("run", "pull", "create"):
        return next((word for word in given[1:] if not word.text.startswith("-")), launch.model)
    return launch.model


def card_defaults(memory_bytes: int) -> dict[str, Setting]:
    """context_tokens where OLLAMA_CONTEXT_LENGTH is absent, by the memory of all devices: 4k below 24 GiB, 32k below 48, else 256k."""
    gib = memory_bytes / 2**30
    tokens = 4096 if gib < 24 else 32768 if gib < 48 else 262144
    return {"context_tokens": Setting(tokens, "ollama default for this much memory")}
