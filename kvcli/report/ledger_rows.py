"""Rows of a plan's bytes for people: the cache, the weights, a drafter, and what each device of several holds."""

from __future__ import annotations

from kvcli.plan.drafter import DraftPlan
from kvcli.plan.plan import Plan
from kvcli.plan.sharing.shared import Shared
from kvcli.plan.weights import WeightBytes, expected_read_bytes
from kvcli.report import budget_table


def ledger_rows(plan: Plan) -> list[tuple[str, int]]:
    """The cache, the weights, a drafter and their total, in bytes; what belongs to the row above is indented."""
    cache, weights, batch = plan.cache, plan.weights, plan.workload.batch_size
    expected = expected_read_bytes(plan.spec, weights, batch)
    return [
        ("KV cache, newest token of one", cache.bytes_per_token),
        ("  needed", cache.needed_bytes),
        *([("  constant state", cache.state_bytes)] if cache.state_bytes else []),
        (f"  stored by {budget_table.engine_name(plan)}", cache.stored_bytes),
        *((f"    {cause}", size) for cause, size in cache.causes),
        ("  read by each step", cache.read_bytes_per_step),
        *_resident(weights),
        ("  read by each step" if expected is None else "  read by each step, at least", weights.read_bytes_per_step),
        *([("  estimate with even routing", expected)] if expected is not None and batch > 1 else []),
        *(draft_rows(plan.draft) if plan.draft else ()),
        ("total: weights + stored cache", plan.total_bytes),
    ]


def draft_rows(draft: DraftPlan) -> list[tuple[str, int]]:
    """What a drafter adds."""
    drafter, drafted = draft.speculation.drafter, draft.speculation.drafted
    if drafter is None:
        return []
    return [
        (f"drafter ({drafter.name}), {drafted} a step", draft.total_bytes),
        (f"  weights ({draft.weights.dtype})" if draft.weights else "  weights", draft.weights_bytes),
        ("  stored cache", draft.stored_bytes),
        ("  read for each token drafted", draft.read_bytes_per_draft),
    ]


def shared_rows(shared: Shared) -> list[tuple[str, int]]:
    """What one device of each stage holds, the host, and what is held more than once."""
    rows = []
    for each in shared.on_devices:
        what = f"each of {each.devices} devices" if each.devices > 1 else "the device"
        what += f", stage {each.stage + 1} with {each.layers} layers" if shared.split.pipeline > 1 else ""
        what += f", {each.layers} layers" if shared.offload and shared.split.pipeline == 1 else ""
        what += f", {each.sequences} sequences" if len({other.sequences for other in shared.on_devices}) > 1 else ""
        rows += [(what, each.total_bytes), ("  weights", each.weights_bytes), ("  stored cache", each.stored_bytes)]
        if each.draft.weights:
            rows += [("  weights of the drafter", each.draft.weights), ("  its cache", each.draft.stored)]
    host = shared.host
    if host is not None:
        rows += [(f"the host, {host.layers} layers and tables", host.total_bytes), ("  weights", host.weights_bytes)]
        rows += [("  stored cache", host.stored_bytes)] if host.stored_bytes else []
    waste = [*shared.weight_copies, *((f"cache of {kind.replace('_', ' ')}", size) for kind, size in shared.cache_copies)]
    if waste:
        rows.append(("held more than once", sum(size for _, size in waste)))
        rows += [(f"  {cause}", size) for cause, size in waste]
    return rows


def _resident(weights: WeightBytes) -> list[tuple[str, int]]:
    name = f"weights ({weights.dtype}), in memory"
    if weights.resident_low_bytes is None:
        return [(name, weights.resident_bytes)]
    return [(f"{name}, low", weights.resident_low_bytes), ("  to high, which must fit", weights.resident_bytes)]
