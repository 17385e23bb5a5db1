"""Prefill, decode, and the loop around them. The clock is passed in: it must wait for the device before it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvcli.errors import CannotRunHere
from kvcli.runtime.caches import Cache, NoCache
from kvcli.runtime.sampling import Sampler
from kvcli.runtime.transformer import Transformer

#: nanoseconds of a monotonic clock that has waited for the device
Clock = Callable[[], int]


def prefill(model: Transformer, prompt: Tensor, cache: Cache) -> Tensor:
    """Fills the cache with `prompt` [B, T] and returns the logits [B, V] after its last token."""
    return model.forward(prompt, cache)


def decode(model: Transformer, tokens: Tensor, cache: Cache) -> Tensor:
    """One step: `tokens` [B, 1] are the newest; returns the logits [B, V] after them."""
    return model.forward(tokens, cache)


@dataclass
class Generation:
    """What one generation produced and how long each part took. `token_ids` are the new ones of sequence 0."""

    prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    prefill_ns: int = 0
    step_ns: list[int] = field(default_factory=list)
    stopped: str = "length"
    last_logits: Tensor | None = None


def generate(
    model: Transformer,
    prompt_ids: Sequence[int],
    cache: Cache,
    sampler: Sampler,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    clock: Clock,
    on_token: Callable[[int], None] | None = None,
    generation: Generation | None = None,
) -> Generation:
    """Generates until a stop token or `max_new_tokens`.

    The prefill time ends when the first token is chosen (TTFT), a step's when the next one is; `on_token` runs outside
    both. An interrupt leaves what was made so far in `generation`.
    """
    out = generation or Generation(len(prompt_ids))
    ids = list(prompt_ids)
    device = model.device
    began = clock()
    logits = prefill(model, torch.tensor([ids], device=device), cache)
    token = int(sampler.choose(logits, [ids])[0])
    out.prefill_ns = clock() - began
    _check_finite(logits)
    while True:
        out.last_logits = logits[0]
        if token in stop_ids:
            out.stopped = "stop token"
            return out
        out.token_ids.append(token)
        ids.append(token)
        if on_token is not None:
            on_token(token)
        if len(out.token_ids) >= max_new_tokens:
            _check_finite(logits)
            return out
        began = clock()
        # without a cache a step is a pass over everything so far
        feed = [ids] if isinstance(cache, NoCache) else [[token]]
        logits = decode(model, torch.tensor(feed, device=device), cache)
        token = int(sampler.choose(logits, [ids])[0])
        out.step_ns.append(clock() - began)


def _check_finite(logits: Tensor) -> None:
    """Raises CannotRunHere for NaN or infinity, of which argmax would make a token without a word.

    Looked at outside the timed steps, first and last: what is not finite stays so, since the cache keeps it.
    """
    if not bool(torch.isfinite(logits).all()):
        raise CannotRunHere(
            "the model's logits are not finite, so its tokens mean nothing",
            hint="the weights may be damaged, or the type too narrow: try --dtype fp32",
            code="logits_not_finite",
        )
