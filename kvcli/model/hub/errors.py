"""What went wrong at the hub, in one sentence with the way out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvcli.errors import BadInput, CannotRunHere, KvcliError

_BY_PATH = "pass its config.json by path"
_SHOWN_FILES = 5
_REASON_CHARS = 120


class SlowAnswer(Exception):
    """The time for one model is over."""


def explain(error: Exception, wanted: str, near: str, limit_s: float, what: str = "the config", instead: str = _BY_PATH) -> KvcliError:
    """The failure that an exception of huggingface_hub, or of the transport below it, stands for.

    `wanted` is the id as typed, `near` the hint with the nearest presets. BadInput where the hub answered that it is not
    there; CannotRunHere where it refused, was not reached or did not end within `limit_s` seconds. `what` was asked for, and
    `instead` is what to do without it.
    """
    causes = _causes(error)
    for cause in causes:
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int):
            return _refused(cause, status, wanted, near, instead)
    if any(isinstance(cause, SlowAnswer) for cause in causes):
        return _no_answer(f"the hub did not deliver {what} of {wanted!r} within {limit_s:.0f} s", "hub_timeout", instead)
    if any("Timeout" in type(cause).__name__ for cause in causes):
        return _no_answer(f"the hub gave no answer about {wanted!r} in time", "hub_timeout", instead)
    for cause in causes:
        if isinstance(cause, OSError) and cause.filename:
            text = f"the hub cache cannot be used: {(cause.strerror or str(cause)).lower()} ({one_line(str(cause.filename))})"
            return CannotRunHere(text, hint="set HF_HOME to a folder that can be written", code="io_error")
    if any(type(cause).__name__ == "FileMetadataError" for cause in causes):
        text = f"what answered about {wanted!r} is not a hub"
        return CannotRunHere(text, hint=f"look at HF_ENDPOINT and at the proxy, or {instead}", code="hub_failed")
    last = causes[-1]
    reason = one_line(str(last)) or type(last).__name__
    return _no_answer(f"the hub could not be asked about {wanted!r}: {reason}", "hub_failed", instead)


def no_config(wanted: str, names: Sequence[str]) -> BadInput:
    """For a repository without `config.json`: what it has instead. `names` are those of its files."""
    files = [name for name in names if name.endswith(".gguf")]
    if files:
        hint = f"it holds {some_of(files)}: download one and pass the file"
    elif "adapter_config.json" in names:
        hint = "it is an adapter: plan the model it was made for"
    else:
        hint = "it is no transformers model; pass a config.json by path"
    return BadInput(f"the repository {wanted!r} has no config.json", hint=hint, code="no_config")


def some_of(names: Sequence[str]) -> str:
    """A few of these names, and how many more there are."""
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    return ", ".join(one_line(name) for name in names[:_SHOWN_FILES]) + more


def _refused(error: BaseException, status: int, wanted: str, near: str, instead: str) -> KvcliError:
    """The sentence for an HTTP status."""
    if status == 404 and header(error, "X-Error-Code") == "RevisionNotFound":
        repo, _, revision = wanted.partition("@")
        text = f"the hub has {repo!r}, but no revision {revision or 'main'!r} of it"
        return BadInput(text, hint="write a branch, a tag or a commit after the @, or nothing", code="unknown_revision")
    if status in (404, 410):
        text = f"{wanted!r} is neither a path nor a preset, and the hub has no such model"
        return BadInput(text, hint=near, code="unknown_model")
    if status in (401, 403):
        gated = header(error, "X-Error-Code") == "GatedRepo"
        # without a token the hub gives the same answer for a private repository and for none
        what = "is gated: its owner grants access" if gated else "is not shown to you: it is private, gated or not there"
        hint = f"set HF_TOKEN to the token of an account that may read it, or {instead}"
        return CannotRunHere(
            f"{wanted!r} {what} (HTTP {status})", hint=f"{hint}; {near}" if near and not gated else hint, code="hub_forbidden"
        )
    wait = _wait(error)
    again = f"try again {wait}" if wait else "try again later"
    if status == 429:
        text = f"the hub takes no more requests from here for now (HTTP 429 about {wanted!r})"
        return CannotRunHere(text, hint=f"{again}, set HF_TOKEN for a higher limit, or {instead}", code="hub_rate_limited")
    return CannotRunHere(f"the hub failed to answer about {wanted!r} (HTTP {status})", hint=f"{again}, or {instead}", code="hub_failed")


def _wait(error: BaseException) -> str:
    """When the server wants to be asked again: `in 55 s`, `at` a date, or nothing. Retry-After goes before RateLimit's `t`."""
    after = header(error, "Retry-After").strip()
    if after and not after.isdigit():
        return f"at {one_line(after)}"
    limit = re.search(r";\s*t\s*=\s*(\d+)", header(error, "RateLimit"))
    seconds = after or (limit[1] if limit else "")
    return f"in {int(seconds[:9])} s" if seconds else ""


def header(error: BaseException, name: str) -> str:
    """A header of the response that an exception carries, else the empty string."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return str(headers.get(name) or "")


def one_line(text: str) -> str:
    """Printable and short, without the user name and password that an address in it may carry."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(r"://[^/@\s]+@", "://", " ".join(printable.split()))[:_REASON_CHARS]


def _no_answer(message: str, code: str, instead: str) -> CannotRunHere:
    return CannotRunHere(message, hint=f"look at the network and the proxy, or {instead}", code=code)


def _causes(error: BaseException) -> list[BaseException]:
    """An exception and what it was raised from, outermost first."""
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__
    return chain
