"""A hub id as MODEL: the `config.json` of `owner/name`, through huggingface_hub and the user's own hub cache.

Endpoint, token, proxy, cache folder and offline switch are huggingface_hub's: it reads HF_ENDPOINT, HF_TOKEN, HF_HOME and
HF_HUB_OFFLINE itself. Nothing but `config.json` is ever downloaded, and `hf_quant_config.json` where that says nothing about
quantisation; nothing of a repository is executed. Where the hub could not be asked, the copy fetched before is used and labelled;
where it answered, its answer stands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from kvcli.errors import BadInput, CannotRunHere, KvcliError, Notice, missing_extra
from kvcli.model import presets
from kvcli.model.config import MAX_CONFIG_BYTES, load_json, spec_from_config, with_modelopt
from kvcli.model.hub_errors import SlowAnswer, explain, header, no_config, one_line
from kvcli.model.spec import ModelSpec

#: For the first answer of the server, and for everything that one model needs.
CONNECT_S = 10.0
TOTAL_S = 30.0

_CONFIG = "config.json"
#: Where older checkpoints of one vendor say how they are quantised.
_QUANTIZATION = "hf_quant_config.json"
#: What the hub allows in each part of an id, and in a branch, tag or commit.
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*")
_MAX_ID_CHARS = 96

T = TypeVar("T")


class HubAccess(NamedTuple):
    """Leave to ask the hub. `announce` gets one line before each request; `offline` allows the cache alone."""

    announce: Callable[[str], None]
    offline: bool = False


class HubId(NamedTuple):
    """`repo` is `owner/name`; `revision` a branch, tag or commit, None for the repository's main branch."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def parse_id(text: str) -> HubId | None:
    """The hub id that a text spells, `owner/name` or `owner/name@revision`; None where it cannot be one."""
    repo, at, revision = text.partition("@")
    parts = repo.split("/")
    legal = len(parts) == 2 and all(_PART.fullmatch(part) for part in parts) and len(repo) <= _MAX_ID_CHARS
    if not legal or "--" in repo or ".." in repo or repo.endswith(".git"):
        return None
    # a revision becomes a file name in the cache: no step may lead out of it
    if at and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision or revision.endswith("/")):
        return None
    return HubId(repo, revision or None)


def read_hub(wanted: HubId, access: HubAccess, assume: str | None = None) -> ModelSpec:
    """The model of a repository's `config.json`; its source names the commit.

    Raises CannotRunHere without huggingface_hub, network or leave to read; BadInput for a repository, revision or `config.json`
    that is not there or cannot be used; NotModelled as any config does.
    """
    path, notices = _config_file(wanted, access)
    source = f"hub {wanted.repo}@{path.parent.name}"
    try:
        config = with_modelopt(load_json(path), path)
    except BadInput as error:
        message = error.message.replace(f"{path.parent}{os.sep}", f"{source}: ")
        raise BadInput(message, hint=f"the file lies at {path}; another {_CONFIG} may be given by path", code=error.code) from None
    spec = spec_from_config(config, wanted.repo, source, assume)
    return replace(spec, notices=(*spec.notices, *notices))


def _config_file(wanted: HubId, access: HubAccess) -> tuple[Path, tuple[Notice, ...]]:
    """Where the config lies in the hub cache, `…/snapshots/COMMIT/config.json`, fetched unless it is there."""
    try:
        from huggingface_hub import constants
    except ImportError:
        needs = missing_extra("hub", "huggingface_hub")
        raise CannotRunHere(
            f"{str(wanted)!r} is neither a path nor a preset, and to ask the hub for it {needs.message}",
            hint=f"{needs.hint}, or pass its {_CONFIG} by path",
            code=needs.code,
        ) from None
    # telemetry makes a request of its own, even for what is cached, and tells the hub more than which file is wanted
    constants.HF_HUB_DISABLE_TELEMETRY = True
    if access.offline or constants.HF_HUB_OFFLINE:
        if found := _cached(wanted):
            return found, _unsure(wanted.repo, found)
        switch = "--offline" if access.offline else "HF_HUB_OFFLINE"
        raise CannotRunHere(
            f"{str(wanted)!r} is neither a path nor a preset, the hub cache does not have it, and {switch} forbids fetching it",
            hint=f"run it once without {switch}, or pass its {_CONFIG} by path",
            code="offline",
        )
    host = re.sub(r"^.*@", "", re.sub(r"^[a-z+]*://", "", constants.ENDPOINT))
    access.announce(f"fetching {_CONFIG} of {wanted} from {one_line(host)}")
    try:
        return within(TOTAL_S, lambda: _download(wanted, access)), ()
    except KvcliError:
        raise
    except Exception as error:  # the library's transports have no common base, and have changed between its versions
        failure = explain(error, str(wanted), presets.unknown(wanted.repo).hint, TOTAL_S)
    if isinstance(failure, CannotRunHere) and (found := _cached(wanted)):
        notice = Notice("hub_cached", f"{failure.message}: the copy that was fetched before is planned")
        return found, (notice, *_unsure(wanted.repo, found))
    raise failure


def _download(wanted: HubId, access: HubAccess) -> Path:
    """Asks what is there, without retries, then lets huggingface_hub fetch it into its cache. Raises what the library raises."""
    from logging import ERROR

    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars

    # its retries and bars are not for people who wait for a plan; a failure is told in one sentence instead
    logging.set_verbosity(ERROR)
    disable_progress_bars()
    timeout_s = min(CONNECT_S, constants.HF_HUB_ETAG_TIMEOUT)
    try:
        # asked first because the download would repeat a refused question, with growing pauses, until our time is up
        found = get_hf_file_metadata(hf_hub_url(wanted.repo, _CONFIG, revision=wanted.revision), timeout=timeout_s)
    except HfHubHTTPError as error:
        if error.response is None or error.response.status_code != 404:
            raise
        if header(error, "X-Error-Code") in ("RepoNotFound", "RevisionNotFound"):
            raise
        access.announce(f"it has no {_CONFIG}: asking for the names of its files")
        names = _file_names(wanted, timeout_s)
        if names is None:
            raise
        raise no_config(str(wanted), names) from None
    if found.size is not None and found.size > MAX_CONFIG_BYTES:
        text = f"{_CONFIG} of {str(wanted)!r} is larger than any model config ({found.size:,} bytes) and was not fetched"
        raise BadInput(text, hint=f"pass a {_CONFIG} by path", code="config_too_large")
    path = Path(hf_hub_download(wanted.repo, _CONFIG, revision=wanted.revision, etag_timeout=timeout_s))
    if _may_lie_beside(wanted.repo, path):
        _download_quantization(wanted.repo, path.parent.name, access, timeout_s)
    return path


def _download_quantization(repo: str, commit: str, access: HubAccess, timeout_s: float) -> None:
    """Puts `hf_quant_config.json` of that commit beside its config, where there is one; a commit is asked once."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    access.announce(f"asking for its {_QUANTIZATION}")
    try:
        size = get_hf_file_metadata(hf_hub_url(repo, _QUANTIZATION, revision=commit), timeout=timeout_s).size
        if size is None or size <= MAX_CONFIG_BYTES:
            hf_hub_download(repo, _QUANTIZATION, revision=commit, etag_timeout=timeout_s)
    except HfHubHTTPError as error:
        if error.response is None or error.response.status_code != 404:
            raise
        with suppress(HfHubHTTPError):  # the library marks in its cache that this commit has no such file
            hf_hub_download(repo, _QUANTIZATION, revision=commit, etag_timeout=timeout_s)


def _may_lie_beside(repo: str, config: Path) -> bool:
    """Whether a cached config is silent about quantisation, and the cache does not know either."""
    from huggingface_hub import try_to_load_from_cache

    if b'"quantization_config"' in config.read_bytes():
        return False
    # a path where it is there, and a mark where the commit is known not to have it
    return try_to_load_from_cache(repo, _QUANTIZATION, revision=config.parent.name) is None


def _unsure(repo: str, config: Path) -> tuple[Notice, ...]:
    if not _may_lie_beside(repo, config):
        return ()
    text = f"the hub was not asked whether {repo} has an {_QUANTIZATION}: its weights are planned as its {_CONFIG} says"
    return (Notice("quantization_not_asked", text),)


def _file_names(wanted: HubId, timeout_s: float) -> list[str] | None:
    """The names of a repository's files; None where the hub does not tell."""
    from huggingface_hub import HfApi

    try:
        siblings = HfApi().model_info(wanted.repo, revision=wanted.revision, timeout=timeout_s).siblings
    except Exception:  # it only makes a hint better
        return None
    return sorted(sibling.rfilename for sibling in siblings or ())


def _cached(wanted: HubId) -> Path | None:
    """The config in the hub cache, without a request."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(wanted.repo, _CONFIG, revision=wanted.revision)
    except OSError:
        return None
    return Path(found) if isinstance(found, str) else None  # it also tells of files that a commit is known not to have


def within(limit_s: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises; raises SlowAnswer after `limit_s` seconds, whatever it is doing then.

    It runs in a thread that ends with the process: no timeout of a transport bounds a server that sends a byte a second.
    """
    import queue
    import threading

    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = results.get(timeout=limit_s)
    except queue.Empty:
        raise SlowAnswer from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # work's own None is a T
