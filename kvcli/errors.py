"""Every expected failure is one of these, and each carries its exit code.

    KvcliError
    ├── BadInput       2   the user can fix it: usage, file, value, name, prompt too long
    ├── CannotRunHere  3   this machine cannot: device or extra missing, out of memory, no network
    └── NotModelled    4   an architecture or quantity that kvcli does not know

Answers that are no failure have codes too: 0 yes, 1 no (EXIT_NO); and a process ends otherwise with 130 (Ctrl-C) or 141 (the
reader of stdout has gone). No other codes exist.

A message is one sentence that says what was read and what is wrong; a hint is what to type next.
"""

from __future__ import annotations

from typing import NamedTuple

EXIT_NO = 1
EXIT_INTERRUPTED = 130
#: what a program killed by a closed pipe reports
EXIT_CLOSED_PIPE = 141


class KvcliError(Exception):
    """An expected failure. `code` is stable and machine-readable, `message` and `hint` are for people."""

    exit_code = 2
    default_code = "bad_input"

    def __init__(self, message: str, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code


class BadInput(KvcliError):
    exit_code = 2
    default_code = "bad_input"


class CannotRunHere(KvcliError):
    exit_code = 3
    default_code = "cannot_run_here"


class NotModelled(KvcliError):
    exit_code = 4
    default_code = "not_modelled"


class Notice(NamedTuple):
    """A warning that travels with an answer: it never changes a number, it says what to know about it."""

    code: str
    message: str


def missing_extra(extra: str, package: str) -> CannotRunHere:
    """The one sentence for a package of an optional extra that is not installed."""
    return CannotRunHere(
        f"this command needs the package {package!r}, which is not installed",
        hint=f"pip install 'kvcli[{extra}]'",
        code="missing_extra",
    )
