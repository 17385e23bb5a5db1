"""Progress on stderr: a bar or a count on a terminal, erased at the end; nothing in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

#: Seconds of work before a count shows, and between two of its states.
QUIET_S, EVERY_S = 1.0, 0.1
#: What a terminal echoes of an interrupt.
ECHO = "^C"


@contextmanager
def counting(
    total: int, verb: str, stream: IO[str] | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], None]]:
    """A function to call after each of `total` steps; `planned 1,200 of 5,000` shows once they take longer than a moment."""
    out = sys.stderr if stream is None else stream
    done, shown, after = 0, "", clock() + QUIET_S

    def step() -> None:
        nonlocal done, shown, after
        done += 1
        if done < total and (now := clock()) >= after:
            shown, after = f"{verb} {done:,} of {total:,}", now + EVERY_S
            out.write(f"\r{shown}")
            out.flush()

    if total < 2 or not out.isatty():
        yield lambda: None
        return
    try:
        yield step
    finally:
        if shown:
            # blanks and returns alone, which every terminal understands
            out.write(f"\r{' ' * (len(shown) + len(ECHO))}\r")
            out.flush()


@contextmanager
def byte_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for (bytes so far, bytes in all or 0)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)
