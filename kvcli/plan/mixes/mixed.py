"""Which scheme each of a model's matrices has in its file."""

from __future__ import annotations

import re

from kvcli.model.kept_modules import PREFIXES, Matcher
from kvcli.model.scheme import Scheme
from kvcli.model.spec import ModelSpec

_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")
#: First parts of what lies beside the decoder: further prediction blocks, and towers.
_BESIDE = ("mtp.", "model.mtp.", "model.visual.", "visual.", "vision_model.", "vision_tower.", "model.vision_tower.")


class ByList:
    """One scheme for all modules but those that a list keeps."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self.matcher = Matcher(scheme.kept)

    def __call__(self, layer: int | None, module: str) -> Scheme | None:
        """Of a module of a layer, or of the whole model where `layer` is None; None where it is not quantised."""
        return None if self.matcher.keeps(layer, module) else self.scheme

    def unclear(self) -> str:
        """Why the answers cannot be relied on, empty where they can; asked when all have been given."""
        entry = self.matcher.ambiguous
        return f"its entry {entry[:40]!r} matches parts of module names, which tools read differently" if entry else ""


class ByModule:
    """The scheme that the file names for each module; what it names must all be found among the model's matrices."""

    def __init__(self, spec: ModelSpec, scheme: Scheme) -> None:
        self.spec = spec
        self.modules = {entry.module: entry for entry in scheme.mixed}
        self.matcher = Matcher(scheme.kept)
        self.found: set[str] = set()
        self.partly = ""

    def __call__(self, layer: int | None, module: str) -> Scheme | None:
        """As ByList's; an entry of all experts of a layer stands for each of their matrices, and the list of kept ones wins."""
        own = None
        for name in _names(layer, module):
            for entry in filter(None, map(self.modules.get, (name, name.partition(".*.")[0]))):
                self.found.add(entry.module)
                number = 0 if layer is None else self.spec.groups[self.spec.order[layer - self.spec.first_layer]].parameters.num_experts
                if entry.experts not in (0, number):
                    self.partly = entry.module
                own = own or entry.scheme
        return None if own is None or self.matcher.keeps(layer, module) else own

    def unclear(self) -> str:
        """As ByList's."""
        if self.partly:
            return f"it quantises some of the experts of {self.partly[:80]!r} alone"
        rest = sorted(name for name in self.modules.keys() - self.found if not self._beside(name))
        return f"it quantises {rest[0][:80]!r}, which is none of the matrices that kvcli knows" if rest else ""

    def _beside(self, name: str) -> bool:
        """Whether a module is none of the decoder's: bytes of prediction blocks and towers are counted apart."""
        layer = _LAYER.search(name)
        return name.startswith(_BESIDE) or (layer is not None and int(layer[1]) >= len(self.spec.order))


def _names(layer: int | None, module: str) -> list[str]:
    if layer is None:
        return [module, f"language_model.{module}"]
    return [f"{prefix}layers.{layer}.{module}" for prefix in PREFIXES]
