"""A hub id as MODEL: the `config.json` of `owner/name`, through huggingface_hub and the user's own hub cache.

Endpoint, token, proxy, cache folder and offline switch are huggingface_hub's: it reads HF_ENDPOINT, HF_TOKEN, HF_HOME and
HF_HUB_OFFLINE itself. Of a repository `config.json` is downloaded, `hf_quant_config.json` where that says nothing about
quantisation, and of its weights the headers (weights.py, gguf.py); nothing of it is executed. Where the hub could not be
asked, the copy fetched before is used and labelled; where it answered, its answer stands.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kvcli.errors import BadInput, CannotRunHere, KvcliError, Notice, missing_extra
from kvcli.model import presets
from kvcli.model.config import MAX_CONFIG_BYTES, load_json, spec_from_config, with_modelopt
from kvcli.model.hub.access import HubAccess, HubId
from kvcli.model.hub.cache import is_commit, remember, remembered
from kvcli.model.hub.errors import explain, header, no_config, one_line
from kvcli.model.hub.files import HubFiles, Listing, NotAsked, listing
from kvcli.model.hub.pool import within
from kvcli.model.spec import ModelSpec

#: For the first answer of the server, and for everything that one model needs.
CONNECT_S = 10.0
TOTAL_S = 30.0

_CONFIG = "config.json"
#: Where older checkpoints of one vendor say how they are quantised.
_QUANTIZATION = "hf_quant_config.json"


class _NoConfig(Exception):
    """The repository is there, without a config; `listed` is what it has instead."""

    def __init__(self, listed: Listing) -> None:
        super().__init__("no config.json")
        self.listed = listed


class _Config(NamedTuple):
    """Where it lies in the hub cache, what to know about it, and whether the hub was reached for it."""

    path: Path
    notices: tuple[Notice, ...]
    asked: bool


def read_hub(wanted: HubId, access: HubAccess, assume: str | None = None) -> ModelSpec:
    """The model of a repository's `config.json`, or of its one GGUF file; its source names the commit.

    Raises CannotRunHere without huggingface_hub, network or leave to read; BadInput for a repository, revision or file
    that is not there or cannot be used; NotModelled as any config does.
    """
    try:
        found = _config_file(wanted, access)
    except _NoConfig as error:
        return _gguf(wanted, error.listed, access)
    except CannotRunHere as failure:
        return _gguf_known(wanted, failure)
    commit = found.path.parent.name
    source = f"hub {wanted.repo}@{commit}"
    try:
        config = with_modelopt(load_json(found.path), found.path)
    except BadInput as error:
        message = error.message.replace(f"{found.path.parent}{os.sep}", f"{source}: ")
        raise BadInput(message, hint=f"the file lies at {found.path}; another {_CONFIG} may be given by path", code=error.code) from None
    spec = spec_from_config(config, wanted.repo, source, assume)
    spec = replace(spec, notices=(*spec.notices, *found.notices))
    if not access.headers or not is_commit(commit):
        return spec
    from kvcli.model.hub.weights import with_hub_weights

    return with_hub_weights(spec, HubFiles(wanted.repo, commit, access.announce if found.asked else None, found.path.parent, CONNECT_S))


def _gguf(wanted: HubId, listed: Listing, access: HubAccess) -> ModelSpec:
    """The model of a repository without a config, if it has one GGUF model and nothing else to choose."""
    from kvcli.model.hub.gguf import only_model, read_hub_gguf

    names = only_model(listed.names)
    if not names or not is_commit(listed.commit):
        raise no_config(str(wanted), listed.names)
    files = HubFiles(wanted.repo, listed.commit, access.announce, None, CONNECT_S)
    files.keep_names(listed.names)
    remember(wanted.repo, wanted.revision, listed.commit)
    return read_hub_gguf(files, names)


def _gguf_known(wanted: HubId, failure: CannotRunHere) -> ModelSpec:
    """The same out of the cache where the hub was not asked. Raises `failure` where it was read only in part, or never."""
    from kvcli.model.hub.gguf import only_model, read_hub_gguf

    if failure.code == "missing_extra":
        raise failure
    commit = wanted.revision if is_commit(wanted.revision) else remembered(wanted.repo, wanted.revision)
    try:
        if commit is None:
            raise NotAsked
        files = HubFiles(wanted.repo, commit, None, None, CONNECT_S)
        names = only_model(files.names())
        if not names:
            raise NotAsked
        spec = read_hub_gguf(files, names)
    except NotAsked:
        raise failure from None
    return spec if failure.code == "offline" else replace(spec, notices=(*spec.notices, _old_copy(failure)))


def _old_copy(failure: CannotRunHere) -> Notice:
    return Notice("hub_cached", f"{failure.message}: the copy that was fetched before is planned")


def _config_file(wanted: HubId, access: HubAccess) -> _Config:
    """The config in the hub cache, `…/snapshots/COMMIT/config.json`, fetched unless it is there. Raises _NoConfig."""
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
            return _Config(found, _unsure(wanted.repo, found), False)
        switch = "--offline" if access.offline else "HF_HUB_OFFLINE"
        raise CannotRunHere(
            f"{str(wanted)!r} is neither a path nor a preset, the hub cache does not have it, and {switch} forbids fetching it",
            hint=f"run it once without {switch}, or pass its {_CONFIG} by path",
            code="offline",
        )
    host = re.sub(r"^.*@", "", re.sub(r"^[a-z+]*://", "", constants.ENDPOINT))
    access.announce(f"fetching {_CONFIG} of {wanted} from {one_line(host)}")
    try:
        return _Config(within(TOTAL_S, lambda: _download(wanted, access)), (), True)
    except (KvcliError, _NoConfig):
        raise
    except Exception as error:  # the library's transports have no common base, and have changed between its versions
        failure = explain(error, str(wanted), presets.unknown(wanted.repo).hint, TOTAL_S)
    if isinstance(failure, CannotRunHere) and (found := _cached(wanted)):
        return _Config(found, (_old_copy(failure), *_unsure(wanted.repo, found)), False)
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
        listed = _listed(wanted, timeout_s)
        if listed is None:
            raise
        raise _NoConfig(listed) from None
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


def _listed(wanted: HubId, timeout_s: float) -> Listing | None:
    """The commit and its files; None where the hub does not tell."""
    try:
        return listing(wanted.repo, wanted.revision, timeout_s)
    except Exception:  # it only makes a hint better
        return None


def _cached(wanted: HubId) -> Path | None:
    """The config in the hub cache, without a request."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(wanted.repo, _CONFIG, revision=wanted.revision)
    except OSError:
        return None
    return Path(found) if isinstance(found, str) else None  # it also tells of files that a commit is known not to have
