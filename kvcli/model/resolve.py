"""From what the user typed to a model: a preset name, a folder, a config.json, a GGUF file, or a hub id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvcli.errors import BadInput, Notice
from kvcli.model import presets
from kvcli.model.config import read_config_file
from kvcli.model.spec import ModelSpec

if TYPE_CHECKING:
    from kvcli.model.hub.access import HubAccess


def is_path(text: str) -> bool:
    """Whether an argument can only mean a path; otherwise a preset of that name wins."""
    if text.endswith((".json", ".gguf")) or text.startswith((".", "/", "~")):
        return True
    return "/" in text and _exists(text)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL byte
        return False


def expand(text: str) -> Path:
    """A path with `~` resolved. Raises BadInput where that names nobody or the path cannot exist."""
    try:
        path = Path(text).expanduser()
        path.exists()
        return path
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error).lower()
        raise BadInput(f"{text[:80]!r} cannot be a path: {reason[:80]}", code="unreadable_file") from None


def resolve(text: str, assume: str | None = None, hub: HubAccess | None = None) -> ModelSpec:
    """The model a user named.

    Raises BadInput when nothing has that name (it lists the nearest) or a file cannot be used, NotModelled for an
    architecture without a reader (`assume` "gqa" reads an unknown config all the same, labelled). With `hub`, an id
    `owner/name` that is neither a path nor a preset is fetched (raises what hub.read_hub does); without, there is no network.
    """
    if len(text) > 200 and not is_path(text[:4096]):
        raise BadInput(f"no model has a name of {len(text):,} characters", hint="kvcli presets lists the names", code="unknown_model")
    if not text.strip():
        raise BadInput("the model name is empty", hint="kvcli plan llama3-8b", code="unknown_model")
    if is_path(text):
        spec = _read_path(expand(text), assume)
        other = presets.find(text) if not text.startswith((".", "/", "~")) and "/" in text else None
        return _warn_both(spec, text, f"the path was taken, not the preset {other.name}") if other else spec
    preset = presets.find(text)
    if preset is None:
        spec_from_hub = _from_hub(text, assume, hub) if hub is not None and "/" in text else None
        if spec_from_hub is None:
            raise _nothing_called(text)
        return spec_from_hub
    return (
        _warn_both(preset.spec(), text, f"the preset was taken, not the path; write ./{text} for that")
        if Path(text).exists()
        else preset.spec()
    )


def _from_hub(text: str, assume: str | None, hub: HubAccess) -> ModelSpec | None:
    from kvcli.model.hub.access import parse_id

    wanted = parse_id(text)
    if wanted is None:
        return None
    from kvcli.model.hub.read import read_hub

    return read_hub(wanted, hub, assume)


def _warn_both(spec: ModelSpec, text: str, taken: str) -> ModelSpec:
    notice = Notice("name_and_path", f"{text!r} is both a preset and a path: {taken}")
    return replace(spec, notices=(*spec.notices, notice))


def _nothing_called(text: str) -> BadInput:
    error = presets.unknown(text)
    if _exists(text):
        return BadInput(error.message, hint=f"a path of that name exists: write ./{text}", code=error.code)
    if "/" in text:
        return BadInput(
            f"{text[:80]!r} is neither a path nor the hub id of a preset",
            hint="download its config.json and pass the file",
            code=error.code,
        )
    return error


def _read_path(path: Path, assume: str | None) -> ModelSpec:
    if path.is_dir():
        return _read_folder(path, assume)
    if not path.exists():
        raise BadInput(f"{path} does not exist", code="unreadable_file")
    if path.suffix.lower() == ".gguf":
        from kvcli.model.gguf.config import read_gguf_file

        return read_gguf_file(path)
    if path.suffix.lower() == ".json":
        return read_config_file(path, assume)
    raise BadInput(f"{path} is neither a config.json nor a .gguf file", hint="rename it, or pass its folder", code="unknown_file_kind")


def _read_folder(path: Path, assume: str | None) -> ModelSpec:
    config = path / "config.json"
    if config.is_file():
        spec = read_config_file(config, assume)
        if any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").exists():
            from kvcli.model.weight_files import with_weight_files

            return with_weight_files(spec, path)
        return spec
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        from kvcli.model.gguf.config import read_gguf_file

        return read_gguf_file(files[0])
    what = f"{len(files)} .gguf files" if files else "neither a config.json nor a .gguf file"
    raise BadInput(f"{path} holds {what}", hint="pass the file itself", code="unreadable_folder")
