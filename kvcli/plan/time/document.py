"""What the JSON of a plan says of time beside its floors' ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcli.plan.time.crossings import compute_bound_batch, kv_passes_weights_context
from kvcli.plan.time.estimates import estimates
from kvcli.plan.time.limits import cost_of, growth_of, held_against, ttft_floor_s

if TYPE_CHECKING:
    from kvcli.plan.plan import Plan


def latency_fields(plan: Plan) -> dict[str, Any]:
    """Floors over the generation, crossings, what binds, estimates; for a plan with a device."""
    if plan.latency is None or plan.latency.steps is None:
        return {}
    grown, steps = growth_of(plan), plan.latency.steps
    return {
        "tpot_first_s": grown.first_s,
        "tpot_last_s": grown.last_s,
        "tpot_mean_s": grown.mean_s,
        "tpot_floor_s": grown.mean_s,
        "ttft_floor_s": ttft_floor_s(plan),
        "tokens_per_step_at_most": plan.latency.tokens_per_step,
        "compute_bound_batch": compute_bound_batch(steps),
        "kv_passes_weights_context": kv_passes_weights_context(steps),
        "binds": binds(plan),
        "estimates": [each._asdict() for each in estimates(plan)],
    }


def binds(plan: Plan) -> list[dict[str, Any]]:
    """What bounds each phase, whether memory does, and a scheduler's limits against what the workload wants of one step."""
    found: list[dict[str, Any]] = []
    work, times, timing = plan.workload, plan.latency, plan.timing
    if plan.memory is not None:
        found.append({"limit": "device_memory", "asked": plan.memory.total_bytes, "allowed": plan.memory.usable_bytes})
    per_step = times.tokens_per_step if times else 1
    prompt = work.uncached_tokens or work.prefill_tokens
    wants = (
        ("max_sequences", work.batch_size, timing.max_sequences),
        ("max_batched_tokens", max(work.batch_size * per_step, prompt), timing.max_batched_tokens),
    )
    found += [{"limit": name, "asked": asked, "allowed": most} for name, asked, most in wants if most is not None]
    for each in found:
        each["binds"] = each["asked"] > each["allowed"]
    if times is not None:
        found += [{"limit": f"decode_{times.decode.bound}", "binds": True}, {"limit": f"prefill_{times.prefill.bound}", "binds": True}]
    return found


def slo_document(plan: Plan) -> dict[str, Any] | None:
    if plan.timing.slo is None or plan.latency is None:
        return None
    held = held_against(plan, plan.timing.slo)
    said = {True: "refuted", False: "not refuted"}
    slo = held.slo
    return {
        "name": slo.name,
        "ttft_s": slo.ttft_s,
        "tpot_s": slo.tpot_s,
        "ttft": said[held.ttft_refuted],
        "tpot": said[held.tpot_refuted],
        "source": slo.source,
    }


def cost_document(plan: Plan) -> dict[str, Any] | None:
    """Lower bounds, in the currency of the price, which is of all devices together."""
    if plan.timing.price_per_hour is None or plan.latency is None:
        return None
    cost = cost_of(plan, plan.timing.price_per_hour)
    return {
        "price_per_hour": cost.price_per_hour,
        "output_per_million_at_least": cost.output_per_million,
        "prompt_per_million_at_least": cost.prompt_per_million,
        "basis": "floors; the price is of all devices, by the user",
    }
