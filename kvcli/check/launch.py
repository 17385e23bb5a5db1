"""What a manifest starts: one command in one container, with everything around it that an engine reads. Manifest readers write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcli.check.nodes import Place, Word

#: a name of `environment` that no variable has: others that are not among the files may be set too
OPEN = ""


class Problem(NamedTuple):
    """Something in a manifest that was not understood. `matters`: a verdict could change with it, so it is shown as a warning."""

    code: str
    message: str
    place: Place
    matters: bool = True


class GpuRequest(NamedTuple):
    """Accelerators that one instance gets.

    `amount` None: not said (or not literal). `resource` as written (`nvidia.com/gpu`, `amd.com/gpu`, `nvidia.com/mig-3g.40gb`);
    `profile` of a MIG slice (`3g.40gb`); `shared`: time slicing or MPS, so the memory is not this container's alone; `cards`: names
    that node selectors, affinities or claims ask for, as written (any may be met); `hosts`: instances that serve one model together;
    `fewer`: a variable hides some of them, and how many is only known where it runs.
    """

    amount: int | None
    place: Place
    resource: str | None = None
    profile: str | None = None
    shared: bool = False
    cards: tuple[Word, ...] = ()
    hosts: int = 1
    said: str = ""
    fewer: bool = False

    @property
    def asked(self) -> str:
        """How the amount comes about: `requested`, or `visible` where a variable hides others."""
        return "visible" if "VISIBLE_DEVICES" in self.said else "requested"

    def of(self, amount: int) -> str:
        """Another amount, as one would write it in the same place; `said` shows how, with {} for the number."""
        return (self.said or f"{self.resource or 'devices'}: {{}}").format(amount)


class Launch(NamedTuple):
    """One command line of one container.

    `words` are the program and its arguments, after the shell and the variables that the files themselves define. `environment` holds what
    the container sees, `files` the text of files mounted from the same set of manifests (path in the container -> lines as words).
    `model` and `engine` are what the manifest says beside the command (KServe's storageUri and modelFormat).
    `role`: `init` ends before the others start, `sidecar` is an init container that stays, `main` is the rest. `background`: the
    container's later commands run beside it.
    """

    name: str
    container: str
    place: Place
    image: Word | None = None
    words: tuple[Word, ...] = ()
    environment: Mapping[str, Word] = {}
    files: Mapping[str, tuple[Word, ...]] = {}
    model: Word | None = None
    engine: Word | None = None
    gpus: GpuRequest | None = None
    replicas: int = 1
    problems: tuple[Problem, ...] = ()
    role: str = "main"
    background: bool = False
