"""Plans for people: one plan as a ledger, several as a table that shows only what varies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from kvcli.hardware.accelerators import Accelerator
from kvcli.hardware.match import find
from kvcli.plan.drafter import DraftPlan
from kvcli.plan.lines import latency_on
from kvcli.plan.plan import Plan
from kvcli.plan.sharing.shared import Shared
from kvcli.plan.time.latency import Latency
from kvcli.plan.weights import WeightBytes, expected_read_bytes
from kvcli.report import budget_table, table
from kvcli.report.table import Column, Table
from kvcli.report.time_rows import time_rows
from kvcli.units import (
    exact_bytes,
    format_bandwidth,
    format_bytes,
    format_flops,
    format_parameters,
    format_seconds,
    format_tokens,
    four_digits,
)

#: Parts that many people have or rent, for a plan without a device.
WELL_KNOWN = ("rtx4090", "rtx5090", "l4", "l40s", "a100-sxm4-80", "h100-sxm5-80", "h200-sxm", "b200", "mi300x")

#: What a floor is.
FLOOR = "times that no correct execution beats"

#: A verdict in a column.
VERDICTS = {"fits": "yes", "fits_if": "maybe", "does_not_fit": "no"}

CSV_COLUMNS: tuple[tuple[str, Callable[[Plan], object]], ...] = (
    ("model", lambda plan: plan.spec.name),
    ("context_tokens", lambda plan: plan.workload.context_tokens),
    ("batch_size", lambda plan: plan.workload.batch_size),
    ("prompt_tokens", lambda plan: plan.workload.prefill_tokens),
    ("dtype_key", lambda plan: plan.cache.kv.key.name),
    ("dtype_value", lambda plan: plan.cache.kv.value.name),
    ("engine", lambda plan: plan.cache.engine),
    ("bytes_per_token", lambda plan: plan.cache.bytes_per_token),
    ("needed_bytes", lambda plan: plan.cache.needed_bytes),
    ("state_bytes", lambda plan: plan.cache.state_bytes),
    ("stored_bytes", lambda plan: plan.cache.stored_bytes),
    ("stored_bytes_per_device", lambda plan: plan.cache.stored_bytes_per_device),
    ("read_bytes_per_step", lambda plan: plan.cache.read_bytes_per_step),
    ("weights_dtype", lambda plan: plan.weights.dtype),
    ("weights_resident_bytes", lambda plan: plan.weights.resident_bytes),
    ("weights_resident_bytes_per_device", lambda plan: plan.resident_bytes_per_device),
    ("weights_read_bytes_per_step", lambda plan: plan.weights.read_bytes_per_step),
    ("total_bytes", lambda plan: plan.total_bytes),
    ("device", lambda plan: plan.device and plan.device.id),
    ("usable_bytes", lambda plan: plan.memory and plan.memory.usable_bytes),
    ("fits", lambda plan: None if plan.memory is None else str(plan.memory.fits).lower()),
    ("verdict", lambda plan: plan.memory and plan.memory.verdict),
    ("decode_step_floor_s", lambda plan: plan.latency and plan.latency.decode.seconds),
    ("prefill_floor_s", lambda plan: plan.latency and plan.latency.prefill.seconds),
    ("bound", lambda plan: plan.latency and plan.latency.decode.bound),
)


def _stored(plan: Plan) -> str:
    """Empty for the ideal engine, which stores what is needed."""
    return "" if plan.cache.engine == "ideal" else format_bytes(plan.cache.stored_bytes)


#: title, cell, and whether the column stands even where all rows agree
COLUMNS: tuple[tuple[Column, Callable[[Plan], str], bool], ...] = (
    (Column("model", right=False, key=True), lambda plan: plan.spec.name, False),
    (Column("context", key=True), lambda plan: f"{plan.workload.context_tokens:,}", False),
    (Column("batch", key=True), lambda plan: str(plan.workload.batch_size), False),
    (Column("device", right=False, key=True), lambda plan: _devices(plan), False),
    (Column("engine", right=False, key=True), lambda plan: f"{plan.cache.engine} {plan.cache.engine_version}".strip(), False),
    (Column("cache type", right=False, key=True), lambda plan: plan.cache.kv.label, False),
    (Column("weights", right=False, key=True), lambda plan: plan.weights.dtype, False),
    (Column("cache needed"), lambda plan: format_bytes(plan.cache.needed_bytes + plan.cache.state_bytes), True),
    (Column("stored"), _stored, True),
    (Column("with weights"), lambda plan: format_bytes(plan.total_bytes), True),
    (Column("fullest device"), lambda plan: format_bytes(plan.device_bytes) if plan.shared else "", True),
    (Column("fits"), lambda plan: "" if plan.memory is None else VERDICTS[plan.memory.verdict], True),
    (Column("decode floor"), lambda plan: format_seconds(plan.latency.decode.seconds) if plan.latency else "", True),
    (Column("tokens/s max"), lambda plan: _rate(plan.latency, plan.workload.batch_size) if plan.latency else "", True),
    (Column("prefill floor"), lambda plan: format_seconds(plan.latency.prefill.seconds) if plan.latency else "", True),
)


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _rate(times: Latency, batch: int) -> str:
    seconds = times.decode.seconds
    if times.tokens_per_s is not None:
        return four_digits(times.tokens_per_s)
    return four_digits(batch * times.tokens_per_step / seconds) if seconds else "unbounded"


def print_csv(plans: Sequence[Plan]) -> None:
    rows = [[cell(plan) for _, cell in CSV_COLUMNS] for plan in plans]
    table.write_csv([title for title, _ in CSV_COLUMNS], rows, sys.stdout)


def print_markdown(plans: Sequence[Plan]) -> None:
    found = plans_table(plans)
    print(f"{found.title}\n\n{table.markdown(found.columns, found.rows)}")


def _common(plans: Sequence[Plan]) -> str:
    """What all rows share, in words: it has no column."""
    facts = (
        {plan.spec.name for plan in plans},
        {f"{plan.workload.context_tokens:,} tokens" for plan in plans},
        {f"{plan.workload.batch_size:,} sequence{'s' if plan.workload.batch_size > 1 else ''}" for plan in plans},
        {f"{plan.cache.kv.label} cache" for plan in plans},
        {f"{plan.weights.dtype} weights" for plan in plans},
        {f"stored by {plan.cache.engine} {plan.cache.engine_version}".strip() for plan in plans},
        {_where(plan) for plan in plans},
    )
    return ", ".join(next(iter(fact)) for fact in facts if len(fact) == 1 and fact != {""})


def _where(plan: Plan) -> str:
    return f"on {_devices(plan)}" if plan.device else ""


def _devices(plan: Plan) -> str:
    """`4 x h100-sxm5-80`; how many, where none is named; empty for one of these."""
    count = plan.shared.split.devices if plan.shared else 1
    if plan.device is None:
        return f"{count} devices" if count > 1 else ""
    return f"{count} x {plan.device.id}" if count > 1 else plan.device.id


def print_terminal(plans: Sequence[Plan]) -> None:
    if len(plans) == 1:
        _print_one(plans[0])
        return
    plans_table(plans).print()
    for line in cause_lines(plans):
        table.say(line)


def cause_lines(plans: Sequence[Plan]) -> list[str]:
    """Of several engines: why each stores something else than is needed."""
    if len({plan.cache.engine for plan in plans}) == 1:
        return []
    facts = [
        (
            plan.spec.name,
            f"{plan.workload.context_tokens:,} tokens",
            f"batch {plan.workload.batch_size:,}",
            _devices(plan),
            plan.cache.kv.label,
        )
        for plan in plans
    ]
    varying = [at for at, column in enumerate(zip(*facts, strict=True)) if len(set(column)) > 1]
    lines = []
    for plan, fact in zip(plans, facts, strict=True):
        if plan.cache.causes:
            what = ", ".join(f"{cause} {format_bytes(size)}" for cause, size in plan.cache.causes)
            lines.append(", ".join([*(fact[at] for at in varying), plan.cache.engine]) + f": needed + {what}")
    return lines


def plans_table(plans: Sequence[Plan]) -> Table:
    """The columns that vary or always stand, without those that are empty throughout; the title says what all share."""
    kept = []
    for column, cell, always in COLUMNS:
        cells = [cell(plan) for plan in plans]
        if any(cells) and (always or len(set(cells)) > 1):
            kept.append((column, cells))
    rows = [list(row) for row in zip(*(cells for _, cells in kept), strict=True)]
    return Table([column for column, _ in kept], rows, _common(plans))


def _resident(weights: WeightBytes) -> list[tuple[str, int]]:
    name = f"weights ({weights.dtype}), in memory"
    if weights.resident_low_bytes is None:
        return [(name, weights.resident_bytes)]
    return [(f"{name}, low", weights.resident_low_bytes), ("  to high, which must fit", weights.resident_bytes)]


def _print_one(plan: Plan) -> None:
    rows = [*ledger_rows(plan), *(shared_rows(plan.shared) if plan.shared else ())]
    cells = [[name, format_bytes(amount), exact_bytes(amount)] for name, amount in rows]
    table.print_terminal([Column("", right=False), Column(""), Column("")], cells, title=plan_title(plan))
    print()
    budget_table.print_budget(plan)
    floors = floors_table(plan)
    if isinstance(floors, str):
        print(floors)
    else:
        floors.print()


def plan_title(plan: Plan) -> str:
    spec, work = plan.spec, plan.workload
    sequences = "1 sequence" if work.batch_size == 1 else f"{work.batch_size:,} sequences"
    parameters = f"{format_parameters(spec.parameters)} parameters"
    return f"{spec.name}: {parameters}, {sequences} of {format_tokens(work.context_tokens)} tokens, {plan.cache.kv.label} cache"


def full_title(plan: Plan) -> str:
    """With whose storage rule it is, and where."""
    return ", ".join(part for part in (plan_title(plan), f"stored by {budget_table.engine_name(plan)}", _where(plan)) if part)


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


def floors_table(plan: Plan) -> Table | str:
    """Of the plan's device, of well-known ones where it has none, or the sentence that says why there are none."""
    if plan.latency and plan.device:
        return _floors(plan, plan.latency, plan.device)
    if plan.device:
        return f"no floors on {plan.device.name}: no rate is known that it cannot exceed"
    return _well_known(plan)


def _floors(plan: Plan, times: Latency, device: Accelerator) -> Table:
    peak = device.peak_bound(*plan.weights.multiply_units)
    batch = plan.workload.batch_size
    ridge = f"ridge {four_digits(times.ridge)} FLOP/B" if times.ridge else "ridge unknown"
    rows = [
        [
            "decode step",
            format_seconds(times.decode.seconds),
            f"at most {_rate(times, batch)} tokens/s; {times.decode.bound} binds",
        ],
        ["prefill", format_seconds(times.prefill.seconds), f"{plan.workload.prefill_tokens:,} tokens each; {times.prefill.bound} binds"],
        [
            "decode intensity",
            f"{four_digits(times.arithmetic_intensity)} FLOP/B",
            ridge,
        ],
        *time_rows(plan),
    ]
    rates = f"{format_bandwidth(device.bandwidth_bound_bytes_per_s)}" + (f", {format_flops(peak)}/s" if peak else ", peak unknown")
    count = plan.shared.split.devices if plan.shared else 1
    title = f"floors on {f'{count} x ' if count > 1 else ''}{device.name} ({rates}{' each' if count > 1 else ''})"
    return Table([Column("", right=False), Column(""), Column("", right=False)], rows, title)


def _well_known(plan: Plan) -> Table:
    """Floors on some parts, computed from the same two ledger lines."""
    rows = []
    for part in map(find, WELL_KNOWN):
        times = latency_on(plan.spec, plan.workload, plan.weights, plan.cache, plan.shared, part, plan.draft, plan.timing.host_bytes_per_s)
        fits = "" if part.usable_bytes is None else _yes_no(plan.device_bytes <= part.usable_bytes)
        rows.append(
            [
                part.id,
                format_bytes(part.usable_bytes) if part.usable_bytes is not None else "any",
                fits,
                format_seconds(times.decode.seconds),
                _rate(times, plan.workload.batch_size),
                format_seconds(times.prefill.seconds),
            ]
        )
    devices = "device" if plan.shared is None or plan.shared.split.alone else f"{plan.shared.split.devices} of"
    titles = (devices, "usable", "fits", "decode floor", "tokens/s max", "prefill floor")
    columns = [Column(title, right=title not in (devices, "fits")) for title in titles]
    return Table(columns, rows, f"floors: {FLOOR}; fits: weights and cache alone")
