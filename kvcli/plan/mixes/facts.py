"""What llama.cpp's rule for tensor types looks at, and the readings of it that a mix's name leaves open."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.model.cache_records import Attention
from kvcli.model.gguf.layout import FAMILIES
from kvcli.model.latent_records import Latent
from kvcli.model.spec import ModelSpec

#: mixes whose types depend on whether an importance matrix was at hand
BY_IMATRIX = frozenset(("q4_0", "q5_0", "iq4_nl", "iq4_xs"))
#: mixes that llama-quantize refuses to make without one
NEEDS_IMATRIX = frozenset(("q2_k_s", "iq3_xxs", "iq3_xs", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"))

#: families that llama.cpp reads into its `llama` architecture
_AS_LLAMA = ("llama", "mistral", "mixtral", "internlm3")
#: family -> layers of the models that llama.cpp calls 70B; of `llama` only where query heads share KV heads
_SEVENTY = {**dict.fromkeys(_AS_LLAMA, 80), "qwen2": 80, "olmo": 80, "jais2": 68}


class Facts(NamedTuple):
    """What the rule looks at beside a tensor. `layers` counts a prediction block in the file too; `gqa` is query heads / KV heads of
    the first layer; `seventy` marks models that llama.cpp calls 70B.

    `old_fused`: the rule before 2026, which gave fused attention a type of its own.
    """

    layers: int
    gqa: int
    experts: int = 0
    tied: bool = False
    falcon: bool = False
    seventy: bool = False
    imatrix: bool = False
    old_fused: bool = False


def facts_of(spec: ModelSpec) -> Facts:
    """Latent attention has one KV head there, a first layer without attention none; files of DeltaNets give one number for all layers."""
    family = FAMILIES.get(spec.model_type)
    layers_asked = spec.order if family is not None and family.gates else spec.order[:1]
    records = [spec.groups[number].records[0] for number in layers_asked]
    record = next((record for record in records if isinstance(record, Attention | Latent)), None)
    heads, kv_heads = 0, 1
    if isinstance(record, Attention):
        heads, kv_heads = record.num_attention_heads, record.num_key_value_heads
    elif isinstance(record, Latent):
        heads = record.num_attention_heads
    layers = spec.num_hidden_layers
    return Facts(
        layers=layers,
        gqa=heads // kv_heads,
        experts=max((group.parameters.num_experts for group in spec.groups), default=0),
        tied=spec.tied,
        falcon=spec.model_type == "falcon",
        seventy=_SEVENTY.get(spec.model_type) == layers and (heads != kv_heads or spec.model_type not in _AS_LLAMA),
    )


def readings(spec: ModelSpec, mix: str, fused: bool) -> tuple[tuple[Facts, ...], str]:
    """All facts that may be behind a file of that mix, and in words what they differ in (empty where there is one alone).

    With an importance matrix or without; by either rule for fused attention; with a prediction block or without.
    """
    found = [facts_of(spec)._replace(imatrix=mix in NEEDS_IMATRIX)]
    causes = []
    if mix in BY_IMATRIX:
        found += [facts._replace(imatrix=True) for facts in found]
        causes.append("it depends on whether the file was made with an importance matrix")
    if fused:
        found += [facts._replace(old_fused=True) for facts in found]
        causes.append("llama.cpp changed its rule for fused attention in 2026")
    family = FAMILIES.get(spec.model_type)
    if spec.mtp_parameters or (family is not None and family.prediction):
        found += [facts._replace(layers=facts.layers + 1) for facts in found]
        causes.append("it depends on whether the file holds the block that predicts further tokens")
    return tuple(found), " and ".join(causes)
