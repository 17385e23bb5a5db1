"""What engines take of a device for the cache, and what they leave: their rules, their defaults by device, their versions.

Each `*_pool_bytes` is the one formula of an engine's pool; `Rule` is what of a device stays out of it. Sources: vLLM's start-up
lines (`Available KV cache memory`) and `arg_utils` (defaults by device), 0.6 to 0.33; SGLang's `server_args` (fraction in auto
mode), 0.5.8 to 0.5.23; llama.cpp's `--fit` (`--fit-target`), 2026; TensorRT-LLM's `free_gpu_memory_fraction`, 1.x.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.hardware.accelerators import Accelerator
from kvcli.plan.sharing.split import Split

GIB, MIB = 2**30, 2**20
#: vLLM's gpu_memory_utilization by the versions whose storage kvcli knows.
VLLM_UTILIZATION = {"0.33": Fraction("0.92"), "0.9": Fraction("0.90")}
#: TensorRT-LLM's free_gpu_memory_fraction, and its max_num_tokens.
TRTLLM_FRACTION, TRTLLM_CHUNK = Fraction("0.9"), 8192
#: What llama.cpp's `--fit` leaves of a device.
LLAMA_CPP_LEAVES = 1024 * MIB
#: From this memory on vLLM takes its larger defaults, on parts whose name does not say A100.
VLLM_LARGE = 70 * GIB
#: GB10's memory is the host's; logs show the small defaults.
VLLM_SMALL = ("a100", "gb10")
#: SGLang's ladder: below so many GiB the prefill chunk in tokens, and the most sequences in a graph below tp 4 and from it on.
SGLANG_LADDER = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512), (1 << 20, 16384, 512, 512))
#: Devices of more than 60 GiB leave at least so much.
SGLANG_LARGE, SGLANG_LEAST = 60 * GIB, 10 * GIB
ENGINES_WITH_SHARE = ("vllm", "sglang", "trtllm")


class Defaults(NamedTuple):
    """Tokens of a prefill chunk and the sequences an engine makes room for, on a device. None: the workload's."""

    chunk_tokens: int | None = None
    sequences: int | None = None


def defaults(engine: str, device: Accelerator, split: Split) -> Defaults:
    if engine == "vllm":
        large = (device.memory_bytes or 0) >= VLLM_LARGE and not device.id.startswith(VLLM_SMALL)
        return Defaults(8192, 1024) if large else Defaults(2048, 256)
    if engine == "sglang":
        return Defaults(*_step(device, split))
    if engine == "trtllm":
        return Defaults(TRTLLM_CHUNK)
    return Defaults()


def _step(device: Accelerator, split: Split) -> tuple[int, int]:
    """SGLang's chunk and graph batch."""
    memory = device.memory_bytes or 0
    _, chunk, few, many = next(step for step in SGLANG_LADDER if memory < step[0] * GIB)
    return chunk, few if split.tensor < 4 else many


def share(engine: str, version: str, device: Accelerator, split: Split, asked: Fraction | None, drafter: str) -> Fraction | None:
    """The share of memory the engine may take; None for engines without one. `drafter`: "", "ngram", "blocks" or "model".

    Raises BadInput where a share was asked of an engine without one.
    """
    if engine not in ENGINES_WITH_SHARE:
        if asked is not None:
            raise BadInput(
                f"{engine} takes no share of memory as --utilization says",
                hint="use it with --engine " + ", ".join(ENGINES_WITH_SHARE),
                code="unknown_engine_option",
            )
        return None
    if asked is not None:
        return asked
    if engine == "vllm":
        return VLLM_UTILIZATION[version]
    return TRTLLM_FRACTION if engine == "trtllm" else sglang_fraction(device, split, drafter)


def sglang_fraction(device: Accelerator, split: Split, drafter: str = "") -> Fraction:
    """mem_fraction_static in auto mode, rounded to three digits.

    Set aside, in MiB: 512, 1.5 a token of the chunk, 2 a sequence of the largest graph, 128 a device; with data-parallel attention
    3 a sequence and group more, 4.5 where graphs hold more than 300; at least 10 GiB on devices of more than 60; then 6 GiB for a
    draft model, 2 for prediction blocks.
    """
    memory = Fraction(device.memory_bytes or 0, MIB)
    if not memory:
        return Fraction("0.88")
    chunk, graph = _step(device, split)
    aside = 512 + Fraction(3, 2) * chunk + 2 * graph + Fraction(1024 * split.tensor * split.pipeline, 8)
    if split.attention_data > 1:
        aside += graph * split.attention_data * (Fraction(9, 2) if graph > 300 else 3)
    if memory > Fraction(SGLANG_LARGE, MIB):
        aside = max(aside, Fraction(SGLANG_LEAST, MIB))
    aside += {"model": 6 * 1024, "blocks": 2 * 1024}.get(drafter, 0)
    return max(Fraction(0), Fraction(round((memory - aside) / memory * 1000), 1000))


def vllm_pool_bytes(total: int, utilization: Fraction, weights: int, not_torch: int, activations: int, graphs: int = 0) -> int:
    """What vLLM finds for its cache: total x utilisation - weights - what is not torch's - peak of activations (- graphs since 0.21).

    Bytes; negative where nothing is left. `total` is what a context sees of the device.
    """
    return int(total * utilization) - weights - not_torch - activations - graphs


def sglang_pool_bytes(total: int, fraction: Fraction, weights: int, not_torch: int) -> int:
    """SGLang's static memory less the weights; activations and graphs live in what the fraction leaves."""
    return int((total - not_torch) * fraction) - weights


def trtllm_pool_bytes(total: int, fraction: Fraction, weights: int, not_torch: int, activations: int) -> int:
    """A fraction of what is free once weights are loaded and a forward pass has run."""
    return int((total - weights - not_torch - activations) * fraction)
