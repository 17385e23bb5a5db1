"""`parity.*`: cached logits against one full forward pass. The uncached pass is the oracle: it has no cache to be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kvcli.runtime.caches import NoCache
from kvcli.runtime.transformer import Transformer
from kvcli.verify.checks import Check
from kvcli.verify.growth import CacheFactory

PREFILL_TOKENS = 16
DECODE_TOKENS = 32
TOLERANCE = 1e-4
BASIS = "largest difference of any logit that fp32 rounding explains"


def parity_checks(
    model: Transformer, label: str, kinds: Sequence[str] = ("none", "dynamic", "static"), new_cache: CacheFactory | None = None
) -> Iterator[Check]:
    """Prefill 16, decode 32, every logit of all 48 tokens against the full pass; model and weights must be fp32."""
    make = new_cache or (lambda kind, tokens: model.new_cache(kind, 1, tokens))
    total = PREFILL_TOKENS + DECODE_TOKENS
    ids = torch.randint(model.spec.vocab_size, (1, total), generator=torch.Generator().manual_seed(1)).to(model.device)
    full = model.forward(ids, NoCache(), all_logits=True)[0]  # [48, V]
    for kind in kinds:
        stacked = _stepwise(model, ids, make, kind)
        note = "" if stacked.shape == full.shape else f"{tuple(stacked.shape)} logits instead of {tuple(full.shape)}"
        difference = float((stacked - full).abs().max()) if not note else float("inf")
        worst = int((stacked - full).abs().amax(dim=-1).argmax()) if not note else 0
        if difference > TOLERANCE:
            note = note or f"worst at token {worst + 1} of {total} ({'prefill' if worst < PREFILL_TOKENS else 'decode'})"
        yield Check(f"parity.{label}.{kind}", 0.0, difference, "logit", TOLERANCE, BASIS, note)


def _stepwise(model: Transformer, ids: Tensor, make: CacheFactory, kind: str) -> Tensor:
    """Logits of every token, the first 16 in one pass, then one at a time. [48, V]"""
    total = ids.shape[1]
    cache = make(kind, total)
    rows = [model.forward(ids[:, :PREFILL_TOKENS], cache, all_logits=True)[0]]
    for position in range(PREFILL_TOKENS, total):
        first = 0 if isinstance(cache, NoCache) else position
        rows.append(model.forward(ids[:, first : position + 1], cache))
    return torch.cat(rows)
