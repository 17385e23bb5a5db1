"""The model inside a GGUF file or a set of split ones: metadata in Hugging Face names, weights from the tensor list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcli import dtypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.config import build_spec, read_family
from kvcli.model.fields import Fields
from kvcli.model.gguf.archs import ARCHITECTURES, COMMON, MAYBE_BY_LAYER
from kvcli.model.gguf.header import GgufHeader, read_header
from kvcli.model.gguf.meta import Meta
from kvcli.model.gguf.tensors import check_widths, count_notice, sum_tensors
from kvcli.model.spec import ModelSpec

#: How llama.cpp's gguf-split names the parts.
PART = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
MAX_PARTS = 10_000


def read_gguf_file(path: Path) -> ModelSpec:
    """The model of a GGUF file; given any part of a split one, of all its parts.

    Raises BadInput for a damaged or missing file, NotModelled for an architecture without reader.
    """
    return spec_from_headers([read_header(part) for part in _parts(path)], path)


def spec_from_headers(headers: Sequence[GgufHeader], path: Path) -> ModelSpec:
    """The model whose parts have these headers, in their order. Raises what read_gguf_file does; `path` names them."""
    first, *others = headers
    tensors = [tensor for header in (first, *others) for tensor in header.tensors]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise BadInput(f"{path} and its other parts hold a tensor twice", hint="download them again", code="duplicate_tensor")
    if others:
        _check_split(first, others, len(tensors))
        return spec_from_header(replace(first, tensors=tuple(tensors)), split=True)
    return spec_from_header(first)


def _parts(path: Path) -> tuple[Path, ...]:
    """All parts of the file, itself alone where its name promises no others. Raises BadInput that names a missing one."""
    found = PART.match(path.name)
    if found is None:
        return (path,)
    count = int(found[3])
    if not 1 <= int(found[2]) <= count <= MAX_PARTS:
        raise BadInput(f"{path} is part {int(found[2]):,} of {count:,} by its name, which cannot be", code="bad_split")
    parts = tuple(path.with_name(f"{found[1]}-{number:05d}-of-{found[3]}.gguf") for number in range(1, count + 1))
    for part in parts:
        if not part.exists():
            raise BadInput(f"{part} is missing, one of {count} parts of the model", hint="download it too", code="missing_part")
    return parts


def _check_split(first: GgufHeader, others: Sequence[GgufHeader], tensors: int) -> None:
    """The parts' own counters, where they have them."""
    for number, header in enumerate((first, *others)):
        for key, wanted in (("split.no", number), ("split.count", 1 + len(others)), ("split.tensors.count", tensors)):
            value = header.metadata.get(key, wanted)
            if value != wanted:
                text = f"{header.path} says {key} {str(value)[:40]} where the files beside it make {wanted}"
                raise BadInput(text, hint="the parts may be of different models", code="bad_split")


def spec_from_header(header: GgufHeader, split: bool = False) -> ModelSpec:
    """Layers from the metadata, exact weight bytes from the tensor infos; the cache is f16, llama.cpp's default.

    Raises NotModelled for one part of a split file, unless its tensors are those of all parts (`split`).
    """
    architecture = header.metadata.get("general.architecture")
    parts = header.metadata.get("split.count", 1)
    if not split and isinstance(parts, int) and parts > 1:
        raise NotModelled(f"{header.path} is one of {parts} parts of a model", hint="merge them with gguf-split", code="split_file")
    if not isinstance(architecture, str):
        raise BadInput(f"{header.path} has no general.architecture", code="missing_field")
    if architecture not in ARCHITECTURES:
        raise NotModelled(
            f"{header.path}: kvcli has no reader for the GGUF architecture {architecture[:60]!r}",
            hint="it reads " + ", ".join(ARCHITECTURES),
            code="unknown_architecture",
        )
    known = ARCHITECTURES[architecture]
    meta = Meta(header, architecture, header.tensors)
    config = _config(meta)
    if known.more is not None:
        config |= known.more(meta, config)
    model_type = config.pop("model_type", known.model_type)
    if model_type in ("mixtral", "granitemoe", "granitemoeshared", "olmoe"):
        config["intermediate_size"] = config.pop("expert_width", None) or config.get("intermediate_size")
    fields = Fields({key: value for key, value in config.items() if value is not None or key == "q_lora_rank"}, str(header.path))
    model = read_family(model_type, fields)
    if not known.runs or model_type == "mixtral":
        model = replace(model, decoder=None)
    if architecture == "llama" and model.decoder is not None and model.decoder.rope is not None:
        # llama files store q and k permuted, so that neighbouring dimensions pair
        rope = model.decoder.rope._replace(layout="interleaved")
        model = replace(model, decoder=model.decoder._replace(rope=rope))
    spec = build_spec(model, model_type, header.path.stem, str(header.path), dtypes.FP16, ())
    check_widths(spec, meta)
    file, elements = sum_tensors(spec, meta, header.tensors)
    return replace(spec, tensors=file, notices=(*spec.notices, *count_notice(spec, elements), *_expanded_notice(meta, spec)))


def _expanded_notice(meta: Meta, spec: ModelSpec) -> tuple[Notice, ...]:
    """Latent attention that llama.cpp computes with every head's keys and values, which it then caches."""
    if meta.architecture not in ("deepseek2", "minicpm3") or meta.scalar("attention.key_length_mla") is not None:
        return ()
    text = f"{meta.where} keeps latent attention in an older form: llama.cpp caches every head's keys and values for it, not the latent"
    return (Notice("expanded_heads", text),)


def _config(meta: Meta) -> dict[str, Any]:
    """The keys that nearly all readers share."""
    header, tensors = meta.header, meta.tensors
    known = ARCHITECTURES[meta.architecture]
    config: dict[str, Any] = {
        "num_hidden_layers": meta.layers,
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": meta.has("attn_q.bias") or meta.has("attn_qkv.bias"),
        "mlp_bias": meta.has("ffn_up.bias"),
        "vocab_size": meta.vocab_size,
    }
    names = {**COMMON, **{key: name for key, name in MAYBE_BY_LAYER.items() if key not in known.by_layer}}
    for key, name in names.items():
        value = meta.scalar(key)
        if value is not None:
            config[name] = value
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if "head_dim" not in config and isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden % heads == 0:
        config["head_dim"] = hidden // heads  # what llama.cpp assumes, whatever the class's default
    value_length = meta.scalar("attention.value_length")
    if value_length is not None and value_length != config.get("head_dim") and meta.scalar("attention.kv_lora_rank") is None:
        text = f"{header.path} has values of another width ({value_length}) than keys ({config.get('head_dim')})"
        raise NotModelled(f"{text}, which kvcli does not model in GGUF files", code="variant_not_modelled")
    return {**config, **_rotary(meta, config)}


def _rotary(meta: Meta, config: dict[str, Any]) -> dict[str, Any]:
    more: dict[str, Any] = {}
    rotated, head_dim = meta.scalar("rope.dimension_count"), config.get("head_dim")
    if isinstance(rotated, int) and isinstance(head_dim, int) and 0 < rotated < head_dim:
        more["partial_rotary_factor"] = rotated / head_dim
    kind = meta.scalar("rope.scaling.type")
    if "rope_freqs.weight" in meta.tensors:
        more["rope_scaling"] = {"rope_type": "factors"}
    elif isinstance(kind, str) and kind != "none":
        more["rope_scaling"] = {"rope_type": kind, "factor": meta.scalar("rope.scaling.factor") or 1.0}
    elif "rope_factors_long.weight" in meta.tensors:
        more["rope_scaling"] = {"rope_type": "longrope"}
    return more
