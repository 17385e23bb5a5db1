"""A measured run for people, on stderr: the numbers, what they are held against, and what they are not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcli.records import Record
from kvcli.report import table
from kvcli.report.table import Column
from kvcli.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from kvcli.measure.compare import Agreement, Compared


def print_run(record: Record) -> None:
    """One run: TTFT, TPOT, rate, memory, and the ratio to a floor or to a measured reference."""
    rows: list[list[str]] = []
    if record.ttft_s is not None:
        rate = f"{record.prefill_tokens_per_s:,.1f} tokens/s" if record.prefill_tokens_per_s else ""
        rows.append(["TTFT", format_seconds(record.ttft_s), f"{record.prompt_token_count:,} prompt tokens, {rate}"])
    if record.tpot_s is not None:
        steps = len(record.samples["decode_step_ns"][0])
        rows.append(["TPOT", format_seconds(record.tpot_s), f"{record.decode_tokens_per_s:,.1f} tokens/s, mean of {steps:,} decode steps"])
    if record.measured_over_floor is not None and record.tpot_floor_s is not None:
        mbu = f", MBU {record.mbu:.1%} of nominal" if record.mbu is not None else ""
        rows.append(["floor", format_seconds(record.tpot_floor_s), f"measured / floor {record.measured_over_floor:.2f}{mbu}"])
    if record.measured_over_reference is not None and record.reference is not None and record.tpot_s is not None:
        seconds = format_seconds(record.tpot_s / record.measured_over_reference)
        rate = format_bandwidth(record.reference["bytes_per_s"])
        what = f"measured / reference {record.measured_over_reference:.2f}; {rate} measured"
        rows.append(["reference", seconds, what])
    planned = record.plan["weights"]["resident_bytes"], record.plan["kv_cache"]["stored_bytes"]
    rows.append(["planned memory", format_bytes(sum(planned)), f"weights {format_bytes(planned[0])} + cache {format_bytes(planned[1])}"])
    peak = record.memory.get("allocated_bytes") or record.memory.get("device_bytes")
    if peak:
        where = "allocated on the device" if record.memory.get("allocated_bytes") else "resident set of the process, torch included"
        rows.append(["peak memory", format_bytes(peak), where])
    environment = record.environment
    title = f"{record.plan['model']['name']}, weights {record.weights} in {record.plan['weights']['dtype']} on {environment['device']}"
    title += f", {environment['threads']} threads" if environment["device_type"] == "cpu" else ""
    columns = [Column("", right=False), Column(""), Column("", right=False)]
    table.print_terminal(columns, rows, title=title, file=sys.stderr)


def print_comparison(results: Sequence[Compared], agreed: Sequence[Agreement]) -> None:
    """Total times by length and kind of cache, on stdout: here the table is the answer."""
    first: dict[int, Compared] = {}
    lines = []
    for result in results:
        base = first.setdefault(result.new_tokens, result)
        faster = f"{base.total_s / result.total_s:.2f}x" if result is not base else ""
        lines.append([f"{result.new_tokens:,}", result.cache, format_seconds(result.total_s), faster, f"{result.positions:,}"])
    against = f"{results[0].cache} / this" if results else ""
    columns = [Column("new tokens"), Column("cache", right=False), Column("total time"), Column(against), Column("positions computed")]
    table.print_terminal(columns, lines)
    print("one run each: times and ratios move with the load of the machine")
    for agreement in agreed:
        one, other = agreement.caches
        tokens = "same tokens" if agreement.same_tokens else "DIFFERENT tokens"
        print(
            f"{agreement.new_tokens:,} tokens, {one} against {other}: {tokens}, last logits differ by"
            f" {agreement.logit_difference:.1e} of their largest (at most {agreement.tolerance:g})"
        )
