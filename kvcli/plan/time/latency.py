"""The floors of a plan together."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.ledger import Ledger
from kvcli.plan.floors import Floor
from kvcli.plan.time.steps import Steps


class Latency(NamedTuple):
    """Floors of a decode step and of a prefill. A step can emit at most `tokens_per_step` tokens of each sequence.

    `tokens_per_s` is the ceiling where replicas differ in their number of sequences. `steps` answers for other contexts and batches.
    """

    decode: Floor
    prefill: Floor
    arithmetic_intensity: float
    ridge: float | None
    tokens_per_step: int = 1
    tokens_per_s: float | None = None
    steps: Steps | None = None
    #: FLOP/B at nominal rates is `ridge`; at the rates that floors take, which no execution exceeds, it is this one
    ridge_of_bounds: float | None = None

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.decode.lines + self.prefill.lines)
