"""The model inside a GGUF file: its metadata in Hugging Face names, its weights from the tensor list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcli import dtypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.config import build_spec, read_family
from kvcli.model.fields import Fields
from kvcli.model.gguf import GgufHeader, TensorInfo, read_header
from kvcli.model.spec import ModelSpec, TensorFile

#: general.architecture -> model_type of the reader. Mistral files call themselves llama.
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3", "gpt2": "gpt2"}

#: GGUF key after the architecture's prefix -> config keys of the readers
_KEYS = {
    "block_count": ("num_hidden_layers", "n_layer"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon",),
    "attention.sliding_window": ("sliding_window",),
    "rope.freq_base": ("rope_theta",),
}

#: Tensors that hold rotary factors: positions, not weights of the model.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def read_gguf_file(path: Path) -> ModelSpec:
    """The model of a GGUF file. Raises BadInput for a damaged file, NotModelled for an architecture without reader."""
    return spec_from_header(read_header(path))


def spec_from_header(header: GgufHeader) -> ModelSpec:
    """Layers from the metadata, exact weight bytes from the tensor infos; the cache is f16, llama.cpp's default."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise BadInput(f"{header.path} has no general.architecture", code="missing_field")
    if architecture not in ARCHITECTURES:
        raise NotModelled(
            f"{header.path}: kvcli has no reader for the GGUF architecture {architecture!r}",
            hint="it reads " + ", ".join(ARCHITECTURES),
            code="unknown_architecture",
        )
    _refuse_variants(header, architecture)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    fields = Fields(_config(header, architecture, tensors), str(header.path))
    model_type = ARCHITECTURES[architecture]
    if model_type == "llama" and fields.has("sliding_window"):
        model_type = "mistral"  # the kin with a window on every layer
    model = read_family(model_type, fields)
    if architecture == "llama" and model.decoder is not None and model.decoder.rope is not None:
        # llama files store q and k permuted, so that neighbouring dimensions pair
        rope = model.decoder.rope._replace(layout="interleaved")
        model = replace(model, decoder=model.decoder._replace(rope=rope))
    spec = build_spec(model, model_type, header.path.stem, str(header.path), dtypes.FP16, ())
    return replace(spec, tensors=_tensor_file(header.tensors, tied=spec.tied), notices=_count_notice(spec, header.tensors))


def _refuse_variants(header: GgufHeader, architecture: str) -> None:
    """Raises NotModelled for what the readers of these architectures do not cover."""
    experts = header.metadata.get(f"{architecture}.expert_count", 0)
    if experts:
        raise NotModelled(f"{header.path} has {experts} experts, which kvcli does not model in GGUF files", code="variant_not_modelled")
    key, value = (header.metadata.get(f"{architecture}.attention.{name}_length") for name in ("key", "value"))
    if value is not None and value != key:
        text = f"{header.path} has values of another width ({value}) than keys ({key}), which kvcli does not model in GGUF files"
        raise NotModelled(text, code="variant_not_modelled")


def _config(header: GgufHeader, architecture: str, tensors: dict[str, TensorInfo]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
    }
    for key, names in _KEYS.items():
        value = header.metadata.get(f"{architecture}.{key}")
        if isinstance(value, Sequence) and not isinstance(value, str):
            if len(set(value)) != 1:
                raise NotModelled(f"{header.path}: {architecture}.{key} differs from layer to layer", code="per_layer_heads")
            value = value[0]
        if value is not None:
            config.update(dict.fromkeys(names, value))
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BadInput(f"{header.path} has no token_embd.weight", hint="it may be a vocabulary or adapter file", code="no_weights")
    config["vocab_size"] = embedding.shape[1]
    rotated, head_dim = header.metadata.get(f"{architecture}.rope.dimension_count"), config.get("head_dim")
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if head_dim is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        head_dim = hidden // heads
    if isinstance(rotated, int) and isinstance(head_dim, int) and 0 < rotated < head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    kind = header.metadata.get(f"{architecture}.rope.scaling.type")
    if "rope_freqs.weight" in tensors:
        config["rope_scaling"] = {"rope_type": "factors"}
    elif isinstance(kind, str) and kind != "none":
        config["rope_scaling"] = {"rope_type": kind, "factor": header.metadata.get(f"{architecture}.rope.scaling.factor", 1.0)}
    elif "rope_factors_long.weight" in tensors:
        config["rope_scaling"] = {"rope_type": "longrope"}
    if "sliding_window" in config:
        config["use_sliding_window"] = True
        config["max_window_layers"] = 0
    elif architecture in ("qwen2", "qwen3"):
        config["use_sliding_window"] = False
    return config


def _tensor_file(tensors: Sequence[TensorInfo], tied: bool) -> TensorFile:
    stored: Counter[str] = Counter()
    unread = 0
    for tensor in tensors:
        stored[tensor.dtype.name] += tensor.size_bytes
        if tensor.name == "position_embd.weight" or (tensor.name == "token_embd.weight" and not tied):
            unread += tensor.size_bytes
    resident = sum(stored.values())
    return TensorFile(dtype=stored.most_common(1)[0][0], resident_bytes=resident, read_bytes_per_step=resident - unread)


def _count_notice(spec: ModelSpec, tensors: Sequence[TensorInfo]) -> tuple[Notice, ...]:
    """The tensor list is the truth about weights; a metadata block that disagrees with it deserves a word."""
    elements = sum(tensor.elements for tensor in tensors if tensor.name not in ROPE_FACTORS)
    if elements == spec.parameters:
        return ()
    text = f"{spec.source} holds {elements:,} weights, its metadata describes {spec.parameters:,}: bytes are those of its tensors"
    return (Notice("tensor_count_differs", text),)
