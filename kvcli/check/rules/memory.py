"""KV001, KV002, KV007, KV011: whether it fits, what stays free, how many sequences, and the engine's share of memory."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvcli.check import fixes
from kvcli.check.case import Case, passed, planned, skipped
from kvcli.check.doubts import doubt
from kvcli.check.kept import version_of
from kvcli.check.neighbours import too_much
from kvcli.check.pool import held_in, pool_tokens, too_small
from kvcli.check.requests import flag, may_take_whole, number
from kvcli.check.rules.admission import beside_others, shares_beside, size_said, small_pool, tgi_refuses
from kvcli.check.rules.crowd import to_hold_all
from kvcli.check.rules.pool import short_pool
from kvcli.check.verdict import Outcome
from kvcli.check.words import are, spelled
from kvcli.plan.answers.solve import at_batch, at_context
from kvcli.plan.budget.memory import MemoryPlan
from kvcli.plan.plan import Plan
from kvcli.units import format_bytes, plural

#: Engines that do not start unless the cache of a request of the longest length has room; others admit shorter requests.
REFUSE_TO_START = ("vllm", "llama.cpp")
#: The first version of vLLM of which every engine compares, at its start, what is free with the share it takes (`init_device` of V1's
#: worker). V0, which went with 0.11, counts what is left once the weights are loaded, and starts.
VLLM_CHECKS_FREE = (0, 11)
#: Engines that put on the host what does not fit.
SPILL = ("ollama",)


def usable(case: Case) -> str:
    """Why nothing can be said of memory, empty where something can."""
    if case.unknown or (case.plan is not None and case.plan.memory is not None):
        return case.unknown
    return f"{case.part.id if case.part else 'the device'} is sold with different amounts of memory"


def does_not_fit(case: Case) -> Outcome:
    """KV001. Fails only where even the low end of the budget does not hold what the engine must hold to start."""
    why, asked, plan = usable(case), case.asked, case.plan
    if why or asked is None or plan is None or plan.memory is None or case.part is None:
        return skipped("KV001", case, why)
    memory, tokens = plan.memory, plan.workload.context_tokens
    place = case.place("context_tokens")
    what = f"the weights and {_held(case, plural(tokens, 'token'))}"
    spared = number(case.deployment, "weights_offload_bytes") or 0
    if memory.verdict == "fits" and may_take_whole(case.deployment, tokens) and asked.context_tokens:
        whole = case.changed(max_batched_tokens=tokens).plan
        if whole is None or not fixes.surely_fits(whole):
            message = f"{what} fit {_device(case)} only if the prompt is taken in chunks, which not every vllm of this version does unasked"
            return Outcome("KV001", "warning", message, place, equation(memory), "--enable-chunked-prefill")
    if memory.fits and (crowded := too_much(case)) is not None:
        return beside_others(case, crowded, any(doubt("KV001", each) for each in (case.deployment, *case.deployment.beside)))
    if memory.fits and too_small(case):
        return small_pool(case, tokens)
    if memory.verdict == "fits":
        return passed("KV001", case, f"{what} fit {_device(case)}", equation(memory))
    shortest = case.changed(context_tokens=1).plan
    starts_short = shortest is not None and fixes.may_fit(shortest)
    if not memory.fits:
        message = f"{what} need {format_bytes(memory.total_bytes)} at least, and {_device(case)} has {format_bytes(memory.usable_bytes)}"
        allowed, pool = _allowed(case, memory, spared, starts_short, asked.context_tokens is None), short_pool(case, memory)
        if pool is not None:
            said = f"{pool.message}: {allowed}" if allowed else pool.message
            return Outcome("KV001", "warning" if allowed else "error", said, pool.place, pool.formula, pool.fix)
        if allowed:
            return Outcome("KV001", "warning", f"{message}: {allowed}", place, equation(memory), fixes.to_fit(case))
        fix = fixes.to_fit(case)
        nothing = "" if fix else f"; no change that kvcli tries passes {_where(case)}"
        return Outcome("KV001", "error", f"{message}: {_short(memory)} too little{nothing}", place, equation(memory), fix)
    room = format_bytes(max(0, memory.overheads_at_most_bytes))
    message = f"{what} fit {_device(case)} only if what cannot be derived (activations, graphs, buffers) stays under {room}"
    return Outcome("KV001", "warning", message, place, equation(memory), fixes.to_fit(case))


def _held(case: Case, length: str) -> str:
    """What must have room at the start."""
    slots = number(case.deployment, "slots") or 1 if case.deployment.engine in ("llama.cpp", "ollama") else 1
    if slots == 1:
        return f"one request of {length}"
    shared = flag(case.deployment, "kv_unified")
    return f"one cache of {length} that {slots:,} slots share" if shared else f"{slots:,} slots of {length}"


def _allowed(case: Case, memory: MemoryPlan, spared: int, starts_short: bool, auto: bool) -> str:
    """What lets the engine start all the same, or might; empty where nothing does."""
    engine = case.deployment.engine
    if spared >= -memory.headroom_bytes and spared:
        return f"it starts because {format_bytes(spared)} of weights stay in the host's memory"
    layers = case.setting("gpu_layers")
    if engine in SPILL or (engine == "llama.cpp" and layers is not None and layers.value == "auto"):
        return "the engine keeps in the host's memory what does not fit, and slows down"
    if auto and starts_short:
        longest = fixes.longest_context(case, fixes.may_fit)
        return f"the engine lowers the length by itself, to {plural(longest, 'token')} at most"
    if engine not in REFUSE_TO_START and starts_short and not tgi_refuses(case):
        longest = fixes.longest_context(case, fixes.may_fit)
        return f"requests of more than {plural(longest, 'token')} are refused or never finish"
    return ""


def _short(memory: MemoryPlan) -> str:
    return format_bytes(-memory.headroom_bytes)


def _where(case: Case) -> str:
    """Where a change must pass."""
    if case.pool is not None and case.pool.devices is not None:
        return f"in the pool {case.pool.name}, which has {plural(case.pool.devices, 'device')}"
    return f"on {case.part.id}" if case.part else "there"


def _device(case: Case) -> str:
    if case.part is None or case.asked is None:
        return "the device"
    count = case.asked.request.split.devices
    return case.part.id if count == 1 else f"each of {count} x {case.part.id}"


def equation(memory: MemoryPlan) -> str:
    """All lines at their low ends, which sum to the total, against what is usable."""
    lines = [*memory.ledger, *(need.line for need in memory.needs)]
    terms = " + ".join(f"{line.item} {int(line.amount):,}" for line in lines if line.amount)
    sign = "<=" if memory.total_bytes <= memory.usable_bytes else ">"
    total = f"{memory.total_bytes:,} B"
    own = sum(int(line.amount) for line in lines)
    more = f" + missing {memory.total_bytes - own:,}" if memory.total_bytes != own else ""
    return f"{terms}{more} = {total} {sign} {memory.usable_bytes:,} B usable"


def loaded(case: Case) -> Plan | None:
    """All users at their p99 context at once, or one request of the longest length where nothing is said of users; of one instance."""
    asked = case.asked
    if asked is None:
        return None
    request = asked.request
    if case.load.context_p99:
        request = at_context(request, min(case.load.context_p99, request.workload.context_tokens))
    if case.load.users:
        request = at_batch(request, -(-case.load.users // max(1, case.deployment.replicas)))
    return planned(request)


def _used(memory: MemoryPlan, high: bool) -> int:
    """Less what an engine only leaves free."""
    kept = sum(need.low_bytes for need in memory.needs if need.line.item == "engine_reserve")
    return (memory.high_bytes if high else memory.total_bytes) - kept


def headroom(case: Case) -> list[Outcome]:
    """KV002. Fails where one request already leaves too little, warns where all users at once may."""
    limits = [each for name in ("memory", "headroom", "headroom_bytes") if (each := case.limit(name))]
    why = usable(case)
    if not limits:
        return [skipped("KV002", case, "no limit on memory is set")]
    if why or case.plan is None or case.plan.memory is None:
        return [skipped("KV002", case, why)]
    found: list[Outcome] = []
    one = case.plan.memory
    if not one.fits:
        return [skipped("KV002", case, "one request does not fit at all, as KV001 says")]
    for name in ("memory", "headroom", "headroom_bytes"):
        limit = case.limit(name)
        if limit is None:
            continue
        share = 1 - limit.value if name == "headroom" else limit.value
        most = one.usable_bytes - int(limit.value) if name == "headroom_bytes" else int(one.usable_bytes * share)
        all_users = loaded(case)
        least = _used(one, high=False)
        plans = [(least, "error", "one request takes"), *_loads(all_users)]
        for used, level, whose in plans:
            if used > one.usable_bytes and level == "warning":
                break  # they are not held at once, which KV007 says: the engine lets the others wait
            if used > most:
                message = f"{whose} {format_bytes(used)} of {format_bytes(one.usable_bytes)}, more than {limit.said} allows"
                formula = f"used {used:,} B > allowed {most:,} B of {one.usable_bytes:,} B usable"
                if level == "error":
                    fix = fixes.to_pass(case, _under(most))
                    found.append(Outcome("KV002", "error", message, limit.place, formula, fix))
                else:
                    found.append(Outcome("KV002", "warning", message, limit.place, formula, fixes.to_hold(case, _holds_under(most))))
                break
    return found or [passed("KV002", case)]


def _under(most: int) -> fixes.Passes:
    return lambda plan: plan.memory is not None and _used(plan.memory, high=False) <= most


def _holds_under(most: int) -> Callable[[Case], bool]:
    """All users at once, with overheads as high as they may be."""

    def holds(case: Case) -> bool:
        plan = loaded(case)
        return plan is not None and plan.memory is not None and _used(plan.memory, high=True) <= most

    return holds


def _loads(plan: Plan | None) -> list[tuple[int, str, str]]:
    if plan is None or plan.memory is None:
        return []
    work = plan.workload
    many = work.batch_size > 1
    sequences = f"{plural(work.batch_size, 'sequence')} of {plural(work.context_tokens, 'token')}"
    take = "together take" if many else "takes"
    return [
        (_used(plan.memory, high=False), "warning", f"{sequences} {take}"),
        (_used(plan.memory, high=True), "warning", f"{sequences} {take}, with overheads as high as they may be,"),
    ]


def sequences_held(case: Case) -> tuple[int, int] | None:
    """(at least, at most) sequences of the p99 context that all instances hold; None where nothing can be said."""
    asked = case.asked
    if asked is None or usable(case) or case.part is None:
        return None
    tokens = min(case.load.context_p99 or asked.request.workload.context_tokens, asked.request.workload.context_tokens)
    plan = planned(at_context(asked.request, tokens))
    if plan is None or plan.memory is None:
        return None
    pool = plan.memory.pool
    if pool is None:
        return None
    instances = max(1, case.deployment.replicas) * asked.request.split.data * asked.request.split.attention_data
    low, high = (instances * math.floor(held_in(case, amount)) for amount in (pool.least, pool.most))
    running = number(case.deployment, "max_sequences")
    bound = running * instances if running else None
    return (min(low, bound), min(high, bound)) if bound else (low, high)


def too_few_sequences(case: Case) -> Outcome:
    """KV007. All users at p99 at once is the worst moment, not a failure: it warns."""
    users = case.load.users
    if not users:
        return skipped("KV007", case, "no number of users is given")
    why = usable(case)
    if why:
        return skipped("KV007", case, why)
    held = sequences_held(case)
    if held is None:
        return skipped("KV007", case, f"kvcli has no rule how many sequences {case.deployment.engine} holds of this model")
    low, high = held
    tokens = case.load.context_p99
    length = plural(tokens, "token") if tokens else "the longest length"
    place = case.load.place or case.target.place
    if low >= users:
        return passed("KV007", case, f"at least {are(low, 'sequence')} held, of {length} each")
    if not high and case.plan is not None and case.plan.memory is not None and not case.plan.memory.fits:
        return skipped("KV007", case, "not even one request fits, as KV001 says")
    running, instances = number(case.deployment, "max_sequences"), max(1, case.deployment.replicas)
    if running and running * instances < users:
        each = "the engine runs" if instances == 1 else f"each of {instances} replicas runs"
        message = f"{are(users, 'user')} asked for, and {each} at most {plural(running, 'sequence')} together"
        wanted = -(-users // max(1, case.deployment.replicas))
        wider = sequences_held(case.changed(max_sequences=wanted))
        fix = spelled(case, "max_sequences", wanted) if wider and wider[0] >= users else to_hold_all(case, users, sequences_held)
        return Outcome("KV007", "warning", message, case.place("max_sequences"), f"min(held, {running * instances:,}) < {users:,}", fix)
    if high >= users:
        message = f"of {plural(users, 'user')} at {length} all are held only if overheads stay low: at least {low:,}, at most {high:,}"
    else:
        message = f"of {plural(users, 'user')} at {length} at most {high:,} {'is' if high == 1 else 'are'} held at once: the others wait"
    formula = f"floor(pool / request) x instances = {low:,} to {high:,} < {users:,}"
    wider = sequences_held(case.changed(kv_tokens="auto")) if pool_tokens(case) else None
    if wider is not None and wider[0] >= users:
        fix = f"leave {size_said(case)} out"
        return Outcome("KV007", "warning", f"{message} in the pool that is set", case.place("kv_tokens"), formula, fix)
    return Outcome("KV007", "warning", message, place, formula, to_hold_all(case, users, sequences_held))


def memory_fraction(case: Case) -> Outcome:
    """KV011. A share that leaves nothing for what the engine does not count, or too little for what it must hold."""
    found = case.setting("memory_fraction")
    why = usable(case)
    if found is None or isinstance(found.value, str):
        return skipped("KV011", case, "the engine takes no share of memory, or chooses it itself")
    if why or case.plan is None or case.plan.memory is None:
        return skipped("KV011", case, why)
    share, memory, place = float(found.value), case.plan.memory, case.place("memory_fraction")
    said = f"{found.said}: " if not found.default else ""
    if (crowded := shares_beside(case, share)) is not None:
        return crowded
    gpus = case.deployment.gpus
    cut = found.default and any(each.code == "gpu_part" for each in case.deployment.problems)  # which is said already
    if gpus is not None and gpus.shared and not case.deployment.beside and not cut:
        by = said or f"{found.said}, {share:g}: "
        message = f"{by}the device is shared with others, and the engine counts the whole of it"
        return Outcome("KV011", "warning", message, place)
    context = next((need for need in memory.needs if need.line.item == "cuda_context"), None)
    left = int(memory.usable_bytes * (1 - share))
    if not found.default and case.deployment.engine == "vllm" and context is not None and left < context.high_bytes:
        held = share >= 1 or left < context.low_bytes
        level = "error" if held and version_of(case.deployment) >= VLLM_CHECKS_FREE else "warning"
        message = f"{said}{format_bytes(left)} stay for context and libraries, which take up to {format_bytes(context.high_bytes)}"
        formula = f"(1 - {share:g}) x {memory.usable_bytes:,} B = {left:,} B < {context.high_bytes:,} B"
        return Outcome("KV011", "error" if level == "error" else "warning", message, place, formula, spelled(case, "memory_fraction", 0.95))
    if not memory.fits and share < fixes.HIGHEST_FRACTION:
        wider = case.changed(memory_fraction=fixes.HIGHEST_FRACTION).plan
        if wider is not None and fixes.may_fit(wider):
            message = f"the engine takes {share:.0%} of the memory, which is too little; with {fixes.HIGHEST_FRACTION:.0%} it might start"
            return Outcome("KV011", "warning", message, place, "", spelled(case, "memory_fraction", fixes.HIGHEST_FRACTION))
    return passed("KV011", case)
