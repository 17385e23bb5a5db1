"""The host's memory as a second budget: what is offloaded to it, and what it keeps of prompts."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.ledger import Basis, Formula
from kvcli.plan.budget.options import BudgetOptions
from kvcli.plan.budget.overheads import Need, need
from kvcli.plan.budget.reserve import MIB
from kvcli.plan.sharing.shared import Place

#: llama-server's --cache-ram: the most it keeps of prompts.
LLAMA_SERVER_PROMPTS = 8192 * MIB
PROMPTS = "llama-server's --cache-ram, filled as prompts come"


class HostBudget(NamedTuple):
    """`usable_bytes` None: nobody said how much there is, so nothing is said about fitting."""

    needs: tuple[Need, ...]
    usable_bytes: int | None

    @property
    def low_bytes(self) -> int:
        return sum(each.low_bytes for each in self.needs)

    @property
    def high_bytes(self) -> int:
        return sum(each.high_bytes for each in self.needs)

    @property
    def fits(self) -> bool | None:
        return None if self.usable_bytes is None else self.low_bytes <= self.usable_bytes


def host_budget(engine: str, place: Place | None, options: BudgetOptions) -> HostBudget | None:
    """None where nothing is on the host and nobody asked."""
    if place is None and options.host_bytes is None and options.cache_ram_bytes is None:
        return None
    found = []
    if place is not None:
        for item, size in (("weights", place.weights_bytes), ("kv_cache", place.stored_bytes)):
            if size:
                found.append(need(item, size, size, Formula("host_part", (("layers", place.layers), ("bytes", size))), Basis.FORMULA))
    prompts = options.cache_ram_bytes
    if engine == "llama.cpp":
        basis = Basis.ENGINE_RULE if prompts is None else Basis.USER
        most = LLAMA_SERVER_PROMPTS if prompts is None else prompts
        if most:
            found.append(need("prompt_cache", 0, most, Formula("at_most", (("bytes", most),)), basis, PROMPTS))
    elif prompts:  # a tier below the device's pool is allocated whole, in pinned memory
        found.append(need("offload_tier", prompts, prompts, Formula("given", (("bytes", prompts),)), Basis.USER, "--cache-ram"))
    return HostBudget(tuple(found), options.host_bytes)
