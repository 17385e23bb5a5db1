"""The memory budget of a device for people: what is certain, what it may become, the verdict, the pool."""

from __future__ import annotations

from kvcli.plan.budget.host import HostBudget
from kvcli.plan.budget.memory import MemoryPlan
from kvcli.plan.budget.overheads import Need
from kvcli.plan.budget.pool import Amount, KvPool
from kvcli.plan.plan import Plan
from kvcli.report import table
from kvcli.report.memory_bar import print_bar
from kvcli.report.table import Column
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


def verdict(memory: MemoryPlan) -> str:
    """The decision in words."""
    if memory.verdict == "fits":
        return "fits"
    if memory.verdict == "fits_if":
        if memory.high_bytes <= memory.usable_bytes:
            return "fits only if the host's prompts leave room"
        return f"fits only if overheads stay under {format_bytes(memory.overheads_at_most_bytes)}"
    if memory.headroom_bytes >= 0:
        return "does not fit the host"
    return f"does not fit: {format_bytes(-memory.headroom_bytes)} too much"


def print_budget(plan: Plan) -> None:
    """Nothing without a device of known memory."""
    memory, device = plan.memory, plan.device
    if memory is None or device is None:
        return
    rows = [[NAMES[line.item], format_bytes(int(line.amount)), "", ""] for line in memory.ledger if line.amount or line.item == "kv_cache"]
    rows += [_row(each) for each in memory.needs if each.high_bytes]
    rows.append(["total", format_bytes(memory.total_bytes), _more(memory.total_bytes, memory.high_bytes), ""])
    rows.append(["usable", format_bytes(memory.usable_bytes), "", memory.usable_basis])
    rows.append(["headroom", format_bytes(memory.headroom_bytes), "", ""])
    count = plan.shared.split.devices if plan.shared else 1
    where = f"each of {count} x {device.id}, the fullest" if count > 1 else device.id
    columns = [Column("memory", right=False), Column("at least"), Column("at most"), Column("from", right=False)]
    table.print_title(f"memory of {where}: {verdict(memory)}")
    print_bar(memory)
    print()
    table.print_terminal(columns, rows)
    print()
    if memory.host is not None:
        _print_host(memory.host)
    pool = memory.pool
    if pool is not None:
        _print_pool(plan, pool)


def _more(low: int, high: int) -> str:
    return format_bytes(high) if high > low else ""


def _row(each: Need) -> list[str]:
    line = each.line
    source = line.source if line.source else line.basis.value
    return [NAMES[line.item], format_bytes(each.low_bytes), _more(each.low_bytes, each.high_bytes), source]


def _print_host(host: HostBudget) -> None:
    rows = [_row(each) for each in host.needs]
    rows.append(["total", format_bytes(host.low_bytes), _more(host.low_bytes, host.high_bytes), ""])
    if host.usable_bytes is not None:
        rows.append(["usable", format_bytes(host.usable_bytes), "", "--host-memory"])
    words = {None: "nobody said how much there is", True: "fits", False: "does not fit"}[host.fits]
    columns = [Column("memory", right=False), Column("at least"), Column("at most"), Column("from", right=False)]
    table.print_terminal(columns, rows, title=f"memory of the host: {words}")
    print()


def _print_pool(plan: Plan, pool: KvPool) -> None:
    name, context = f"{plan.cache.engine} {plan.cache.engine_version}".strip(), plan.workload.context_tokens
    if pool.buffers_bytes:
        sizes = " + ".join(format_bytes(size) for size in pool.buffers_bytes)
        slots = f"{pool.most.concurrency} slot{'s' if pool.most.concurrency > 1 else ''}"
        table.say(f"buffers of {name}, {pool.most.tokens:,} tokens in {slots}: {sizes}")
        print()
        return
    pairs = [("", pool.most, pool.bytes[1])]
    if not pool.exact:
        pairs = [("overheads as low as can be", pool.most, pool.bytes[1]), ("as high as may be", pool.least, pool.bytes[0])]
    cells = [(label, *_cells(amount, size)) for label, amount, size in pairs]
    titles = ("pool", "memory", "blocks", "tokens", "in windows", "states", f"x {context:,}")
    kept = [number for number in range(len(titles)) if any(row[number] for row in cells)]
    columns = [Column(titles[number], right=number > 0) for number in kept]
    title = f"pool of {name} on each device" if plan.shared else f"pool of {name}"
    title += "" if pool.most.concurrency >= 1 else ": too small for one such sequence, so it does not start"
    table.print_terminal(columns, [[row[number] for number in kept] for row in cells], title=title)
    print()


def _cells(amount: Amount, size: int) -> tuple[str, ...]:
    counts = (amount.blocks, amount.tokens, amount.window_tokens, amount.state_slots)
    return (format_bytes(size), *("" if count is None else f"{count:,}" for count in counts), f"{float(amount.concurrency):.2f}")
