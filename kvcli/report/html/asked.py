"""What a plan was asked for, in words."""

from __future__ import annotations

from kvcli.plan.plan import Plan
from kvcli.report.budget_table import engine_name
from kvcli.report.table import Column, Table
from kvcli.units import format_bandwidth, format_bytes, format_parameters, format_tokens


def asked_table(plan: Plan) -> Table:
    """Every input as the plan took it, those at their defaults too."""
    rows = [*_model(plan), *_workload(plan), *_storage(plan), *_devices(plan)]
    return Table([Column("input", right=False), Column("value", right=False)], [[name, value] for name, value in rows if value])


def _model(plan: Plan) -> list[tuple[str, str]]:
    spec, drafter = plan.spec, plan.draft and plan.draft.speculation.drafter
    parameters = f"{format_parameters(spec.parameters)} ({spec.parameters:,})"
    if spec.active_parameters != spec.parameters:
        parameters += f", {format_parameters(spec.active_parameters)} ({spec.active_parameters:,}) read for one token"
    return [
        ("model", f"{spec.name} ({spec.model_type})"),
        ("source", spec.source),
        ("parameters", parameters),
        ("towers, apart", f"{spec.tower_parameters:,} parameters" if spec.tower_parameters else ""),
        ("prediction blocks, apart", f"{spec.mtp_parameters:,} parameters" if spec.mtp_parameters else ""),
        ("trained positions", format_tokens(spec.max_context_tokens)),
        ("drafter", f"{drafter.name}, {drafter.source}" if drafter else ""),
        ("drafted tokens", str(plan.draft.speculation.drafted) if plan.draft else ""),
    ]


def _workload(plan: Plan) -> list[tuple[str, str]]:
    work = plan.workload
    return [
        ("sequences held together", f"{work.batch_size:,}"),
        ("context of each", f"{format_tokens(work.context_tokens)} tokens"),
        ("prompt of each", f"{format_tokens(work.prefill_tokens)} tokens"),
        ("of it not cached", f"{work.uncached_tokens:,} tokens" if work.uncached_tokens else ""),
        ("prefix all share", f"{work.shared_prefix_tokens:,} tokens" if work.shared_prefix_tokens else ""),
        ("new tokens of each", f"{work.new_tokens:,}" if work.new_tokens > 1 else ""),
        ("encoder output of each", f"{work.encoder_tokens:,} tokens" if work.encoder_tokens else ""),
    ]


def _storage(plan: Plan) -> list[tuple[str, str]]:
    cache, weights = plan.cache, plan.weights
    blocks = f", blocks of {cache.block_tokens:,} tokens" if cache.block_tokens else ""
    return [
        ("cache type", cache.kv.label),
        ("weights type", f"{weights.dtype}, bytes by {weights.basis.value}"),
        ("storage rule", ("ideal: what is needed" if cache.engine == "ideal" else engine_name(plan)) + blocks),
    ]


def _devices(plan: Plan) -> list[tuple[str, str]]:
    device, shared = plan.device, plan.shared
    found = []
    if device is not None:
        count = f"{shared.split.devices} x " if shared and shared.split.devices > 1 else ""
        found.append(("device", f"{count}{device.name} ({device.id})"))
        if device.usable_bytes is not None:
            found.append(("usable memory", f"{format_bytes(device.usable_bytes)} of each: {device.usable_basis}"))
        if device.bandwidth_bound_bytes_per_s:
            found.append(("bandwidth, at most", format_bandwidth(device.bandwidth_bound_bytes_per_s)))
        found.append(("figures of the device", device.basis))
    elif shared is None or shared.split.devices == 1:
        found.append(("device", "none named"))
    else:
        found.append(("device", f"{shared.split.devices}, none named"))
    if shared is not None:
        names = ("tensor", "pipeline", "data", "experts", "attention_data", "context")
        degrees = [f"{name.replace('_', ' ')} {degree}" for name, degree in zip(names, shared.split, strict=True) if degree > 1]
        found.append(("parallel", ", ".join(degrees)))
        offload = shared.offload
        if offload is not None:
            layers = "all layers" if offload.layers is None else f"{offload.layers} layers"
            experts = f", experts of the first {offload.moe_layers} layers on the host" if offload.moe_layers else ""
            found.append(("on the device", layers + experts))
    return found
