"""Hugging Face `config.json` files: read, checked, and handed to the reader of their family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcli import dtypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model import config_checks
from kvcli.model.families.table import READERS, WRAPPERS
from kvcli.model.fields import Fields
from kvcli.model.layers import group_layers
from kvcli.model.spec import ModelSpec

if TYPE_CHECKING:
    from kvcli.model.families.parts import ModelParts

#: how files count blocks that predict further tokens
PREDICTION_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules")
#: Keys that multimodal files have beside or inside the decoder's object.
EITHER_LEVEL = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")

#: Published configs stay under 100 kB; a larger file is something else.
MAX_CONFIG_BYTES = 16 * 2**20


def read_config_file(path: Path, assume: str | None = None) -> ModelSpec:
    """The model of a `config.json`. Raises BadInput for an unusable file, NotModelled for an unknown `model_type`."""
    return spec_from_config(with_modelopt(load_json(path), path), _name(path), str(path), assume)


def with_modelopt(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """NVIDIA's older checkpoints say how they are quantised in `hf_quant_config.json` beside the config, not in it."""
    beside = path.with_name("hf_quant_config.json")
    levels = (config, *(value for value in config.values() if isinstance(value, Mapping)))
    if any(level.get("quantization_config") for level in levels) or not beside.is_file():
        return config
    found = load_json(beside).get("quantization")
    return {**config, "quantization_config": {"quant_method": "modelopt", **found}} if isinstance(found, dict) else config


def load_json(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """A JSON object from a file of at most `max_bytes`. Raises BadInput that names the file and what is wrong with it."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadInput(f"{path} is not a regular file", code="unreadable_file")
        if path.stat().st_size > max_bytes:
            raise BadInput(f"{path} is larger than any model config ({path.stat().st_size:,} bytes)", code="config_too_large")
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", code="unreadable_file") from None
    return parse_json(raw, str(path))


def parse_json(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `raw`, which came from `where`. Raises BadInput that names it."""
    try:
        values = json.loads(raw)
    except RecursionError:
        raise BadInput(f"{where} is nested too deeply to be a model config", code="bad_json") from None
    except ValueError as error:
        raise BadInput(f"{where} is not JSON: {str(error)[:120]}", code="bad_json") from None
    if not isinstance(values, dict):
        raise BadInput(f"{where} holds a {type(values).__name__}, not a JSON object", code="bad_json")
    return values


def spec_from_config(config: Mapping[str, Any], name: str, source: str, assume: str | None = None) -> ModelSpec:
    """The model that a config describes.

    Raises BadInput for a value that cannot be, NotModelled for an unknown `model_type`, unless `assume` is "gqa": then its
    plain fields are read as grouped-query attention, and the answer is labelled as assumed.
    """
    fields = decoder_fields(Fields(config, source))
    model_type = fields.text("model_type", "")
    if not model_type:
        raise BadInput(f"{source} has no 'model_type'", hint="pass the model's own config.json", code="missing_field")
    if model_type not in READERS and assume == "gqa":
        from kvcli.model.families.assumed import read_gqa

        dtype, notices = _compute_dtype(fields)
        text = f"model_type {model_type[:60]!r} is unknown: every line assumes full grouped-query attention in all layers"
        notices = (*notices, Notice("assumed_gqa", text))
        return build_spec(read_gqa(fields), model_type, f"{name} (assumed gqa)", f"{source}, assumed gqa", dtype, notices)
    if model_type not in READERS:
        seen = ", ".join(sorted(str(key) for key in fields.values)[:12])
        raise NotModelled(
            f"{source}: kvcli has no reader for model_type {model_type[:60]!r}; the file has {seen}",
            hint=f"it reads {len(READERS)} types; --assume gqa plans this one as plain grouped-query attention, labelled so",
            code="unknown_model_type",
        )
    config_checks.refuse_foreign_keys(fields, model_type)
    dtype, notices = _compute_dtype(fields)
    spec = build_spec(read_family(model_type, fields), model_type, name, source, dtype, notices)
    quantization = None
    if fields.has("quantization_config"):
        from kvcli.model.quantization import read_quantization  # most files have none

        quantization = read_quantization(fields.mapping("quantization_config"))
    named = any(fields.values.get(key) for key in PREDICTION_KEYS)
    return replace(spec, quantization=quantization, mtp_named=named, notices=(*spec.notices, *config_checks.notices(fields, spec)))


def decoder_fields(fields: Fields) -> Fields:
    """The decoder's own keys: of the nested config where the file describes a multimodal model, else all of them.

    `dtype`, the tie flag and the quantization may stand at either level; the outer object stays reachable as `outer`.
    """
    outer_type = fields.text("model_type", "")
    if outer_type not in WRAPPERS:
        return _nested_under_its_own_type(fields)
    nested = fields
    for key in WRAPPERS[outer_type].path:
        nested = nested.mapping(key)
    if not nested.values:  # older files (Qwen2-VL) keep the decoder's keys at the top
        nested = Fields({key: value for key, value in fields.values.items() if key != "model_type"}, fields.where)
    for key in WRAPPERS[outer_type].required:
        nested.integer(key)  # an absent one is an error: the wrapper has defaults of its own
    inherited = {key: fields.values[key] for key in EITHER_LEVEL if key in fields.values}
    inner_type = {"model_type": WRAPPERS[outer_type].model_type}
    values = {**inherited, **inner_type, **nested.values}
    return Fields(values, nested.where, outer=fields)


def read_family(model_type: str, fields: Fields) -> ModelParts:
    """Imports the one reader that is needed and runs it."""
    module, function = READERS[model_type]
    model: ModelParts = getattr(import_module(f"kvcli.model.families.{module}"), function)(fields)
    return model


def build_spec(model: ModelParts, model_type: str, name: str, source: str, dtype: dtypes.DType, notices: tuple[Notice, ...]) -> ModelSpec:
    groups, order = group_layers(model.layers)
    table = model.vocab_size * model.hidden_size
    head_matrix = table if model.head is None else model.head
    return ModelSpec(
        name=name,
        source=source,
        model_type=model_type,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        max_context_tokens=model.max_context_tokens,
        dtype=dtype,
        groups=groups,
        order=order,
        embedding=table if model.embedding is None else model.embedding,
        head=0 if model.tied else head_matrix,
        head_matrix=head_matrix,
        lookups=model.lookups,
        shared=model.shared,
        final=model.final,
        encoder_parameters=model.encoder_parameters,
        tower_parameters=model.tower_parameters,
        mtp=model.mtp,
        decoder=model.decoder,
        notices=(*notices, *model.notices),
    )


def _nested_under_its_own_type(fields: Fields) -> Fields:
    """A file of a plain type that keeps its keys in `text_config` all the same: without its own layers, those are the model's."""
    nested = fields.values.get("text_config")
    known = fields.values.get("model_type") in READERS
    if not known or not isinstance(nested, Mapping) or any(fields.has(key) for key in ("hidden_size", "n_embd", "d_model")):
        return fields
    inherited = {key: fields.values[key] for key in ("model_type", *EITHER_LEVEL) if key in fields.values}
    return Fields({**inherited, **nested}, f"{fields.where}: text_config", outer=fields)


def _compute_dtype(fields: Fields) -> tuple[dtypes.DType, tuple[Notice, ...]]:
    text = fields.text("dtype", fields.text("torch_dtype", ""))
    found = dtypes.known(text)
    if found in dtypes.COMPUTE:
        return found, ()
    said = f"says dtype {text!r}" if text else "names no dtype"
    return dtypes.BF16, (Notice("dtype_assumed", f"{fields.where} {said}: bf16 is assumed for weights and cache"),)


def _name(path: Path) -> str:
    return path.resolve().parent.name if path.name == "config.json" else path.stem
