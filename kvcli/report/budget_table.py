"""The memory budget of a device for people: what is certain, what it may become, the verdict, the pool."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.plan.budget.host import HostBudget
from kvcli.plan.budget.memory import MemoryPlan
from kvcli.plan.budget.overheads import Need
from kvcli.plan.budget.pool import Amount, KvPool
from kvcli.plan.plan import Plan
from kvcli.report.memory_bar import print_bar
from kvcli.report.table import Column, Table, print_title, say
from kvcli.units import format_bytes

#: How items read.
NAMES = {
    "weights": "weights",
    "kv_cache": "KV cache, as stored",
    "recurrent_state": "recurrent states",
    "draft_weights": "drafter's weights",
    "draft_kv_cache": "drafter's KV cache",
    "lora_slots": "adapter slots",
    "encoder_cache": "encoder cache",
    "kv_pool_free": "rest of the pool",
    "kv_pool_short": "missing in the pool",
    "host_part": "the host's part",
    "activations": "activations",
    "logits": "logits",
    "cuda_graphs": "CUDA graphs",
    "cuda_context": "context and libraries",
    "communication": "communication buffers",
    "allocator_slack": "allocator slack",
    "engine_reserve": "left by the engine",
    "admission": "room to admit a request",
    "reserve": "reserve",
    "prompt_cache": "prompt cache",
    "offload_tier": "tier of offloaded cache",
}

#: A verdict in a column.
VERDICTS = {"fits": "yes", "fits_if": "maybe", "does_not_fit": "no"}

COLUMNS = (Column("memory", right=False), Column("at least"), Column("at most"), Column("from", right=False))


class BudgetRow(NamedTuple):
    """One line of a budget in bytes. `high_bytes` None: no more than the low end."""

    name: str
    low_bytes: int
    high_bytes: int | None = None
    source: str = ""


def verdict(memory: MemoryPlan) -> str:
    """The decision in words."""
    if memory.verdict == "fits":
        return "fits"
    if memory.verdict == "fits_if":
        return f"fits only if {memory.condition}"
    if memory.headroom_bytes >= 0:
        return "does not fit the host"
    return f"does not fit: {format_bytes(-memory.headroom_bytes)} too much"


def print_budget(plan: Plan) -> None:
    """Nothing without a device of known memory."""
    memory = plan.memory
    if memory is None or plan.device is None:
        return
    print_title(budget_title(plan))
    print_bar(plan, memory)
    print()
    _table(budget_rows(memory), "").print()
    print()
    if memory.host is not None:
        _table(host_rows(memory.host), host_title(memory.host)).print()
        print()
    pool = memory.pool
    if pool is not None and pool.buffers_bytes:
        say(buffers_said(plan, pool))
        print()
    elif pool is not None:
        pool_table(plan, pool).print()
        print()


def _table(rows: list[BudgetRow], title: str) -> Table:
    return Table(COLUMNS, [[row.name, format_bytes(row.low_bytes), _at_most(row), row.source] for row in rows], title)


def _at_most(row: BudgetRow) -> str:
    return "" if row.high_bytes is None else format_bytes(row.high_bytes)


def budget_title(plan: Plan) -> str:
    """Whose memory, and the verdict; empty without a device of known memory."""
    if plan.memory is None or plan.device is None:
        return ""
    count = plan.shared.split.devices if plan.shared else 1
    where = f"each of {count} x {plan.device.id}, the fullest" if count > 1 else plan.device.id
    return f"memory of {where}: {verdict(plan.memory)}"


def budget_rows(memory: MemoryPlan) -> list[BudgetRow]:
    """Contents, what stands beside them, and the sums."""
    rows = [BudgetRow(NAMES[line.item], int(line.amount)) for line in memory.ledger if line.amount or line.item == "kv_cache"]
    rows += [_row(each) for each in memory.needs if each.high_bytes]
    rows.append(BudgetRow("total", memory.total_bytes, _more(memory.total_bytes, memory.high_bytes)))
    rows.append(BudgetRow("usable", memory.usable_bytes, source=memory.usable_basis))
    return [*rows, BudgetRow("headroom", memory.headroom_bytes)]


def _more(low: int, high: int) -> int | None:
    return high if high > low else None


def _row(each: Need) -> BudgetRow:
    line = each.line
    source = line.source if line.source else line.basis.value
    return BudgetRow(NAMES[line.item], each.low_bytes, _more(each.low_bytes, each.high_bytes), source)


def host_title(host: HostBudget) -> str:
    words = {None: "nobody said how much there is", True: "fits", False: "does not fit"}[host.fits]
    return f"memory of the host: {words}"


def host_rows(host: HostBudget) -> list[BudgetRow]:
    rows = [_row(each) for each in host.needs]
    rows.append(BudgetRow("total", host.low_bytes, _more(host.low_bytes, host.high_bytes)))
    return rows if host.usable_bytes is None else [*rows, BudgetRow("usable", host.usable_bytes, source="--host-memory")]


def buffers_said(plan: Plan, pool: KvPool) -> str:
    """A pool of buffers of fixed size, which has no blocks to list."""
    sizes = " + ".join(format_bytes(size) for size in pool.buffers_bytes)
    slots = f"{pool.most.concurrency} slot{'s' if pool.most.concurrency > 1 else ''}"
    return f"buffers of {engine_name(plan)}, {pool.most.tokens:,} tokens in {slots}: {sizes}"


def engine_name(plan: Plan) -> str:
    return f"{plan.cache.engine} {plan.cache.engine_version}".strip()


def pool_table(plan: Plan, pool: KvPool) -> Table:
    """What the engine prints of its pool, at both ends of the overheads."""
    name, context = engine_name(plan), plan.workload.context_tokens
    pairs = [("", pool.most, pool.bytes[1])]
    if not pool.exact:
        pairs = [("overheads as low as can be", pool.most, pool.bytes[1]), ("as high as may be", pool.least, pool.bytes[0])]
    cells = [(label, *_cells(amount, size)) for label, amount, size in pairs]
    titles = ("pool", "memory", "blocks", "tokens", "in windows", "states", f"x {context:,}")
    kept = [number for number in range(len(titles)) if any(row[number] for row in cells)]
    columns = [Column(titles[number], right=number > 0) for number in kept]
    title = f"pool of {name} on each device" if plan.shared else f"pool of {name}"
    title += "" if pool.most.concurrency >= 1 else ": too small for one such sequence, so it does not start"
    return Table(columns, [[row[number] for number in kept] for row in cells], title)


def _cells(amount: Amount, size: int) -> tuple[str, ...]:
    counts = (amount.blocks, amount.tokens, amount.window_tokens, amount.state_slots)
    return (format_bytes(size), *("" if count is None else f"{count:,}" for count in counts), f"{float(amount.concurrency):.2f}")
