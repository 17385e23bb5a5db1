"""Speculative decoding: tokens drafted before each step, by the model's own prediction blocks, by a smaller model, or from the text.

The drafter is planned as a model of its own: its weights stand beside the model's, its cache is kept once for each sequence
however many tokens it drafts. What the model's own cache needs more (states to go back to, slots of drafted tokens) is the
engine's rule, which knows the number of drafted tokens (`EngineOptions.drafted`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcli.dtypes import KvTypes
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.model.layers import LayerGroup
from kvcli.model.spec import ModelSpec, TensorFile
from kvcli.plan.drafter import DraftPlan, PlaceBytes, Speculation
from kvcli.plan.sharing.rules import ceil_div
from kvcli.plan.storage.policy import Stored
from kvcli.plan.time.steps import Caches
from kvcli.plan.weights import WeightBytes, weight_bytes
from kvcli.units import format_bytes

if TYPE_CHECKING:
    from kvcli.plan.request import PlanRequest
    from kvcli.plan.sharing.shared import Shared

#: More than any engine drafts for one sequence.
MOST_DRAFTED = 1024


def speculate(spec: ModelSpec, drafted: int, blocks: int | None = None, draft: ModelSpec | None = None, ngram: bool = False) -> Speculation:
    """`drafted` tokens a step by a draft model, from the text, or else by the model's own blocks.

    Raises BadInput for more tokens than engines draft, for blocks the model does not have, and for a draft model with other words.
    """
    if drafted > MOST_DRAFTED:
        raise BadInput(f"--speculative {drafted:,} drafts more tokens than any engine, {MOST_DRAFTED:,}", code="too_many_drafted")
    if ngram:
        return Speculation(drafted)
    if draft is None:
        return Speculation(drafted, prediction_model(spec, blocks), own_blocks=True)
    if draft.has_cross_attention or draft.encoder_parameters:
        raise BadInput(f"{draft.name} needs an encoder and cannot draft", hint="name a decoder", code="bad_drafter")
    return Speculation(drafted, draft)


def prediction_model(spec: ModelSpec, blocks: int | None) -> ModelSpec:
    """The model's prediction blocks as a model of their own, `blocks` of them (None: all).

    Its tables are the copies that files hold with each block, else the model's, which are then not counted again. Raises BadInput
    where the model has none, or fewer.
    """
    mtp = spec.mtp
    if mtp is None and spec.mtp_named:
        text = f"the file of {spec.name} names prediction blocks, which kvcli does not know of {spec.model_type}"
        raise NotModelled(text, hint="name a draft model, as in --speculative 4:llama3.2-1b", code="no_prediction_blocks")
    if mtp is None:
        raise BadInput(
            f"{spec.name} has no prediction blocks that kvcli knows",
            hint="name a draft model, as in --speculative 4:llama3.2-1b, or --speculative 4:ngram",
            code="no_prediction_blocks",
        )
    used = mtp.blocks if blocks is None else blocks
    if not 0 < used <= mtp.blocks:
        has = f"{mtp.blocks} prediction block{'s' if mtp.blocks > 1 else ''}"
        raise BadInput(f"{spec.name} has {has}, not {used}", hint=f"--speculative N:{mtp.blocks}", code="no_prediction_blocks")
    records, parameters = mtp.layer
    half = used * mtp.tables // 2
    return replace(
        spec,
        name=f"{spec.name} MTP",
        groups=(LayerGroup(0, used, records, parameters),),
        order=(0,) * used,
        embedding=half,
        head=half,
        head_matrix=half,
        lookups=0,
        shared=used * mtp.joins,
        final=used * mtp.norms,
        encoder_parameters=0,
        tower_parameters=0,
        mtp=None,
        first_layer=spec.first_layer + len(spec.order),
        decoder=None,
        tensors=_tensors(spec, used, mtp.blocks),
        notices=(),
    )


def _tensors(spec: ModelSpec, used: int, blocks: int) -> TensorFile | None:
    """The blocks in the model's file, where all of them are used and the file has them."""
    file = spec.tensors
    parts = file.mtp_parts if file else None
    if file is None or parts is None or used != blocks or len(parts.layers) != blocks:
        return None
    experts = sum(layer.experts for layer in parts.layers)
    number, chosen = (spec.mtp.layer[1].num_experts, spec.mtp.layer[1].experts_per_token) if spec.mtp else (0, 0)
    unread = parts.table + (experts - experts * chosen // number if number else 0)
    return TensorFile(file.dtype, parts.total, parts.total - unread, parts=parts)


def with_drafter(request: PlanRequest, kv: KvTypes, main: Stored | Shared, head_bytes: int) -> DraftPlan:
    """The drafter of a request beside what its model stores. `head_bytes`: the model's own head, read once more for each token
    that prediction blocks without one of their own draft.

    Raises what planning the drafter raises.
    """
    speculation = request.speculation
    if speculation is None:
        raise ValueError("no speculation was asked for")
    if speculation.drafter is None:
        return DraftPlan(speculation, None, None)
    drafter, own_blocks = speculation.drafter, speculation.own_blocks
    weights = weight_bytes(drafter, request.weights if own_blocks else None)
    own_kv = kv if own_blocks or request.kv is not None else request.engine.auto_kv(drafter)
    plan = DraftPlan(speculation, weights, own_kv, notices=_notices(drafter, weights, speculation))
    _check_pool(request, drafter)
    _check_words(request, drafter)
    head = head_bytes if own_blocks and not drafter.head else 0
    if isinstance(main, Stored):
        return _on_one(request, plan, drafter, weights, own_kv, main, head)
    return _on_many(request, plan, drafter, weights, own_kv, main, head)


def _check_pool(request: PlanRequest, drafter: ModelSpec) -> None:
    """Raises NotModelled where a draft model's layers would be laid out together with layers of several kinds."""
    kinds = {(record.kind, record.window_tokens) for group in request.spec.groups for record in group.records}
    if request.engine.sharing.one_pool and len(kinds) > 1 and request.speculation and not request.speculation.own_blocks:
        text = (
            f"kvcli has no rule how {request.engine.name} lays out {drafter.name} beside the several kinds of layers of {request.spec.name}"
        )
        raise NotModelled(text, hint="use --engine ideal", code="no_storage_rule")


def _check_words(request: PlanRequest, drafter: ModelSpec) -> None:
    """vLLM refuses a draft model with another number of words (`verify_equal_vocab_size_if_draft_model`)."""
    words, own = drafter.vocab_size, request.spec.vocab_size
    if request.engine.sharing.one_pool and words != own:
        has = f"{drafter.name} has {words:,} where {request.spec.name} has {own:,}"
        text = f"{request.engine.name} drafts with a model of as many words, and {has}"
        raise BadInput(text, hint="name a model of the same family", code="bad_drafter")


def _on_one(
    request: PlanRequest, plan: DraftPlan, drafter: ModelSpec, weights: WeightBytes, kv: KvTypes, main: Stored, head: int
) -> DraftPlan:
    work = request.workload
    if request.engine.sharing.one_pool and plan.speculation.own_blocks:
        stored = request.engine.store(joined(request.spec, drafter), work, kv).total_bytes - main.total_bytes
    else:
        stored = request.engine.store(drafter, work, kv).total_bytes
    cache_read = Caches(drafter, kv).read_bytes(work.context_tokens, work.batch_size, work)
    read = weights.read_bytes_per_step + head + cache_read
    return plan._replace(stored_bytes=stored, weights_bytes=weights.resident_bytes, read_bytes_per_draft=read)


def _on_many(
    request: PlanRequest, plan: DraftPlan, drafter: ModelSpec, weights: WeightBytes, kv: KvTypes, main: Shared, head: int
) -> DraftPlan:
    """Engines keep a drafter on the devices of the last stage, shared by heads as the model is."""
    from kvcli.plan.sharing.ranks import make_ranks, share_cache
    from kvcli.plan.sharing.shared import share

    split = request.split
    routed = any(group.parameters.num_experts for group in drafter.groups)
    own = split._replace(pipeline=1, experts=split.experts if routed else 1)
    everywhere = share(drafter, request.workload, kv, weights, request.engine, own, None)
    found = everywhere.on_devices
    on_host = everywhere.host.weights_bytes if everywhere.host else 0
    table = _table(request, drafter, weights)
    stored = [each.stored_bytes for each in found]
    if request.engine.sharing.one_pool and plan.speculation.own_blocks and split.pipeline == 1:
        both = joined(request.spec, drafter)
        ranks = make_ranks(split, (range(len(both.order)),), request.workload)
        pool = share_cache(both, request.workload, kv, request.engine, ranks, split.attention_ranks).ranks
        stored = [one.stored_bytes - alone.stored_bytes for one, alone in zip(pool, main.on_devices, strict=True)]
    places = tuple(
        PlaceBytes(each.weights_bytes + table, size, each.weights_read_bytes + ceil_div(head, split.tensor), each.cache_read_bytes)
        for each, size in zip(found, stored, strict=True)
    )
    copies = sum(size for _, size in (*everywhere.weight_copies, *everywhere.cache_copies))
    return plan._replace(
        weights_bytes=sum(each.devices * (each.weights_bytes + table) for each in found) + on_host,
        stored_bytes=sum(each.devices * size for each, size in zip(found, stored, strict=True)),
        read_bytes_per_draft=max(place.read for place in places),
        per_place=places,
        host_bytes=on_host,
        copies_bytes=copies + sum(each.devices for each in found) * table,
    )


def _table(request: PlanRequest, drafter: ModelSpec, weights: WeightBytes) -> int:
    """vLLM's blocks share the model's input table on one stage alone; on the last of several each rank loads its rows again."""
    split, spec = request.split, request.spec
    own = request.speculation is not None and request.speculation.own_blocks
    if not (own and request.engine.sharing.one_pool and split.pipeline > 1) or drafter.embedding:
        return 0
    multiple = request.engine.sharing.vocab_multiple
    rows = ceil_div(ceil_div(spec.vocab_size, multiple) * multiple, split.tensor)
    return ceil_div(spec.dtype.bytes_for(spec.embedding) * rows, spec.vocab_size)


def joined(spec: ModelSpec, drafter: ModelSpec) -> ModelSpec:
    """One model of both, for engines that lay their layers out together."""
    order = (*spec.order, *(len(spec.groups) + number for number in drafter.order))
    return replace(spec, groups=(*spec.groups, *drafter.groups), order=order)


def _notices(drafter: ModelSpec, weights: WeightBytes, speculation: Speculation) -> tuple[Notice, ...]:
    found = [notice for notice in (*drafter.notices, *weights.notices) if notice.code not in ("weights_of_file", "weights_linear_only")]
    if speculation.own_blocks and drafter.head:
        size = format_bytes(2 * drafter.head * int(drafter.dtype.bits_per_element) // 8)
        text = (
            f"the prediction blocks' copies of both word tables are counted as their file holds them; engines that share them spare {size}"
        )
        found.append(Notice("prediction_tables", text))
    return tuple(found)
