"""Plans for people: one plan as a ledger, several as a table that shows only what varies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from kvcli.plan.plan import Plan
from kvcli.report import budget_table, table
from kvcli.report.floors_table import floors_table, most_tokens_per_s
from kvcli.report.ledger_rows import ledger_rows, shared_rows
from kvcli.report.table import Column, Table
from kvcli.units import (
    exact_bytes,
    format_bytes,
    format_parameters,
    format_seconds,
    format_tokens,
    plural,
)

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
    # the budget of the fullest device, in which `usable_bytes` and `fits` are said, and how many devices share the model
    ("memory_total_bytes", lambda plan: plan.memory and plan.memory.total_bytes),
    ("memory_high_bytes", lambda plan: plan.memory and plan.memory.high_bytes),
    ("headroom_bytes", lambda plan: plan.memory and plan.memory.headroom_bytes),
    ("devices", lambda plan: plan.shared.split.devices if plan.shared else 1),
    ("tp", lambda plan: plan.shared.split.tensor if plan.shared else 1),
    ("pp", lambda plan: plan.shared.split.pipeline if plan.shared else 1),
    ("ep", lambda plan: plan.shared.split.experts if plan.shared else 1),
)


def _stored(plan: Plan) -> str:
    """Empty for the ideal engine, which stores what is needed."""
    return "" if plan.cache.engine == "ideal" else format_bytes(plan.cache.stored_bytes)


def fullest(plan: Plan) -> str:
    """What the fullest device certainly holds: of a budget its total, else weights and cache."""
    return format_bytes(plan.device_bytes if plan.memory is None else plan.memory.total_bytes)


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
    (Column("fullest device"), lambda plan: fullest(plan) if plan.shared or plan.memory else "", True),
    (Column("fits"), lambda plan: "" if plan.memory is None else budget_table.VERDICTS[plan.memory.verdict], True),
    (Column("decode floor"), lambda plan: format_seconds(plan.latency.decode.seconds) if plan.latency else "", True),
    (Column("tokens/s max"), lambda plan: most_tokens_per_s(plan.latency, plan.workload.batch_size) if plan.latency else "", True),
    (Column("prefill floor"), lambda plan: format_seconds(plan.latency.prefill.seconds) if plan.latency else "", True),
)


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
        {plural(plan.workload.context_tokens, "token") for plan in plans},
        {plural(plan.workload.batch_size, "sequence") for plan in plans},
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
            plural(plan.workload.context_tokens, "token"),
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
    sequences = plural(work.batch_size, "sequence")
    tokens = f"{format_tokens(work.context_tokens)} token{'' if work.context_tokens == 1 else 's'}"
    parameters = f"{format_parameters(spec.parameters)} parameters"
    return f"{spec.name}: {parameters}, {sequences} of {tokens}, {plan.cache.kv.label} cache"


def full_title(plan: Plan) -> str:
    """With whose storage rule it is, and where."""
    return ", ".join(part for part in (plan_title(plan), f"stored by {budget_table.engine_name(plan)}", _where(plan)) if part)
