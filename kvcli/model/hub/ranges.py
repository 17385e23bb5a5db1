"""The beginning of a hub's file by HTTP ranges: no byte more than asked for, and the token to the hub alone.

The session is huggingface_hub's (httpx, or requests in its versions before 1.0), so that proxies, certificates and what a user
configured there hold here too. A file is asked for at its commit, redirects are followed by hand.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from kvcli.errors import CannotRunHere

#: A connection that breaks, or a server that fails, is asked this often in all.
ATTEMPTS = 3
PAUSE_S = 0.25
MAX_REDIRECTS = 5
_CHUNK_BYTES = 2**16
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class Answer(NamedTuple):
    """Status and headers of a response."""

    status_code: int
    headers: Mapping[str, str]


class Refused(Exception):
    """The server answered, but not with the file; `response` is what hub_errors.explain looks at."""

    def __init__(self, response: Answer) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response


class _Cut(Exception):
    """The body ended before the bytes that were promised."""


class HubFile:
    """One file at a commit, known from its start on.

    `size_bytes` is that of the whole file, -1 before the first answer. `timeout_s` bounds the wait for each answer and each
    piece of it. Methods raise Refused, CannotRunHere for an answer that contradicts itself, and what the transport raises.
    """

    def __init__(self, repo: str, commit: str, name: str, timeout_s: float) -> None:
        from huggingface_hub import hf_hub_url

        self.url = hf_hub_url(repo, name, revision=commit)
        self.name = name
        self.timeout_s = timeout_s
        self.size_bytes = -1
        self._start = bytearray()

    def start(self, count: int) -> bytes:
        """The first `count` bytes, or the whole file where it has fewer; what came before a cut is kept and not asked again."""
        attempts = 0
        while len(self._start) < (count if self.size_bytes < 0 else min(count, self.size_bytes)):
            attempts += 1
            before = len(self._start)
            try:
                self._extend(count)
            except CannotRunHere:
                raise
            except Exception as error:  # the transports have no common base
                refused = isinstance(error, Refused) and error.response.status_code < 500
                if refused or attempts >= ATTEMPTS or "Timeout" in type(error).__name__:
                    raise
                time.sleep(PAUSE_S * attempts)
            else:
                attempts = 0 if len(self._start) > before else attempts
                if attempts >= ATTEMPTS:
                    raise self._odd("sends nothing")
        return bytes(memoryview(self._start)[:count])

    def read(self, at: int, count: int) -> bytes:
        """As safetensors_header.Read."""
        return self.start(at + count)[at:]

    def _extend(self, end: int) -> None:
        """Asks for what is missing up to byte `end`, and keeps what comes."""
        at = len(self._start)
        with self._open({"Range": f"bytes={at}-{end - 1}", "Accept-Encoding": "identity"}) as (answer, body, linked_bytes):
            if answer.status_code == 416 and not at:
                self._learn(0, linked_bytes)
                return
            if answer.status_code not in (200, 206):
                raise Refused(answer)
            if answer.headers.get("Content-Encoding", "identity") not in ("identity", ""):
                raise self._odd("is sent compressed")
            skip = 0
            if answer.status_code == 206:
                found = _RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
                if found is None or not at == int(found[1]) <= int(found[2]) < int(found[3]):
                    raise self._odd("was asked for by range, and another range came")
                self._learn(int(found[3]), linked_bytes)
                end = min(end, int(found[2]) + 1)
            else:  # the server knows no ranges: the file runs from its first byte, and is left where enough was read
                length = _count(answer.headers.get("Content-Length", ""))
                length = linked_bytes if length is None else length
                if length is None:
                    raise self._odd("has no size")
                self._learn(length, linked_bytes)
                skip = at
            end = min(end, self.size_bytes)
            while len(self._start) < end:
                piece = next(body, b"")
                if not piece:
                    raise _Cut(f"the connection was cut after {len(self._start):,} of {end:,} bytes")
                self._start += piece[skip : skip + end - len(self._start)]
                skip = max(0, skip - len(piece))

    def _learn(self, size_bytes: int, linked_bytes: int | None) -> None:
        """The size of the file; what the hub said of it before it redirected, and what was said before, must agree."""
        if linked_bytes not in (None, size_bytes) or self.size_bytes not in (-1, size_bytes):
            raise self._odd("is told with two sizes")
        self.size_bytes = size_bytes

    @contextmanager
    def _open(self, headers: dict[str, str]) -> Iterator[tuple[Answer, Iterator[bytes], int | None]]:
        """Answer, body and `X-Linked-Size` of the last of the redirects. The token goes to the hub's own address alone."""
        # public in the library's manual, but re-exported without saying so
        from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

        url, linked_bytes = self.url, None
        hub_headers = build_hf_headers()
        for _ in range(MAX_REDIRECTS + 1):
            own = _origin(url) == _origin(self.url)
            with _get(get_session(), url, {**hub_headers, **headers} if own else headers, own, self.timeout_s) as (answer, body):
                linked = _count(answer.headers.get("X-Linked-Size", ""))
                linked_bytes = linked_bytes if linked is None else linked
                target = answer.headers.get("Location", "")
                if answer.status_code not in (301, 302, 303, 307, 308) or not target:
                    yield answer, body, linked_bytes
                    return
                url = urljoin(url, target)
                if urlsplit(url).scheme not in ("http", "https"):
                    raise self._odd("is redirected to no web address")
        raise self._odd(f"is redirected more than {MAX_REDIRECTS} times")

    def _odd(self, what: str) -> CannotRunHere:
        name = "".join(character if character.isprintable() else " " for character in self.name)
        return CannotRunHere(f"what answered for {name[:120]!r} is not a hub: it {what}", hint=_LOOK, code="hub_failed")


_LOOK = "look at HF_ENDPOINT and at the proxy"


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()


def _count(text: str) -> int | None:
    """A header's number of bytes, None where it is none."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


@contextmanager
def _get(session: Any, url: str, headers: dict[str, str], own: bool, timeout_s: float) -> Iterator[tuple[Answer, Iterator[bytes]]]:
    """One request without redirects: the answer, and its body as it comes. Leaving it early ends the transfer.

    `own`: the address is the hub's; a token that the session itself carries is for it alone, too.
    """
    if hasattr(session, "build_request"):  # httpx
        request = session.build_request("GET", url, headers=headers, timeout=timeout_s)
        more: dict[str, Any] = {}
        if not own:
            request.headers.pop("Authorization", None)
            more["auth"] = None
        response = session.send(request, stream=True, follow_redirects=False, **more)
        body = response.iter_raw()
    else:  # requests
        keep = {} if own else {"Authorization": None}
        response = session.get(url, headers={**keep, **headers}, timeout=timeout_s, stream=True, allow_redirects=False)
        body = response.raw.stream(_CHUNK_BYTES, decode_content=False)
    try:
        yield Answer(response.status_code, response.headers), body
    finally:
        response.close()
