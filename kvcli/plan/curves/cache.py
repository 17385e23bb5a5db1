"""The cache of the fullest device against the context, what it is held against, and where the curves cross."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kvcli.errors import KvcliError
from kvcli.model.cache_records import Attention
from kvcli.model.layers import LayerGroup
from kvcli.model.spec import ModelSpec
from kvcli.plan.answers.search import Goal, largest, quietly
from kvcli.plan.answers.solve import at_context, solve
from kvcli.plan.build import build
from kvcli.plan.curves.series import Point
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest

#: Lengths at which a curve is asked for beside those at which it bends.
SAMPLES = 96
#: A saw-tooth with more teeth than these is drawn as its samples show it.
MOST_BENDS = 256

Curve = tuple[tuple[int, int], ...]


class Crossing(NamedTuple):
    """`tokens` at which the cache passes `what`: `weights` (from there on it is larger) or `device` (the last that fits)."""

    what: str
    tokens: int
    cache_bytes: int


class CacheCurve(NamedTuple):
    """(context tokens, bytes) of the fullest device. `needed` is what attention must keep, where one device holds all; `multi_head`
    what would be stored if every query head had keys and values of its own; `room` what the device has left for the cache beside
    weights and certain overheads, `left_bytes` of it at the context asked for. Empty where they say nothing.
    """

    stored: Curve
    needed: Curve
    multi_head: Curve
    query_heads: int
    kv_heads: int
    weights_bytes: int
    room: Curve
    left_bytes: int | None
    crossings: tuple[Crossing, ...]


def stored_on_fullest(plan: Plan) -> int:
    return plan.shared.fullest.stored_bytes if plan.shared else plan.cache.stored_bytes


def weights_on_fullest(plan: Plan) -> int:
    return plan.shared.fullest.weights_bytes if plan.shared else plan.weights.resident_bytes


def cache_curve(point: Point, most_tokens: int) -> CacheCurve:
    """From the shortest context that the request allows to `most_tokens`."""
    request, plan = point.request, point.plan
    work = request.workload
    least = max(1, work.shared_prefix_tokens + 1, work.uncached_tokens, work.new_tokens)
    lengths = _lengths(request, min(least, most_tokens), most_tokens)
    plans = [build(at_context(request, tokens)) for tokens in lengths]
    stored = tuple((tokens, stored_on_fullest(each)) for tokens, each in zip(lengths, plans, strict=True))
    needed = tuple((tokens, each.cache.needed_bytes + each.cache.state_bytes) for tokens, each in zip(lengths, plans, strict=True))
    room = tuple((tokens, _room(each)) for tokens, each in zip(lengths, plans, strict=True) if each.memory is not None)
    heads = _heads(request.spec)
    return CacheCurve(
        stored=stored,
        needed=() if plan.shared or needed == stored else needed,
        multi_head=_multi_head(request, lengths) if heads[0] > heads[1] else (),
        query_heads=heads[0],
        kv_heads=heads[1],
        weights_bytes=weights_on_fullest(plan),
        room=room if any(size > 0 for _, size in room) else (),
        left_bytes=_room(plan) if plan.memory is not None else None,
        crossings=_crossings(request, plan, lengths[0], most_tokens),
    )


def _lengths(request: PlanRequest, least: int, most: int) -> list[int]:
    found = {least, most, *(max(least, most * number // SAMPLES) for number in range(1, SAMPLES))}
    for group in request.spec.groups:
        for record in group.records:
            window, chunk = record.window_tokens, getattr(record, "chunk_tokens", None)
            if window:
                found |= {window}
            if chunk and most // chunk <= MOST_BENDS:
                found |= {border + step for border in range(chunk, most, chunk) for step in (0, 1)}
    return sorted(tokens for tokens in found if least <= tokens <= most)


def _room(plan: Plan) -> int:
    memory = plan.memory
    return 0 if memory is None else memory.usable_bytes - (memory.total_bytes - stored_on_fullest(plan))


def _heads(spec: ModelSpec) -> tuple[int, int]:
    """Query and KV heads of the layers that keep keys and values, (0, 0) where these differ or there are none."""
    pairs = {
        (record.num_attention_heads, record.num_key_value_heads)
        for group in spec.groups
        for record in group.records
        if isinstance(record, Attention) and record.owns_cache
    }
    return pairs.pop() if len(pairs) == 1 else (0, 0)


def _multi_head(request: PlanRequest, lengths: list[int]) -> Curve:
    """The same engine and the same shares, with as many KV heads as query heads."""
    groups = tuple(_with_all_heads(group) for group in request.spec.groups)
    spec = replace(request.spec, groups=groups, notices=())
    alike = request._replace(spec=spec, device=None, timing=None, budget=None, speculation=None)
    found = []
    for tokens in lengths:
        plan = quietly(at_context(alike, tokens))
        if isinstance(plan, KvcliError):  # an engine that knows no such model
            return ()
        found.append((tokens, stored_on_fullest(plan)))
    return tuple(found)


def _with_all_heads(group: LayerGroup) -> LayerGroup:
    records = tuple(
        record._replace(num_key_value_heads=record.num_attention_heads, transformers_heads=0) if isinstance(record, Attention) else record
        for record in group.records
    )
    return replace(group, records=records)


def _crossings(request: PlanRequest, plan: Plan, least: int, most: int) -> tuple[Crossing, ...]:
    weights = weights_on_fullest(plan)
    bare = request._replace(device=None, timing=None, budget=None)

    def stored(tokens: int) -> int:
        return stored_on_fullest(build(at_context(bare, tokens)))

    found = []
    below, _ = largest(lambda tokens: "passes" if stored(tokens) > weights else "", least, most)
    if least <= below < most:
        found.append(Crossing("weights", below + 1, stored(below + 1)))
    if plan.memory is not None:
        solved = solve(request, "ctx", Goal())
        if solved.plan is not None and solved.binding == "memory" and solved.plan.workload.context_tokens <= most:
            found.append(Crossing("device", solved.plan.workload.context_tokens, stored_on_fullest(solved.plan)))
    return tuple(found)
