"""What `kvcli plan` writes beside its answer: pictures. Loaded where one was asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from kvcli.errors import BadInput, CannotRunHere
from kvcli.files import replace_bytes, unwritable
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest

#: Kinds of pictures, by the end of the file's name.
KINDS = ("png", "svg", "pdf")


class Files(NamedTuple):
    """Names of files, None for those not asked for, and which panels a picture has (none named: all that have something to show)."""

    plot: str | None = None
    panels: tuple[str, ...] = ()

    def write(self, requests: list[PlanRequest], plans: list[Plan]) -> None:
        """Each file whole or not at all, and says so on stderr. Raises BadInput and CannotRunHere."""
        if self.plot is not None:
            from kvcli.report.pictures.draw import sheet

            _write(self.plot, lambda: sheet(requests, plans, self.panels, _suffix(self.plot or "")))


def files_of(plot: str | None, panels: str | None) -> Files:
    """Raises BadInput for names that say no kind, CannotRunHere where what draws is not installed: before anything is planned."""
    if panels is not None and plot is None:
        raise BadInput("--panels says what a picture shows, and none is asked for", hint="--plot plan.png", code="usage")
    if plot is not None and _suffix(plot) not in KINDS:
        hint = "end it in ." + ", .".join(KINDS)
        raise BadInput(f"--plot {plot[:80]!r} does not say what kind of picture it is", hint=hint, code="bad_suffix")
    try:
        from kvcli.report.pictures import draw  # noqa: F401
        from kvcli.report.pictures.scene import panels_of
    except ImportError as error:
        raise CannotRunHere(f"pictures need {error.name}", hint="pip install 'kvcli[plot]'", code="extra_missing") from None
    return Files(plot, panels_of(panels))


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""


def _write(path: str, make: Callable[[], bytes]) -> None:
    data = make()
    try:
        replace_bytes(path, data)
    except OSError as error:
        raise unwritable(path, error) from None
    print(f"wrote {path}", file=sys.stderr)
