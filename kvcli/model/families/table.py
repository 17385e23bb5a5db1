"""Which reader understands which `model_type`: names only, so that one plan imports one reader."""

from __future__ import annotations

#: model_type -> (module in this package, function in it)
READERS: dict[str, tuple[str, str]] = {
    "llama": ("llama", "read_llama"),
    "mistral": ("llama", "read_mistral"),
    "qwen2": ("llama", "read_qwen2"),
    "qwen3": ("llama", "read_qwen3"),
    "phi3": ("llama", "read_phi3"),
    "gpt2": ("gpt2", "read_gpt2"),
}
