"""Which type llama.cpp gives each tensor of a quantised file: its rule, written as tables.

Source: `src/llama-quant.cpp` (`llama_tensor_get_type_impl`, `tensor_type_fallback`) at commit 86a2835, October 2026; the rule is older
than the tensors' names, so files since 2024 follow it but for fused attention (`Facts.old_fused`). Held against the library
itself in tests/plan/test_gguf_mix_live.py. Bits follow from types in `kvcli.dtypes`.
"""

from __future__ import annotations

from collections import Counter

from kvcli.dtypes import FILE_ONLY, FP16, FP32, PLAIN, DType
from kvcli.model.gguf.mixer_layout import Stored
from kvcli.plan.mixes.facts import Facts
from kvcli.plan.mixes.names import MIXES

TYPES = PLAIN | FILE_ONLY

_LOWEST = frozenset(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m"))
_IQ2_WIDE = ("iq2_s", "iq2_m")

#: a table of its own type where it is not also the head
_INPUT = {
    **dict.fromkeys(("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"), "q2_k"),
    **dict.fromkeys(("iq2_s", "iq2_m", "iq3_xxs"), "iq3_s"),
    **dict.fromkeys(("tq1_0", "tq2_0"), "q4_k"),
}
#: what a type becomes in a tensor whose rows do not fill its blocks; fp16 where they do not fill these blocks either
_FALLBACK = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0"),
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}
_OUTPUT = {"q2_k": "q3_k", "iq3_xxs": "iq3_s", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_m": "q4_k"}
_OUTPUT_OF_EIGHT = frozenset(
    ("q2_k", "iq3_xs", "iq3_xxs", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq3_s", "iq3_m", "iq4_xs"),
)
_QUERY_KEY = {"iq3_xs": "iq3_xxs", "iq3_xxs": "iq2_s"}
_FUSED_BEFORE_2026 = {"q3_k_m": "q4_k", "q3_k_l": "q4_k", "iq3_m": "q4_k", "q4_k_m": "q5_k", "q5_k_m": "q6_k"}

#: parts of names in the order in which llama.cpp looks for them
_KINDS = ("attn_qkv.", "attn_kv_b.", "attn_v.", "attn_k.", "attn_q.", "attn_output.", "ffn_up", "ffn_gate", "ffn_down")
_VALUES = ("attn_qkv.", "attn_kv_b.", "attn_v.")


class Rule:
    """The types of one file's tensors, which must be asked for in the file's order: some depend on how many came before."""

    def __init__(self, mix: str, facts: Facts, tensors: tuple[Stored, ...]) -> None:
        self._mix = mix
        self._default = MIXES[mix]
        self._facts = facts
        self._values = sum(kind_of(tensor.name) in _VALUES for tensor in tensors)
        self._seen: Counter[str] = Counter()

    def type_of(self, tensor: Stored) -> DType:
        if tensor.single:
            return FP32
        wanted = TYPES[self._wanted(tensor)]
        if tensor.columns % wanted.block_elements == 0:
            return wanted
        # older builds refuse to make a file where a type without a narrower stand-in does not fit
        narrower = TYPES[_FALLBACK.get(wanted.name, wanted.name)]
        return FP16 if tensor.columns % narrower.block_elements else narrower

    def _wanted(self, tensor: Stored) -> str:
        table = tensor.name in ("token_embd.weight", "per_layer_token_embd.weight")
        if tensor.name == "output.weight" or (table and self._facts.tied):
            return self._head(tensor)
        if self._mix == "mxfp4_moe":
            return "mxfp4" if tensor.depth > 1 else "q8_0"
        if table:
            return _INPUT.get(self._mix, self._default)
        kind = kind_of(tensor.name)
        wanted = self._lowest(kind) if self._mix in _LOWEST else self._usual(kind, tensor)
        if kind in _VALUES and not (self._facts.old_fused and kind != "attn_v."):
            self._seen["values"] += 1
        elif kind == "ffn_down":
            self._seen["down"] += 1
        return wanted or self._default

    def _head(self, tensor: Stored) -> str:
        whole = tensor.columns % TYPES[self._default].block_elements == 0
        if self._mix == "mxfp4_moe" or self._facts.falcon or not whole or self._default == "q8_0":
            return "q8_0"
        return "q5_k" if self._mix in _LOWEST or self._mix == "iq3_xxs" else "q6_k"

    def _lowest(self, kind: str) -> str | None:
        """The mixes around one and two bits."""
        facts, wide = self._facts, self._mix in _IQ2_WIDE
        if kind in _VALUES and not (facts.old_fused and kind != "attn_v."):
            return "q4_k" if facts.gqa >= 4 or facts.experts >= 4 else "iq3_s" if wide else "q2_k"
        if kind == "attn_k." and facts.experts == 8:
            return "q4_k"
        if kind == "ffn_down" and self._seen["down"] < facts.layers // 8:
            return "iq3_s" if wide else "q2_k"
        if kind == "attn_output.":
            return "q5_k" if facts.experts == 8 else {"iq1_s": "iq2_xxs", "iq1_m": "iq2_xxs"}.get(self._mix, "iq3_s" if wide else None)
        return None

    def _usual(self, kind: str, tensor: Stored) -> str | None:
        facts, mix = self._facts, self._mix
        if kind in _VALUES:
            if facts.old_fused and kind != "attn_v.":
                return _FUSED_BEFORE_2026.get(mix) if kind == "attn_qkv." else None
            return self._value()
        if kind == "attn_k." and facts.experts == 8:
            return "q8_0"
        if kind in ("attn_k.", "attn_q."):
            return _QUERY_KEY.get(mix)
        if kind == "ffn_down":
            return self._down(self._layer(tensor, "down"))
        if kind == "attn_output.":
            if facts.falcon:
                return "q4_k" if mix == "q3_k_l" else None
            if facts.experts == 8:
                return "q5_k" if mix in _OUTPUT_OF_EIGHT else None
            return _OUTPUT.get(mix)
        if kind in ("ffn_up", "ffn_gate"):
            layer = self._layer(tensor, kind)
            self._seen[kind] += 1
            return "iq3_xxs" if mix == "iq3_xs" and facts.layers // 8 <= layer < 7 * facts.layers // 8 else None
        return None

    def _layer(self, tensor: Stored, counted: str) -> int:
        """Models of experts have several such tensors a layer: there the name's number counts, elsewhere how many came before."""
        return tensor.layer or 0 if self._facts.experts > 1 else self._seen[counted]

    def _value(self) -> str | None:
        facts, mix, seen = self._facts, self._mix, self._seen["values"]
        if facts.experts == 8:
            return "q8_0"
        many = facts.gqa >= 4
        wanted = self._default
        if mix == "q2_k":
            wanted = "q4_k" if many else "q3_k"
        elif mix in ("q2_k_s", "iq3_xs", "iq3_s") and many:
            wanted = "q4_k"
        elif mix == "iq3_xxs":
            wanted = "q4_k" if many else "iq3_xxs" if facts.imatrix else "iq3_s"
        elif mix == "iq3_m":
            wanted = "q4_k"
        elif mix == "q3_k_m":
            wanted = "q5_k" if seen < 2 else "q4_k"
        elif mix == "q3_k_l" or (mix in ("iq4_nl", "iq4_xs") and many) or (mix == "q4_k_s" and seen < 4):
            wanted = "q5_k"
        elif mix in ("q4_k_m", "q5_k_m") and _more(seen, self._values):
            wanted = "q6_k"
        return "q5_k" if facts.seventy and wanted in ("q3_k", "q4_k") else wanted

    def _down(self, layer: int) -> str | None:
        """The last matrix of an MLP: the first eighth of the layers and some later ones have more bits."""
        facts, mix = self._facts, self._mix
        layers, early = facts.layers, layer < facts.layers // 8
        more = _more(layer, layers)
        if mix == "q2_k":
            return "q3_k"
        if mix == "q3_k_m":
            if layer < layers // 16:
                return "q5_k"
            return "q4_k" if not facts.falcon or more else None
        if mix == "q3_k_l":
            return "q4_k" if facts.falcon else "q5_k"
        if mix == "q4_k_m" and facts.falcon:
            return "q6_k" if layer < layers // 16 else "q5_k" if more else None
        if mix in ("q4_k_m", "q5_k_m"):
            return "q6_k" if more else None
        if mix == "iq3_m":
            return "q4_k" if early or (facts.experts == 8 and more) else None
        if mix == "iq3_xxs":
            return None if facts.imatrix else "q4_k" if early else "q3_k"
        if not early:
            return None
        if mix in ("iq4_nl", "iq4_xs"):
            return None if facts.imatrix else "q5_k"
        if mix in ("q4_0", "q5_0"):
            return {"q4_0": "q4_1", "q5_0": "q5_1"}[mix] if facts.imatrix else None
        return {"q2_k_s": "q4_k", "q4_k_s": None if facts.falcon else "q5_k"}.get(mix)


def kind_of(name: str) -> str:
    """The part of a name by which llama.cpp sorts it; empty for others, which get the mix's own type."""
    return next((kind for kind in _KINDS if kind in name), "")


def _more(index: int, count: int) -> bool:
    """The layers that medium mixes favour: the first and last eighth, and every third between."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2
