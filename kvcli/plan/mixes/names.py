"""The mixes of GGUF types that have names, and how they are spelled."""

from __future__ import annotations

from typing import NamedTuple

#: whose rule decides what a mix is: a commit of October 2026
RULE = "llama.cpp 86a2835"

#: mix -> the type of a tensor that no rule names
MIXES = {
    **{name: name for name in ("q8_0", "q6_k", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0")},
    **dict.fromkeys(("q5_k_m", "q5_k_s"), "q5_k"),
    **dict.fromkeys(("q4_k_m", "q4_k_s"), "q4_k"),
    **dict.fromkeys(("q3_k_l", "q3_k_m", "q3_k_s"), "q3_k"),
    **dict.fromkeys(("q2_k", "q2_k_s"), "q2_k"),
    **dict.fromkeys(("iq3_m", "iq3_s", "iq3_xs"), "iq3_s"),
    "iq3_xxs": "iq3_xxs",
    "iq2_m": "iq2_s",
    "iq2_s": "iq2_xs",
    **{name: name for name in ("iq2_xs", "iq2_xxs", "iq1_m", "iq1_s")},
    "mxfp4_moe": "mxfp4",
}
#: as llama-quantize takes them
ALIASES = {"q5_k": "q5_k_m", "q4_k": "q4_k_m", "q3_k": "q3_k_m"}


class Mix(NamedTuple):
    """A mix that a user named. `name` is llama.cpp's, in small letters."""

    name: str


def parse_mix(text: str) -> Mix | None:
    """The mix of that name in any spelling (`Q4_K_M`, `q4-k-m`, `q4_k`), or None."""
    name = text.strip().lower().replace("-", "_")
    name = ALIASES.get(name, name)
    return Mix(name) if name in MIXES else None
