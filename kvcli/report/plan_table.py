"""Plans for people: one plan as a ledger, several as a table that shows only what varies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from kvcli.hardware.accelerators import find
from kvcli.ledger import Line
from kvcli.plan.floors import Latency, latency
from kvcli.plan.plan import Plan, cache_line, weights_line
from kvcli.plan.weights import WeightBytes, expected_read_bytes
from kvcli.report import table
from kvcli.report.table import Column
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
    ("read_bytes_per_step", lambda plan: plan.cache.read_bytes_per_step),
    ("weights_dtype", lambda plan: plan.weights.dtype),
    ("weights_resident_bytes", lambda plan: plan.weights.resident_bytes),
    ("weights_read_bytes_per_step", lambda plan: plan.weights.read_bytes_per_step),
    ("total_bytes", lambda plan: plan.total_bytes),
    ("device", lambda plan: plan.device and plan.device.id),
    ("usable_bytes", lambda plan: plan.memory and plan.memory.usable_bytes),
    ("fits", lambda plan: None if plan.memory is None else str(plan.memory.fits).lower()),
    ("decode_step_floor_s", lambda plan: plan.latency and plan.latency.decode.seconds),
    ("prefill_floor_s", lambda plan: plan.latency and plan.latency.prefill.seconds),
    ("bound", lambda plan: plan.latency and plan.latency.decode.bound),
)


def _stored(plan: Plan) -> str:
    """Empty for the ideal engine, which stores what is needed."""
    return "" if plan.cache.engine == "ideal" else format_bytes(plan.cache.stored_bytes)


#: title, cell, and whether the column stands even where all rows agree
COLUMNS: tuple[tuple[Column, Callable[[Plan], str], bool], ...] = (
    (Column("model", right=False), lambda plan: plan.spec.name, False),
    (Column("context"), lambda plan: f"{plan.workload.context_tokens:,}", True),
    (Column("batch"), lambda plan: str(plan.workload.batch_size), False),
    (Column("device", right=False), lambda plan: plan.device.id if plan.device else "", False),
    (Column("engine", right=False), lambda plan: f"{plan.cache.engine} {plan.cache.engine_version}".strip(), False),
    (Column("cache type", right=False), lambda plan: plan.cache.kv.label, False),
    (Column("weights", right=False), lambda plan: plan.weights.dtype, False),
    (Column("cache needed"), lambda plan: format_bytes(plan.cache.needed_bytes + plan.cache.state_bytes), True),
    (Column("stored"), _stored, True),
    (Column("with weights"), lambda plan: format_bytes(plan.total_bytes), True),
    (Column("fits"), lambda plan: "" if plan.memory is None else _yes_no(plan.memory.fits), True),
    (Column("decode floor"), lambda plan: format_seconds(plan.latency.decode.seconds) if plan.latency else "", True),
    (Column("tokens/s max"), lambda plan: _rate(plan.latency, plan.workload.batch_size) if plan.latency else "", True),
    (Column("prefill floor"), lambda plan: format_seconds(plan.latency.prefill.seconds) if plan.latency else "", True),
)


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _rate(times: Latency, batch: int) -> str:
    seconds = times.decode.seconds
    return four_digits(batch / seconds) if seconds else "unbounded"


def print_csv(plans: Sequence[Plan]) -> None:
    rows = [[cell(plan) for _, cell in CSV_COLUMNS] for plan in plans]
    table.write_csv([title for title, _ in CSV_COLUMNS], rows, sys.stdout)


def print_markdown(plans: Sequence[Plan]) -> None:
    print(f"{_common(plans)}\n\n{table.markdown(*_columns(plans))}")


def _common(plans: Sequence[Plan]) -> str:
    """What all rows share, in words: it has no column."""
    facts = (
        {plan.spec.name for plan in plans},
        {f"{plan.workload.batch_size:,} sequence{'s' if plan.workload.batch_size > 1 else ''}" for plan in plans},
        {f"{plan.cache.kv.label} cache" for plan in plans},
        {f"{plan.weights.dtype} weights" for plan in plans},
        {f"stored by {plan.cache.engine} {plan.cache.engine_version}".strip() for plan in plans},
        {f"on {plan.device.id}" if plan.device else "" for plan in plans},
    )
    return ", ".join(next(iter(fact)) for fact in facts if len(fact) == 1 and fact != {""})


def print_terminal(plans: Sequence[Plan]) -> None:
    if len(plans) == 1:
        _print_one(plans[0])
        return
    table.print_terminal(*_columns(plans), title=_common(plans))
    if len({plan.cache.engine for plan in plans}) > 1:
        _print_causes(plans)


def _print_causes(plans: Sequence[Plan]) -> None:
    """Why each engine stores something else than is needed."""
    for plan in plans:
        cache = plan.cache
        if cache.causes:
            what = ", ".join(f"{cause} {format_bytes(size)}" for cause, size in cache.causes)
            print(f"{plan.spec.name}, {plan.workload.context_tokens:,} tokens, {cache.engine}: needed + {what}")


def _columns(plans: Sequence[Plan]) -> tuple[list[Column], list[list[str]]]:
    """The columns that vary or always stand, without those that are empty throughout."""
    kept = []
    for column, cell, always in COLUMNS:
        cells = [cell(plan) for plan in plans]
        if any(cells) and (always or len(set(cells)) > 1):
            kept.append((column, cells))
    return [column for column, _ in kept], [list(row) for row in zip(*(cells for _, cells in kept), strict=True)]


def _resident(weights: WeightBytes) -> list[tuple[str, int]]:
    name = f"weights ({weights.dtype}), in memory"
    if weights.resident_low_bytes is None:
        return [(name, weights.resident_bytes)]
    return [(f"{name}, low", weights.resident_low_bytes), ("  to high, which must fit", weights.resident_bytes)]


def _print_one(plan: Plan) -> None:
    spec, cache, weights, work = plan.spec, plan.cache, plan.weights, plan.workload
    expected = expected_read_bytes(spec, weights, work.batch_size)
    sequences = "1 sequence" if work.batch_size == 1 else f"{work.batch_size:,} sequences"
    parameters = f"{format_parameters(spec.parameters)} parameters"
    title = f"{spec.name}: {parameters}, {sequences} of {format_tokens(work.context_tokens)} tokens, {cache.kv.label} cache"
    stored = f"stored by {cache.engine}" + (f" {cache.engine_version}" if cache.engine_version else "")
    rows = [
        ("KV cache, newest token of one", cache.bytes_per_token),
        ("  needed", cache.needed_bytes),
        *([("  constant state", cache.state_bytes)] if cache.state_bytes else []),
        (f"  {stored}", cache.stored_bytes),
        *((f"    {cause}", size) for cause, size in cache.causes),
        ("  read by each step", cache.read_bytes_per_step),
        *_resident(weights),
        ("  read by each step" if expected is None else "  read by each step, at least", weights.read_bytes_per_step),
        *([("  estimate with even routing", expected)] if expected is not None and work.batch_size > 1 else []),
        ("total: weights + stored cache", plan.total_bytes),
    ]
    if plan.memory:
        rows += [("usable on the device", plan.memory.usable_bytes), ("headroom", plan.memory.headroom_bytes)]
    cells = [[name, format_bytes(amount), exact_bytes(amount)] for name, amount in rows]
    table.print_terminal([Column("", right=False), Column(""), Column("")], cells, title=title)
    print()
    if plan.latency and plan.device:
        _print_floors(plan, plan.latency)
    else:
        _print_well_known(plan)


def _print_floors(plan: Plan, times: Latency) -> None:
    device = plan.device
    if device is None:
        return
    peak = device.peak(*plan.weights.multiply_units)
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
    ]
    rates = f"{format_bandwidth(device.bandwidth_bound_bytes_per_s)}" + (f", {format_flops(peak)}/s" if peak else ", peak unknown")
    verdict = "" if plan.memory is None else ("; weights and cache fit" if plan.memory.fits else "; weights and cache do not fit")
    title = f"floors on {device.name} ({rates}){verdict}"
    table.print_terminal([Column("", right=False), Column(""), Column("", right=False)], rows, title=title)


def _print_well_known(plan: Plan) -> None:
    """Floors on some parts, computed from the same two ledger lines."""
    read = weights_line(plan.spec, plan.weights, "weights_read")
    kv_read: Line = cache_line(plan.cache, "kv_read", plan.cache.read_bytes_per_step)
    rows = []
    for part in map(find, WELL_KNOWN):
        times = latency(plan.spec, plan.workload, read, kv_read, part, plan.weights.multiply_units)
        fits = "" if part.usable_bytes is None else _yes_no(plan.total_bytes <= part.usable_bytes)
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
    titles = ("device", "usable", "fits", "decode floor", "tokens/s max", "prefill floor")
    columns = [Column(title, right=title not in ("device", "fits")) for title in titles]
    table.print_terminal(columns, rows, title="floors: times that no correct execution beats; fits: weights and cache alone")
