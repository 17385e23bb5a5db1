"""How far a doubt reaches: whether the weights could fit if what is not known were as it would have to be."""

from __future__ import annotations

from typing import Literal

from kvcli.check.case import Case, planned
from kvcli.check.requests import split_of
from kvcli.plan.plan import Plan
from kvcli.plan.sharing.split import ALONE
from kvcli.plan.weights import parse_weights

#: another model, other devices, weights on the host; the same model in 4 bits over all devices that are there; in 4 bits, or 2, over those
#: that it uses; the same weights
Reach = Literal["everything", "quarter", "copied", "least", "same"]
EVERYTHING: Reach = "everything"
QUARTER_WEIGHTS: Reach = "quarter"
COPIED_WEIGHTS: Reach = "copied"
LEAST_WEIGHTS: Reach = "least"
SAME_WEIGHTS: Reach = "same"


def could_fit(case: Case, reach: Reach) -> bool:
    """False only where the weights alone are more than the devices hold."""
    if reach == EVERYTHING or case.plan is None or case.asked is None or case.plan.memory is None:
        return True
    usable = case.plan.memory.usable_bytes
    if reach == SAME_WEIGHTS:
        return _weights(case.plan) <= usable
    devices = _devices(case) if reach == QUARTER_WEIGHTS else split_of(case.deployment).devices
    alone = case.asked.request._replace(weights=parse_weights("int4"), split=ALONE, offload=None, speculation=None)
    narrow = planned(alone) if devices else None
    if narrow is None or narrow.memory is None:
        return True
    # of files that are read as they are, 2 bits are the fewest
    least = _weights(narrow) // (2 if reach == LEAST_WEIGHTS else 1)
    return least <= usable * devices


def _weights(plan: Plan) -> int:
    ledger = plan.memory.ledger if plan.memory else ()
    return sum(int(line.amount) for line in ledger if line.item == "weights")


def _devices(case: Case) -> int:
    """All that one instance can have, 0 where nothing says how many."""
    gpus, used = case.deployment.gpus, split_of(case.deployment).devices
    if gpus is not None and gpus.amount:
        return max(used, gpus.amount * gpus.hosts)
    return max(used, case.pool.devices) if case.pool is not None and case.pool.devices else 0
