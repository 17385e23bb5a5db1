"""What a shell completes: names of models, devices, engines and types. Where none fits, the shell completes paths.

Nothing is imported until a completion asks for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable


def _listed(known: Callable[[], Iterable[str]], separators: str = "") -> Callable[[str], list[str]]:
    """Completes one of the names; after a separator the next one."""

    def complete(incomplete: str) -> list[str]:
        from kvcli.errors import KvcliError

        start = max((incomplete.rfind(each) for each in separators), default=-1) + 1
        try:
            return [incomplete[:start] + name for name in known() if name.startswith(incomplete[start:])]
        except KvcliError:  # a shell shows no sentence here
            return []

    return complete


def _models() -> Iterable[str]:
    from kvcli.model.presets import names

    return names()


def _devices() -> Iterable[str]:
    from kvcli.hardware.accelerators import table

    return ("local", "cpu", *(part.id for part in table()))


def _engines() -> Iterable[str]:
    from kvcli.plan.storage.policy import ENGINES

    return ENGINES


def _emitted() -> Iterable[str]:
    from kvcli.plan.answers.emit import ENGINES

    return ENGINES


def _kv_types() -> Iterable[str]:
    from kvcli.dtypes import PLAIN

    return ("auto", *PLAIN)


def _weights_types() -> Iterable[str]:
    from kvcli.plan.weights import type_names

    return ("auto", *type_names())


def _unknowns() -> Iterable[str]:
    from kvcli.plan.answers.solve import UNKNOWNS

    return UNKNOWNS


def _limits() -> Iterable[str]:
    from kvcli.plan.time.slo import limits

    return (each.name for each in limits())


models, devices, engines, emitted = _listed(_models), _listed(_devices), _listed(_engines), _listed(_emitted)
kv_types, weights_types = _listed(_kv_types, ",:"), _listed(_weights_types)
unknowns, limits = _listed(_unknowns), _listed(_limits)
torch_devices = _listed(lambda: ("auto", "cpu", "cuda"))
compute_types = _listed(lambda: ("auto", "fp32", "bf16", "fp16"))
caches = _listed(lambda: ("static", "dynamic", "none"))


def formats(incomplete: str) -> list[str]:
    from kvcli.cli.check import FORMATS

    return [each for each in FORMATS if each.startswith(incomplete)]


def after_verb(verbs: dict[str, Callable[[str], list[str]]], words: list[str], incomplete: str) -> list[str]:
    """A verb first, then what it is about."""
    if words:
        return verbs[words[0]](incomplete) if words[0] in verbs and len(words) == 1 else []
    return [verb for verb in verbs if verb.startswith(incomplete)]


def in_bash(complete: Callable[[], int]) -> int:
    """Runs a completion for bash, which takes words apart at colons and equals signs, and replaces only what comes after the last."""
    cut = rejoin(os.environ)
    if not cut:
        return complete()
    import contextlib
    import io

    said = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(said):
        try:
            code = complete()
        except SystemExit as done:
            code = done.code
    sys.stdout.write("".join(f"{line.removeprefix(cut)}\n" for line in said.getvalue().splitlines() if line))
    return code if isinstance(code, int) else 0


def rejoin(environment: os._Environ[str] | dict[str, str]) -> str:
    """Puts the words that bash took apart together in COMP_WORDS and COMP_CWORD; returns what bash keeps of the current value."""
    text, number = environment.get("COMP_WORDS", ""), environment.get("COMP_CWORD", "")
    if not number.isdecimal():
        return ""
    words = text.split("\n") if "\n" in text else text.split(" ")
    current, joined, at = int(number), list[str](), 0
    colon = glued = False
    for index, word in enumerate(words[: current + 1]):
        parts = bool(word) and not word.strip(":=")
        if joined and (parts or glued):
            joined[-1] += word
            colon = colon or ":" in word[:1]
        else:
            joined.append(word)
            colon = False
        glued, at = parts, index
    if at < current:  # an empty word that the list lacks
        joined.append("")
    environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join(joined), str(len(joined) - 1)
    last = joined[-1]
    value = last.partition("=")[2] if last.startswith("-") and "=" in last else last
    return value[: value.rfind(":") + 1] if colon else ""
