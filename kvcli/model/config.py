"""Hugging Face `config.json` files: read, checked, and handed to the reader of their family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcli import dtypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.families.table import READERS
from kvcli.model.fields import Fields
from kvcli.model.spec import ModelSpec

if TYPE_CHECKING:
    from kvcli.model.families.standard import DecoderModel

#: Published configs stay under 100 kB; a larger file is something else.
MAX_CONFIG_BYTES = 16 * 2**20


def read_config_file(path: Path) -> ModelSpec:
    """The model of a `config.json`. Raises BadInput for an unusable file, NotModelled for an unknown `model_type`."""
    return spec_from_config(load_json(path), name=_name(path), source=str(path))


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises BadInput that names the file and what is wrong with it."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise BadInput(f"{path} is larger than any model config ({path.stat().st_size:,} bytes)", code="config_too_large")
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", code="unreadable_file") from None
    except RecursionError:
        raise BadInput(f"{path} is nested too deeply to be a model config", code="bad_json") from None
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {str(error)[:120]}", code="bad_json") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path} holds a {type(values).__name__}, not a JSON object", code="bad_json")
    return values


def spec_from_config(config: Mapping[str, Any], name: str, source: str) -> ModelSpec:
    """The model that a config describes."""
    fields = Fields(config, source)
    model_type = fields.text("model_type", "")
    if not model_type:
        raise BadInput(f"{source} has no 'model_type'", hint="pass the model's own config.json", code="missing_field")
    if model_type not in READERS:
        raise NotModelled(
            f"{source}: kvcli has no reader for model_type {model_type!r}",
            hint="it reads " + ", ".join(READERS),
            code="unknown_model_type",
        )
    dtype, notices = _compute_dtype(fields)
    return build_spec(read_family(model_type, fields), model_type, name, source, dtype, notices)


def read_family(model_type: str, fields: Fields) -> DecoderModel:
    """Imports the one reader that is needed and runs it."""
    module, function = READERS[model_type]
    model: DecoderModel = getattr(import_module(f"kvcli.model.families.{module}"), function)(fields)
    return model


def build_spec(model: DecoderModel, model_type: str, name: str, source: str, dtype: dtypes.DType, notices: tuple[Notice, ...]) -> ModelSpec:
    return ModelSpec(
        name=name,
        source=source,
        model_type=model_type,
        hidden_size=model.decoder.hidden_size,
        vocab_size=model.vocab_size,
        max_context_tokens=model.max_context_tokens,
        dtype=dtype,
        groups=model.groups(),
        embedding=model.embedding,
        positions=model.positions,
        final_norm=model.norm,
        head=model.head,
        windows=model.windows,
        decoder=model.decoder,
        notices=notices,
    )


def _compute_dtype(fields: Fields) -> tuple[dtypes.DType, tuple[Notice, ...]]:
    text = fields.text("dtype", fields.text("torch_dtype", ""))
    found = dtypes.known(text)
    if found in dtypes.COMPUTE:
        return found, ()
    said = f"says dtype {text!r}" if text else "names no dtype"
    return dtypes.BF16, (Notice("dtype_assumed", f"{fields.where} {said}: bf16 is assumed for weights and cache"),)


def _name(path: Path) -> str:
    return path.resolve().parent.name if path.name == "config.json" else path.stem
