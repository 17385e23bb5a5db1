"""From logits to the next token: repetition penalty, temperature, truncation (top-k, top-p, min-p), draw.

The order is part of the meaning. The penalty acts on raw logits, the truncations on the distribution that the
temperature has already shaped, each one renormalising before the next, so that `top_p` is a share of what `top_k` left.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvcli.errors import BadInput, CannotRunHere

#: Seeds that torch, JSON readers and people all take without loss.
MAX_SEED = 2**53
_FLOAT = torch.finfo(torch.float32)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How to choose a token. The defaults are greedy; a truncation at its default is off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        # NaN fails every comparison, so each condition is written as what must hold.
        _require(0 <= self.temperature < math.inf, "--temperature", self.temperature, "0 or a positive number")
        _require(self.top_k >= 0, "--top-k", self.top_k, "0 (off) or a positive whole number")
        _require(0 < self.top_p <= 1, "--top-p", self.top_p, "above 0 and at most 1 (off)")
        _require(0 <= self.min_p <= 1, "--min-p", self.min_p, "between 0 (off) and 1")
        _require(
            1e-3 <= self.repetition_penalty <= 1e3, "--repetition-penalty", self.repetition_penalty, "between 0.001 and 1000 (1 is off)"
        )
        _require(self.seed is None or 0 <= self.seed < MAX_SEED, "--seed", self.seed, f"a whole number from 0 to {MAX_SEED - 1}")


def _require(holds: bool, option: str, value: object, wanted: str) -> None:
    if not holds:
        raise BadInput(f"{option} {value} is not {wanted}", code="bad_sampling")


class Sampler:
    """Chooses one token a sequence, with a generator of its own so that nothing else moves its random numbers."""

    def __init__(self, options: SamplingOptions, device: torch.device | str = "cpu") -> None:
        self.options = options
        self.seed = secrets.randbits(32) if options.seed is None else options.seed
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(self.seed)

    def choose(self, logits: Tensor, previous: Sequence[Sequence[int]]) -> Tensor:
        """The next token of each row: logits [B, V], the ids of each row so far (prompt and output) -> ids [B]."""
        if self.options.temperature == 0:
            return _penalised(logits, self.options.repetition_penalty, previous).argmax(dim=-1)
        probs = distribution(logits, self.options, previous)
        if bool(probs.isnan().any()):
            raise CannotRunHere(
                "the model's logits are not finite, so no token can be drawn from them",
                hint="use a data type with a wider range: --dtype fp32 or bf16",
                code="logits_not_finite",
            )
        return torch.multinomial(probs, 1, generator=self._generator).squeeze(-1)


def distribution(logits: Tensor, options: SamplingOptions, previous: Sequence[Sequence[int]]) -> Tensor:
    """The probabilities that the next token is drawn from: logits [B, V] -> probs [B, V] in float32.

    Equal logits are ranked by token id, so a truncation that cuts through a tie keeps the lower ids on every device.
    """
    logits = _penalised(logits, options.repetition_penalty, previous)
    if options.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()

    # Taking the maximum off first keeps a tiny temperature from overflowing to inf - inf.
    temperature = min(max(options.temperature, _FLOAT.tiny), _FLOAT.max)
    probs = ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)
    if not options.top_k and options.top_p == 1 and not options.min_p:
        return probs

    ranked, token_ids = probs.sort(dim=-1, descending=True, stable=True)
    if options.top_k:
        ranked[..., options.top_k :] = 0
        ranked /= ranked.sum(dim=-1, keepdim=True)
    if options.top_p < 1:
        # The mass before a token decides, so the most likely one (nothing before it) always stays.
        mass_before = ranked.cumsum(dim=-1) - ranked
        kept = mass_before < options.top_p
        kept[..., 0] = True  # also where top_p rounds to zero
        ranked = ranked.where(kept, 0)
    if options.min_p:
        ranked = ranked.where(ranked >= options.min_p * ranked[..., :1], 0)
    ranked /= ranked.sum(dim=-1, keepdim=True)
    return torch.zeros_like(probs).scatter(-1, token_ids, ranked)


def _penalised(logits: Tensor, penalty: float, previous: Sequence[Sequence[int]]) -> Tensor:
    """Logits in float32 with every token already seen made less likely, once, however often it occurred."""
    logits = logits.float()
    if penalty == 1:
        return logits
    logits = logits.clone()
    for row, seen in zip(logits, previous, strict=True):
        token_ids = torch.tensor(sorted(set(seen)), dtype=torch.long, device=logits.device)
        values = row[token_ids]
        # Dividing a negative logit would raise it.
        row[token_ids] = torch.where(values > 0, values / penalty, values * penalty)
    return logits
