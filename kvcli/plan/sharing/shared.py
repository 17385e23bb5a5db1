"""A model over several devices, or over a device and its host: what each holds, what all hold together, what is held twice."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.errors import BadInput, NotModelled
from kvcli.model.spec import ModelSpec
from kvcli.model.weight_parts import WeightParts
from kvcli.plan.drafter import PlaceBytes
from kvcli.plan.sharing.checks import check_split
from kvcli.plan.sharing.offload import Offload, Placement, host_weights, output_device, place, split_points, without_host_experts
from kvcli.plan.sharing.parts import read_parts, resident_parts
from kvcli.plan.sharing.ranks import Rank, SharedCache, make_ranks, share_cache, stage_layers
from kvcli.plan.sharing.split import Split
from kvcli.plan.sharing.weight_shares import Shares, weight_copies
from kvcli.plan.storage.policy import StoragePolicy
from kvcli.plan.weights import WeightBytes
from kvcli.plan.workload import Workload


class Place(NamedTuple):
    """What each of `devices` equal devices holds, and reads in a step; or the host's memory. Bytes; a drafter's are apart."""

    devices: int
    stage: int
    layers: int
    sequences: int
    weights_bytes: int
    stored_bytes: int
    weights_read_bytes: int
    cache_read_bytes: int
    host: bool = False
    draft: PlaceBytes = PlaceBytes()

    @property
    def total_bytes(self) -> int:
        """With what a drafter adds."""
        return self.weights_bytes + self.stored_bytes + self.draft.weights + self.draft.stored

    @property
    def read_bytes(self) -> int:
        return self.weights_read_bytes + self.cache_read_bytes + self.draft.read


class Shared(NamedTuple):
    """`weight_copies` and `cache_copies` are (cause, bytes) beyond one model and one cache, over all devices."""

    split: Split
    offload: Offload | None
    places: tuple[Place, ...]
    cache: SharedCache
    weight_copies: tuple[tuple[str, int], ...]
    placement: Placement | None = None

    def with_drafter(self, drafter: tuple[PlaceBytes, ...], on_host: int) -> Shared:
        """The same with what a drafter adds to the devices of the last stage, in their order, and `on_host` bytes of its tables."""
        if not drafter:
            return self
        last = max(each.stage for each in self.on_devices)
        added = iter(drafter)
        places = (
            each._replace(draft=PlaceBytes(weights=on_host))
            if each.host
            else each._replace(draft=next(added))
            if each.stage == last
            else each
            for each in self.places
        )
        return self._replace(places=tuple(places))

    @property
    def cache_copies(self) -> tuple[tuple[str, int], ...]:
        return self.cache.copies

    @property
    def on_devices(self) -> tuple[Place, ...]:
        return tuple(each for each in self.places if not each.host)

    @property
    def host(self) -> Place | None:
        return next((each for each in self.places if each.host), None)

    @property
    def fullest(self) -> Place:
        """The device with most bytes, which decides whether all fit."""
        return max(self.on_devices, key=lambda each: each.total_bytes)

    @property
    def chain(self) -> tuple[Place, ...]:
        """Of each stage the device that reads most in a step: a token passes them one after another."""
        return self._chain(self.on_devices)

    @property
    def idle_chain(self) -> tuple[Place, ...]:
        """The same of the devices with fewest sequences, where replicas have different numbers of them."""
        fewest = min(each.sequences for each in self.on_devices)
        return self._chain(tuple(each for each in self.on_devices if each.sequences == fewest))

    def _chain(self, places: tuple[Place, ...]) -> tuple[Place, ...]:
        stages = sorted({each.stage for each in places})
        return tuple(max((p for p in places if p.stage == stage), key=lambda p: p.read_bytes) for stage in stages)


def share(
    spec: ModelSpec, workload: Workload, kv: KvTypes, weights: WeightBytes, engine: StoragePolicy, split: Split, offload: Offload | None
) -> Shared:
    """Raises BadInput for a split or offload that the model cannot have, NotModelled where the engine has no rule for it."""
    rule = engine.sharing
    check_split(spec, split, rule, engine.name, weights)
    if offload is not None and not rule.tables_on_host:
        text = f"--ngl and --n-cpu-moe are llama.cpp's ways to keep a part on the host, which {engine.name} does not have"
        raise BadInput(text, hint="use --engine llama.cpp", code="unknown_engine_option")
    if rule.tables_on_host and spec.encoder_parameters:
        text = f"kvcli does not know where {engine.name} puts the encoder of {spec.name}"
        raise NotModelled(text, hint="plan it without --ngl and --n-cpu-moe", code="no_sharing_rule")
    resident, read = resident_parts(spec, weights), read_parts(spec, weights)
    placement = place(spec, offload or Offload(), rule.output_last) if rule.tables_on_host else None
    ranks = _ranks(spec, workload, split, engine, placement)
    cache = share_cache(spec, workload, kv, engine, ranks, split.attention_ranks)
    places = _places(spec, split, engine, placement, resident, read, cache)
    totals: Counter[str] = Counter()
    for each, parts in places:
        for name, size in parts.items():
            totals[name] += each.devices * size
    copies = weight_copies(resident, split, totals) if placement is None else _host_copies(resident, places)
    return Shared(split, offload, tuple(each for each, _ in places), cache, copies, placement)


def _ranks(spec: ModelSpec, workload: Workload, split: Split, engine: StoragePolicy, placement: Placement | None) -> tuple[Rank, ...]:
    layers, stages = len(spec.order), engine.sharing.stages
    if placement is None:
        counts = stages(layers, split.pipeline) if stages and split.pipeline > 1 else (layers,)
        return make_ranks(split, stage_layers(layers, counts), workload)
    inside = layers - placement.first
    counts = split_points(inside, placement, split.pipeline)
    cut = tuple(range(placement.first + each.start, placement.first + each.stop) for each in stage_layers(inside, counts))
    host = Rank(1, -1, range(placement.first), workload.batch_size, workload.context_tokens, host=True)
    return (*make_ranks(split, cut, workload), host)


def _places(
    spec: ModelSpec,
    split: Split,
    engine: StoragePolicy,
    placement: Placement | None,
    resident: WeightParts,
    read: WeightParts,
    cache: SharedCache,
) -> list[tuple[Place, Counter[str]]]:
    """Of each rank its place, and its weights by part."""
    inside, inside_read = resident, read
    if placement is not None:
        inside, inside_read = without_host_experts(resident, placement), without_host_experts(read, placement)
    held = Shares(spec, inside, split, engine.sharing)
    touched = Shares(spec, inside_read, split, engine.sharing, read=True)
    found = []
    for each in cache.ranks:
        rank = each.rank
        if rank.host and placement is not None:
            parts = Counter({"host": host_weights(resident, placement)})
            reads = host_weights(read._replace(table=0) if placement.output else read, placement)
        else:
            last = rank.stage == (split.pipeline - 1 if placement is None else output_device(placement, spec, split.pipeline))
            parts = held.of(rank.layers, rank.stage == 0, last)
            reads = touched.of(rank.layers, rank.stage == 0, last).total()
        place_ = Place(
            rank.devices,
            rank.stage,
            len(rank.layers),
            rank.sequences,
            parts.total(),
            each.stored_bytes,
            reads,
            each.read_bytes,
            rank.host,
        )
        found.append((place_, parts))
    return found


def _host_copies(resident: WeightParts, places: list[tuple[Place, Counter[str]]]) -> tuple[tuple[str, int], ...]:
    """A tied table is looked up on the host and multiplied with on the device."""
    extra = sum(each.devices * each.weights_bytes for each, _ in places) - resident.total
    return (("tied table, on the host and as the output", extra),) if extra else ()
