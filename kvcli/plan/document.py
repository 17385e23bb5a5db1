"""The plan as the JSON that outside checks depend on (`plan --json`, and inside every record)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kvcli import __version__
from kvcli.errors import KvcliError
from kvcli.ledger import Basis, Line, Unit
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.weights import expected_read_bytes

if TYPE_CHECKING:
    from kvcli.plan.answers.requirements import Met
    from kvcli.plan.answers.search import Solved
    from kvcli.plan.budget.host import HostBudget
    from kvcli.plan.budget.memory import MemoryPlan
    from kvcli.plan.budget.overheads import Need
    from kvcli.plan.budget.pool import Amount, KvPool
    from kvcli.plan.drafter import DraftPlan
    from kvcli.plan.sharing.shared import Place, Shared
    from kvcli.plan.time.latency import Latency

SCHEMA_VERSION = 1


def plans_document(plans: Sequence[Plan], failed: Sequence[FailedPoint] = ()) -> dict[str, Any]:
    """One plan as itself, several under `plans`; points of a sweep that cannot be planned under `failed`."""
    if len(plans) == 1 and not failed:
        return plan_document(plans[0])
    found: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "plans": [plan_document(plan) for plan in plans]}
    return {**found, "failed": [failed_point(each) for each in failed]} if failed else found


class FailedPoint(Protocol):
    """A request that cannot be planned, and why."""

    @property
    def request(self) -> PlanRequest: ...

    @property
    def error(self) -> KvcliError: ...


def failed_point(point: FailedPoint) -> dict[str, Any]:
    request, error = point.request, point.error
    return {
        "model": request.spec.name,
        "context_tokens": request.workload.context_tokens,
        "batch_size": request.workload.batch_size,
        "device": request.device and request.device.id,
        "tp": request.split.tensor,
        "kv_dtype": request.kv and request.kv.label,
        "error": {"code": error.code, "message": error.message, "hint": error.hint},
    }


def plan_document(plan: Plan, requirements: Sequence[Met] = (), solved: Solved | None = None) -> dict[str, Any]:
    spec, cache, weights, device = plan.spec, plan.cache, plan.weights, plan.device
    return {
        "schema_version": SCHEMA_VERSION,
        "kvcli_version": __version__,
        "model": {
            "name": spec.name,
            "source": spec.source,
            "model_type": spec.model_type,
            "max_context_tokens": spec.max_context_tokens,
            "parameters": spec.parameters,
            "active_parameters": spec.active_parameters,
            "tower_parameters": spec.tower_parameters,
            "mtp_parameters": spec.mtp_parameters,
        },
        "workload": {
            "context_tokens": plan.workload.context_tokens,
            "batch_size": plan.workload.batch_size,
            "prompt_tokens": plan.workload.prefill_tokens,
            "new_tokens": plan.workload.new_tokens,
            "shared_prefix_tokens": plan.workload.shared_prefix_tokens,
            "uncached_tokens": plan.workload.uncached_tokens or plan.workload.prefill_tokens,
        },
        "kv_cache": {
            "dtype_key": cache.kv.key.name,
            "dtype_value": cache.kv.value.name,
            "bytes_per_token": cache.bytes_per_token,
            "needed_bytes": cache.needed_bytes,
            "state_bytes": cache.state_bytes,
            "read_bytes_per_step": cache.read_bytes_per_step,
            "written_bytes_per_step": cache.written_bytes_per_step,
            "layers": [
                {
                    "kind": row.kind,
                    "count": row.count,
                    "window_tokens": row.window_tokens,
                    "bytes_per_token": row.bytes_per_token,
                    "needed_bytes": row.needed_bytes,
                    "state_bytes": row.state_bytes,
                    "stored_bytes": row.stored_bytes,
                }
                for row in cache.rows
            ],
            "engine": cache.engine,
            "engine_version": cache.engine_version or None,
            "stored_bytes": cache.stored_bytes,
            "stored_bytes_per_device": cache.stored_bytes_per_device,
            "blocks": cache.blocks,
            "block_tokens": cache.block_tokens,
            "stored_minus_needed": [{"cause": cause, "bytes": size} for cause, size in cache.causes],
        },
        "weights": {
            "dtype": weights.dtype,
            "resident_bytes": weights.resident_bytes,
            **({} if weights.resident_low_bytes is None else {"resident_low_bytes": weights.resident_low_bytes, "range": True}),
            "resident_bytes_per_device": plan.resident_bytes_per_device,
            "read_bytes_per_step": weights.read_bytes_per_step,
            "basis": weights.basis.value,
            # an estimate, None without routed experts
            "expected_read_bytes_per_step": expected_read_bytes(spec, weights, plan.workload.batch_size),
        },
        "device": device
        and {
            "name": device.id,
            "count": plan.shared.split.devices if plan.shared else 1,
            "memory_bytes": device.memory_bytes,
            "memory_bandwidth_bytes_per_s": device.bandwidth_bytes_per_s or None,
            "basis": device.basis,
        },
        "speculative": plan.draft and _speculative(plan.draft),
        "parallel": plan.shared and _parallel(plan.shared),
        "memory": plan.memory and _memory(plan.memory, weights.resident_low_bytes if plan.shared is None else None),
        "latency": plan.latency and {**_latency(plan.latency, plan.workload.batch_size), **_time(plan, "latency_fields")},
        "slo": _time(plan, "slo_document"),
        "cost": _time(plan, "cost_document"),
        "solve": solved and _solved(solved),
        "requirements": [{"expr": met.requirement.text, "value": met.value, "met": met.met, "said": met.said} for met in requirements],
        "warnings": [{"code": notice.code, "message": notice.message} for notice in plan.notices],
    }


#: how an answer is called, by what was solved for
_SOLVED = {
    "ctx": "max_context_tokens",
    "batch": "max_batch_size",
    "devices": "min_devices",
    "tp": "min_tp",
    "kv-dtype": "kv_dtype",
    "device": "devices",
    "ngl": "max_ngl",
    "n-cpu-moe": "min_n_cpu_moe",
}


def _solved(solved: Solved) -> dict[str, Any]:
    value = list(solved.value) if isinstance(solved.value, tuple) else solved.value
    split = {"tp": solved.split.tensor, "pp": solved.split.pipeline} if solved.split else {}
    return {_SOLVED[solved.unknown]: value, **split, "binding": solved.binding, "reason": solved.reason}


def _speculative(draft: DraftPlan) -> dict[str, Any]:
    """What drafts tokens, and what that adds; null bytes of a drafter that looks them up in the text are 0."""
    drafter, drafted = draft.speculation.drafter, draft.speculation.drafted
    kind = "ngram" if drafter is None else "prediction_blocks" if draft.speculation.own_blocks else "model"
    return {
        "drafted_tokens": drafted,
        "kind": kind,
        "drafter": drafter and drafter.name,
        "parameters": drafter and drafter.parameters,
        "weights_dtype": draft.weights and draft.weights.dtype,
        "weights_bytes": draft.weights_bytes,
        "kv_cache_dtype": draft.kv and draft.kv.label,
        "kv_cache_bytes": draft.stored_bytes,
        "copies_bytes": draft.copies_bytes,
        "read_bytes_per_draft": draft.read_bytes_per_draft,
        "read_bytes_per_step": drafted * draft.read_bytes_per_draft,
        "tokens_per_step_at_most": 1 + drafted,
    }


def _parallel(shared: Shared) -> dict[str, Any]:
    """What each kind of device holds, the host, and what more than one of them holds."""
    split, offload = shared.split, shared.offload
    waste = [("weights", cause, size) for cause, size in shared.weight_copies]
    waste += [("kv_cache", f"copies of {kind}", size) for kind, size in shared.cache_copies]
    return {
        "devices": split.devices,
        "tp": split.tensor,
        "pp": split.pipeline,
        "dp": split.data,
        "ep": split.experts,
        "dp_attention": split.attention_data,
        "dcp": split.context,
        "ngl": offload and offload.layers,
        "n_cpu_moe": offload and offload.moe_layers,
        "ranks": [_place(each) for each in shared.on_devices],
        "host": _place(shared.host) if shared.host else None,
        "waste": [{"item": item, "cause": cause, "bytes": size} for item, cause, size in waste],
        "waste_bytes": sum(size for _, _, size in waste),
    }


def _place(place: Place) -> dict[str, Any]:
    return {
        "devices": place.devices,
        "stage": place.stage,
        "layers": place.layers,
        "sequences": place.sequences,
        "weights_bytes": place.weights_bytes,
        "kv_cache_bytes": place.stored_bytes,
        "draft_weights_bytes": place.draft.weights,
        "draft_kv_cache_bytes": place.draft.stored,
        "total_bytes": place.total_bytes,
        "weights_read_bytes_per_step": place.weights_read_bytes,
        "kv_cache_read_bytes_per_step": place.cache_read_bytes,
    }


def _memory(memory: MemoryPlan, weights_low_bytes: int | None) -> dict[str, Any]:
    """Amounts are those that must fit, and sum to the total; `low_bytes` is less where weights are a range."""
    contents = [
        {
            "item": line.item,
            "bytes": line.amount,
            "low_bytes": line.amount if weights_low_bytes is None or line.item != "weights" else weights_low_bytes,
            "high_bytes": line.amount,
            "basis": _basis(line),
            "formula": line.formula.call(),
        }
        for line in memory.ledger
    ]
    return {
        "lines": contents + [_need(each) for each in memory.needs],
        "total_bytes": memory.total_bytes,
        "high_bytes": memory.high_bytes,
        "usable_bytes": memory.usable_bytes,
        "usable_basis": memory.usable_basis,
        "headroom_bytes": memory.headroom_bytes,
        "fits": memory.fits,
        "verdict": memory.verdict,
        "overheads_at_most_bytes": memory.overheads_at_most_bytes,
        "kv_pool": _pool(memory.pool),
        "host": memory.host and _host(memory.host),
    }


def _need(each: Need) -> dict[str, Any]:
    line = each.line
    amounts = {"item": line.item, "bytes": line.amount, "low_bytes": line.amount, "high_bytes": each.high_bytes}
    basis = f"{line.basis.value} ({line.source})" if line.source else line.basis.value
    return {**amounts, "basis": basis, "formula": line.formula.call()}


def _pool(pool: KvPool | None) -> dict[str, Any] | None:
    """At most, and `at_least` where overheads are at their high ends; both agree where `exact` says so."""
    if pool is None:
        return None
    rest = {"bytes": pool.bytes[1], "exact": pool.exact, "buffers_bytes": list(pool.buffers_bytes) or None}
    return {**_amount(pool.most), **rest, "at_least": {**_amount(pool.least), "bytes": pool.bytes[0]}}


def _amount(amount: Amount) -> dict[str, Any]:
    return {
        "blocks": amount.blocks,
        "tokens": amount.tokens,
        "max_concurrency": float(amount.concurrency),
        "window_tokens": amount.window_tokens,
        "state_slots": amount.state_slots,
    }


def _host(host: HostBudget) -> dict[str, Any]:
    amounts = {"total_bytes": host.low_bytes, "high_bytes": host.high_bytes, "usable_bytes": host.usable_bytes}
    return {"lines": [_need(each) for each in host.needs], **amounts, "fits": host.fits}


def _latency(times: Latency, batch: int) -> dict[str, Any]:
    return {
        "decode_step_floor_s": times.decode.seconds,
        "decode_tokens_per_s_ceiling": _ceiling(times, batch),
        "prefill_floor_s": times.prefill.seconds,
        "bound": times.decode.bound,
        "prefill_bound": times.prefill.bound,
        "arithmetic_intensity": times.arithmetic_intensity,
        "ridge": times.ridge,
        "ridge_of_bounds": times.ridge_of_bounds,
        "lines": [
            {"item": line.item, "amount": line.amount, "unit": line.unit.value, "basis": _basis(line), "formula": line.formula.call()}
            for line in times.ledger
        ],
    }


def _ceiling(times: Latency, batch: int) -> float | None:
    rate = times.tokens_per_s
    if rate is None and times.decode.seconds:
        rate = batch * times.tokens_per_step / times.decode.seconds
    return None if rate is None or rate == float("inf") else rate


def _time(plan: Plan, part: str) -> Any:
    if plan.latency is None:
        return None
    from kvcli.plan.time import document  # only a device pays for it

    return getattr(document, part)(plan)


def _basis(line: Line) -> str:
    """`constant` and engine rules say whose; rates from a table are constants even where the line is a formula."""
    named = line.basis in (Basis.CONSTANT, Basis.ENGINE_RULE) or (line.source and line.unit is Unit.SECONDS)
    return f"{line.basis.value} ({line.source})" if named and line.source else line.basis.value
