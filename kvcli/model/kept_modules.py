"""Lists of modules that a quantised file keeps in its compute dtype, in the dialect of each format."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import Literal, NamedTuple

from kvcli.errors import BadInput
from kvcli.model.fields import Fields

Dialect = Literal["prefix", "part", "compressed", "wildcard"]

#: Real lists name each layer's modules: some thousands at most.
MAX_ENTRIES = 10_000
MAX_LENGTH = 300
MAX_QUANTIFIERS = 4

#: what stands before `layers.0` in checkpoints of decoders, and of decoders beside towers
PREFIXES = ("model.", "language_model.model.", "model.language_model.")


class Kept(NamedTuple):
    """`keys`: those of the file that had a list. Dialects: transformers' prefix or last parts of a name (fp8, bitsandbytes,
    mxfp4); a part anywhere (AWQ, GPTQ); exact names and `re:` patterns (compressed-tensors); shell wildcards (ModelOpt).
    """

    keys: tuple[str, ...]
    entries: tuple[str, ...]
    dialect: Dialect


class Matcher:
    """The compiled list: real ones have hundreds of entries and are asked about each matrix of each layer.

    `ambiguous` names an entry that is part of a module's name without being whole parts of it ("gate" in "gate_proj"): tools
    read those differently.
    """

    def __init__(self, kept: Kept) -> None:
        self.dialect = kept.dialect
        self.ambiguous = ""
        special = [entry for entry in kept.entries if self._special(entry)]
        self._exact = frozenset(entry.strip(".") if kept.dialect == "part" else entry for entry in kept.entries) - frozenset(special)
        starts = [entry for entry in special if kept.dialect == "wildcard" and not self._special(entry[:-1]) and entry[-1] == "*"]
        self._starts = tuple(entry[:-1] for entry in starts)
        self._patterns = [re.compile(self._pattern(entry)) for entry in special if entry not in starts]

    def _special(self, entry: str) -> bool:
        if self.dialect == "compressed":
            return entry.startswith("re:")
        return any(sign in entry for sign in ("*?[" if self.dialect == "wildcard" else "*"))

    def _pattern(self, entry: str) -> str:
        if self.dialect == "compressed":
            return entry.removeprefix("re:")
        if self.dialect == "wildcard":
            return translate(entry)
        escaped = re.escape(entry.strip(".")).replace(r"\*", "[^.]*")
        return rf"{escaped}(\.|$)" if self.dialect == "prefix" else rf"(.*\.)?{escaped}(\.|$)"

    def keeps(self, layer: int | None, module: str) -> bool:
        """Whether `module` of a layer, or of the whole model where `layer` is None, stays as it is."""
        if not (self._exact or self._starts or self._patterns):
            return False
        module = module.replace("*", "0")  # one expert stands for all
        names = [module, f"language_model.{module}"] if layer is None else [f"{prefix}layers.{layer}.{module}" for prefix in PREFIXES]
        if any(self._keeps(name) for name in names):
            return True
        if self.dialect == "part":
            self.ambiguous = next((entry for entry in self._exact if entry in names[0]), self.ambiguous)
        return False

    def _keeps(self, name: str) -> bool:
        parts = name.split(".")
        size = len(parts)
        heads = [".".join(parts[:end]) for end in range(1, size + 1)]
        if self.dialect == "part":
            runs = {".".join(parts[start:end]) for start in range(size) for end in range(start + 1, size + 1)}
        elif self.dialect == "prefix":
            runs = {*heads, *(".".join(parts[start:]) for start in range(1, size))}
        else:
            runs = {name} if self.dialect == "compressed" else set(heads)  # ModelOpt names whole blocks, too
        if not self._exact.isdisjoint(runs) or name.startswith(self._starts):
            return True
        tried = heads if self.dialect == "wildcard" else [name]
        return any(pattern.match(each) for pattern in self._patterns for each in tried)


def read_kept(config: Fields, keys: tuple[str, ...], dialect: Dialect) -> Kept:
    """The lists under `keys`. Raises BadInput for what is no list of names, and for patterns that could take forever."""
    present = tuple(key for key in keys if config.has(key))
    entries = [entry for key in present for entry in _all(config, key)]
    if len(entries) > MAX_ENTRIES:
        raise config.bad(present[0], f"it has more than {MAX_ENTRIES:,} entries")
    for entry in entries:
        regex = entry.startswith("re:") and dialect == "compressed"
        if len(entry) > MAX_LENGTH or not _harmless(entry.removeprefix("re:"), regex):
            raise BadInput(f"{config.where}: the pattern {entry[:40]!r} is not one that kvcli runs", code="bad_field")
    return Kept(present, tuple(entries), dialect)


def _all(config: Fields, key: str) -> list[str]:
    config.texts(key, 0)  # a list of names, or an error
    return list(config.values[key])


def _harmless(pattern: str, regex: bool) -> bool:
    """No repeated groups and few repetitions, so that matching a short name is quick; and it must compile."""
    if not regex:
        return pattern.count("*") <= MAX_QUANTIFIERS
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return not re.search(r"\)[*+?{]", pattern) and len(re.findall(r"[*+{]", pattern)) <= MAX_QUANTIFIERS
