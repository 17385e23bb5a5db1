"""Ranks: kinds of devices that hold the same, and what each keeps of the cache.

An engine's storage rule is asked about each rank's own model: its layers, its heads, its sequences and tokens. So a page, a
state or a group of layers is laid out as that engine's worker lays it out, and what is held twice is counted twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.errors import Notice
from kvcli.model.layers import LayerGroup
from kvcli.model.spec import ModelSpec
from kvcli.plan.sharing.split import Split
from kvcli.plan.storage.policy import StoragePolicy, Stored
from kvcli.plan.time.reads import sequences_read_bytes
from kvcli.plan.workload import Workload

COPIES = "copies on other devices"
EVEN = "tokens that context ranks lack"


class Rank(NamedTuple):
    """`devices` devices that hold the same: `layers` of pipeline stage `stage`, and `sequences` of `tokens` tokens each.

    `groups` is how many groups of devices have so many sequences of their own. `host` is the host's memory, where a model is
    offloaded in part.
    """

    devices: int
    stage: int
    layers: range
    sequences: int
    tokens: int
    groups: int = 1
    host: bool = False


class RankCache(NamedTuple):
    """What one device of a rank keeps. `rows` are of the whole model's records, 0 for those it has none of."""

    rank: Rank
    rows: tuple[int, ...]
    read_bytes: int

    @property
    def stored_bytes(self) -> int:
        return sum(self.rows)


def stage_layers(layers: int, counts: tuple[int, ...]) -> tuple[range, ...]:
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))


def make_ranks(split: Split, stages: tuple[range, ...], workload: Workload) -> tuple[Rank, ...]:
    """All kinds of devices. Sequences are dealt evenly among the groups that keep their own, tokens among context ranks."""
    groups = split.data * split.attention_data
    fewest, more = divmod(workload.batch_size, groups)
    share, longer = divmod(workload.context_tokens, split.context)
    each = split.attention_ranks // split.context
    found = []
    for stage, layers in enumerate(stages):
        for sequences, holders in ((fewest + 1, more), (fewest, groups - more)):
            for tokens, ranks in ((share + 1, longer), (share, split.context - longer)):
                if holders and ranks:
                    found.append(Rank(holders * ranks * each, stage, layers, sequences, tokens, holders))
    return tuple(found)


def rank_spec(spec: ModelSpec, layers: range, ranks: int) -> tuple[ModelSpec, tuple[int, ...]]:
    """The model as one of `ranks` tensor ranks of a stage sees it, and for each of its groups the whole model's."""
    numbers = [spec.order[layer] for layer in layers]
    kept = tuple(sorted(set(numbers)))
    counts = Counter(numbers)
    groups = tuple(
        LayerGroup(
            first=next(layer for layer in layers if spec.order[layer] == number),
            count=counts[number],
            records=tuple(record.of_rank(ranks) for record in spec.groups[number].records),
            parameters=spec.groups[number].parameters,
        )
        for number in kept
    )
    return replace(spec, groups=groups, order=tuple(kept.index(number) for number in numbers)), kept


class SharedCache(NamedTuple):
    """The cache over all devices: `stored` sums them, with copies; `ranks` are one device each of every kind.

    `stored.blocks` are of each sequence's fullest device. `copies` are bytes that more than one device holds, by kind of layer.
    """

    stored: Stored
    ranks: tuple[RankCache, ...]
    copies: tuple[tuple[str, int], ...]


def share_cache(
    spec: ModelSpec, workload: Workload, kv: KvTypes, engine: StoragePolicy, ranks: tuple[Rank, ...], tensor_ranks: int
) -> SharedCache:
    """Asks the engine about each rank. Raises what its rule raises."""
    most_tokens = max(rank.tokens for rank in ranks)
    records = [record for group in spec.groups for record in group.records]
    first = _first_records(spec)
    total, causes = [0] * len(records), Counter[str]()
    held = [0] * len(records)
    notices: list[Notice] = []
    blocks: dict[tuple[int, int], int] = {}
    block_tokens = None
    found = []
    for rank in ranks:
        rows, read = [0] * len(records), 0
        kept = most_tokens if engine.sharing.even_tokens else rank.tokens
        if rank.sequences and kept and rank.layers:
            own, numbers = rank_spec(spec, rank.layers, tensor_ranks)
            work = workload._replace(context_tokens=kept, batch_size=rank.sequences)
            stored = engine.store(own, work, kv)
            sizes = iter(stored.rows)
            for group, number in zip(own.groups, numbers, strict=True):
                for place, record in enumerate(group.records):
                    index = first[number] + place
                    rows[index] = next(sizes)
                    total[index] += rank.devices * rows[index]
                    layers = rank.sequences * group.count
                    state = record.state_bytes(spec.dtype, workload.encoder_tokens)
                    needed = record.needed_bytes(rank.tokens, kv)
                    held[index] += rank.devices * layers * (needed + state)
                    causes[EVEN] += rank.devices * layers * (record.needed_bytes(kept, kv) - needed)
                    prefix = min(rank.tokens, -(-workload.shared_prefix_tokens * rank.tokens // workload.context_tokens))
                    read += layers * state + group.count * sequences_read_bytes(record, rank.tokens, rank.sequences, prefix, kv)
            read = max(0, read - stored.narrower_bytes)
            for cause, size in stored.causes:
                causes[cause] += rank.devices * size
            notices += stored.notices
            if stored.blocks is not None:
                key = (rank.sequences, rank.groups)
                blocks[key] = max(blocks.get(key, 0), stored.blocks)
                block_tokens = stored.block_tokens
        found.append(RankCache(rank, tuple(rows), read))
    copies = _copies(spec, workload, kv, held)
    causes[COPIES] += sum(size for _, size in copies)
    stored = Stored(
        rows=tuple(total),
        causes=tuple((cause, size) for cause, size in causes.items() if size),
        blocks=sum(groups * most for (_, groups), most in blocks.items()) if blocks else None,
        block_tokens=block_tokens,
        notices=_distinct(notices),
    )
    return SharedCache(stored, tuple(found), copies)


def _first_records(spec: ModelSpec) -> list[int]:
    """Of each group, the index of its first record among all."""
    sizes = [len(group.records) for group in spec.groups]
    return [sum(sizes[:number]) for number in range(len(sizes))]


def _copies(spec: ModelSpec, workload: Workload, kv: KvTypes, held: list[int]) -> tuple[tuple[str, int], ...]:
    """What devices hold of needed bytes and states beyond one of each, by kind of layer."""
    found: Counter[str] = Counter()
    pairs = [(group, record) for group in spec.groups for record in group.records]
    for (group, record), size in zip(pairs, held, strict=True):
        needed = record.needed_bytes(workload.context_tokens, kv) + record.state_bytes(spec.dtype, workload.encoder_tokens)
        found[record.kind] += size - workload.batch_size * group.count * needed
    return tuple((kind, size) for kind, size in found.items() if size)


def _distinct(notices: list[Notice]) -> tuple[Notice, ...]:
    return tuple(dict.fromkeys(notices))
