"""The terminal, or what stands for it, as the library that lays out tables sees it."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(file: IO[str] | None = None) -> Console:
    """A console on a file, stdout unless told. A pipe that closes is told to the caller: the library's own answer is to exit with 1,
    which is the code of a no."""
    from rich.console import Console

    class Told(Console):
        def on_broken_pipe(self) -> None:
            raise  # what is handled here is the BrokenPipeError itself

    return Told(file=file or sys.stdout, highlight=False)
