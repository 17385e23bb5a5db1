"""The floors of a workload on a device, or on a chain of them, at any context and any batch.

Every number of a step is made here once: the ledger of a plan, a growing context and the crossings of curves ask the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.ledger import Basis, Formula, Line, Unit
from kvcli.model.layers import state_bytes
from kvcli.model.spec import ModelSpec
from kvcli.plan.floors import (
    Chain,
    Floor,
    Path,
    cache_bytes,
    decode_flops,
    floor,
    forward_flops,
    prefill_floor_flops,
)
from kvcli.plan.time.reads import batch_read_bytes, cached_read_bytes
from kvcli.plan.workload import Workload

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator


class Caches(NamedTuple):
    """Layers of which one device reads: a stage's, a drafter's or the host's, as one of its ranks sees them.

    The batch is dealt among `groups` of devices with sequences of their own, a sequence's tokens among `context_ranks`.
    `narrower_bytes` of each sequence are needed but kept in fewer bits.
    """

    spec: ModelSpec
    kv: KvTypes
    groups: int = 1
    context_ranks: int = 1
    narrower_bytes: int = 0

    def sequences(self, batch: int) -> int:
        return -(-batch // self.groups)

    def read_bytes(self, tokens: int, batch: int, work: Workload) -> int:
        """What the busiest device reads in one step at `tokens`, states included."""
        sequences, share = self.sequences(batch), -(-tokens // self.context_ranks)
        prefix = min(share, -(-work.shared_prefix_tokens // self.context_ranks))
        states = sequences * state_bytes(self.spec.groups, self.spec.dtype, work.encoder_tokens)
        return max(0, batch_read_bytes(self.spec, share, sequences, prefix, self.kv) + states - sequences * self.narrower_bytes)

    def cached_bytes(self, batch: int, uncached_tokens: int, work: Workload) -> int:
        """At least what the prefill reads of rows cached before; of a shared prefix once."""
        if self.context_ranks > 1:
            return 0  # any rank may hold none of what a token looks at
        sequences = 1 if work.shared_prefix_tokens else self.sequences(batch)
        return sequences * cached_read_bytes(self.spec, work.prefill_tokens, uncached_tokens, self.kv, work.encoder_tokens)


class Host(NamedTuple):
    """What a step reads of the host's memory, at a rate that the user gave."""

    weights_bytes: int
    caches: Caches | None
    bytes_per_s: float

    def read_bytes(self, tokens: int, batch: int, work: Workload) -> int:
        """Less what the largest server CPU could keep on chip: nothing is known of this one."""
        from kvcli.plan.floors import LARGEST_CPU_CACHE_BYTES

        cache = self.caches.read_bytes(tokens, batch, work) if self.caches else 0
        return max(0, self.weights_bytes + cache - LARGEST_CPU_CACHE_BYTES)


class Steps(NamedTuple):
    """`weights_bytes` are read by each step, along the chain; `computed` is the part of the model whose products the devices do.

    A step computes `tokens` of each sequence, after one pass of the `drafter` over its cache. `summed_layers` says whether ranks
    must add up each layer's output.
    """

    spec: ModelSpec
    computed: ModelSpec
    work: Workload
    device: Accelerator
    units: tuple[str, ...]
    weights_bytes: int
    caches: tuple[Caches, ...]
    chain: Chain = Chain()
    tokens: int = 1
    host: Host | None = None
    link_bytes_per_s: float = 0.0
    summed_layers: bool = False
    drafter: Caches | None = None
    #: as `peak_bound` says, where it was asked before
    peak: float = 0.0

    def batches(self, batch: int) -> int:
        """Stages work on parts of a replica's sequences at a time, at most one for each sequence."""
        return min(self.chain.stages, -(-batch // self.chain.replicas))

    def at_work(self, batch: int) -> int:
        """Devices that compute at once: sequences of other replicas are computed elsewhere, those of other parts meanwhile."""
        return self.chain.ranks * min(self.chain.replicas, batch) * self.batches(batch)

    def cache_read_bytes(self, tokens: int, batch: int) -> int:
        return sum(each.read_bytes(tokens, batch, self.work) for each in self.caches) // self.batches(batch)

    def intensity(self, tokens: int, batch: int) -> float:
        """FLOP/B of a device in one step: what it computes over what the chain's devices in turn read."""
        moved = self.weights_bytes + self.cache_read_bytes(tokens, batch) + self.drafter_read_bytes(tokens, batch)
        return self.flops(tokens, batch) / self.at_work(batch) / max(1, moved)

    def drafter_read_bytes(self, tokens: int, batch: int) -> int:
        """Of a drafter's cache, by the last stage alone, whatever parts the batch is cut into."""
        return self.drafter.read_bytes(tokens, batch, self.work) if self.drafter else 0

    @property
    def all_caches(self) -> tuple[Caches, ...]:
        host = self.host.caches if self.host else None
        return tuple(each for each in (*self.caches, self.drafter, host) if each)

    def flops(self, tokens: int, batch: int) -> int:
        return self.tokens * decode_flops(self.computed, self.work._replace(context_tokens=tokens, batch_size=batch))

    def link_bytes(self, batch: int) -> int:
        """At least what a device receives for one step, all stages in turn.

        A rank has a share of each layer's matrices, so of a layer's output it knows its own summand, and needs the sum of all: the sum
        of the others' is one vector a token, however it is added up on the way, at least once a layer. Moving the weights instead
        takes the others' shares, counted at 2 bits a parameter. A later stage receives one vector a token.
        """
        sequences = max(1, -(-batch // self.chain.replicas) // self.batches(batch))
        vectors = self.tokens * sequences * self.spec.dtype.bytes_for(self.spec.hidden_size)
        ranks = self.chain.ranks
        total = (self.chain.stages - 1) * vectors
        if self.summed_layers and ranks > 1:
            shares = ((group.count, group.parameters.active_matrices * (ranks - 1) // ranks // 4) for group in self.spec.groups)
            total += sum(count * min(vectors, share) for count, share in shares)
        return total

    @property
    def peak_flops(self) -> float:
        """Of one device, in FLOP/s; 0 where unknown."""
        return self.peak or self.device.peak_bound(*self.units)

    def terms(self, tokens: int, batch: int) -> tuple[tuple[str, float], ...]:
        """Seconds of each term of a step's floor, which is the largest; the bytes' may be negative where all fit the caches."""
        caches = self.cache_read_bytes(tokens, batch) + self.drafter_read_bytes(tokens, batch)
        moved = self.weights_bytes + caches - self.chain.stages * cache_bytes(self.device)
        peak = self.at_work(batch) * self.peak_flops
        found = [("memory", moved / self.device.bandwidth_bound_bytes_per_s)]
        found.append(("compute", self.flops(tokens, batch) / peak if peak else 0.0))
        if self.link_bytes_per_s and self.chain.ranks * self.chain.stages > 1:
            found.append(("link", self.link_bytes(batch) / self.link_bytes_per_s))
        if self.host:
            found.append(("host_memory", self.host.read_bytes(tokens, batch, self.work) / self.host.bytes_per_s))
        return tuple(found)

    def seconds(self, tokens: int, batch: int) -> float:
        """The floor of a step at `tokens` in the cache of each sequence."""
        return max(0.0, *(seconds for _, seconds in self.terms(tokens, batch)))

    def decode(self, reads: tuple[Line, ...]) -> Floor:
        """The floor of the workload's own step with its ledger; `reads` are what `read_bytes` sums."""
        tokens, batch = self.work.context_tokens, self.work.batch_size
        terms = (
            ("batch_size", self.tokens * batch),
            ("active_matrices", self.computed.active_matrices),
            ("head_matrix", self.computed.head_matrix),
            ("attention_flops", self.flops(tokens, 1) // self.tokens - 2 * (self.computed.active_matrices + self.computed.head_matrix)),
        )
        flops = Line("decode_flops", self.flops(tokens, batch), Unit.FLOPS, Formula("decode_flops", terms))
        paths = []
        if self.link_bytes_per_s and self.chain.ranks * self.chain.stages > 1:
            size = self.link_bytes(batch)
            line = Line("link_bytes", size, Unit.BYTES, Formula("link_bytes", (("layers", len(self.spec.order)), ("bytes", size))))
            paths.append(Path("link", line, self.link_bytes_per_s, self.device.id))
        if self.host:
            paths.append(self._host_path(self.host.read_bytes(tokens, batch, self.work), self.host))
        caches, devices = self.chain.stages, self.at_work(batch)
        return floor("decode", reads, flops, self.device, self.units, caches, devices, tuple(paths))

    def _host_path(self, size: int, host: Host) -> Path:
        line = Line("host_read", size, Unit.BYTES, Formula("host_read", (("bytes", size),)))
        return Path("host_memory", line, host.bytes_per_s, "--host-bandwidth", Basis.USER)

    def prefill(self, weights: Line, batch: int, newcomer: bool = False) -> Floor:
        """The floor of `batch` prompts. Of prompts with a shared prefix the first computes it, the others what comes after;
        `newcomer` asks about one that finds it computed.
        """
        work = self.work
        prompt, encoder = work.prefill_tokens, work.encoder_tokens
        first = work.uncached_tokens or prompt
        other = min(first, prompt - work.shared_prefix_tokens)
        each = prefill_floor_flops(self.computed, prompt, encoder, other)
        most = each if newcomer or other == first else prefill_floor_flops(self.computed, prompt, encoder, first)
        full = forward_flops(self.computed, 0, prompt, 1, encoder)
        terms = (
            ("batch_size", batch),
            ("tokens", prompt),
            ("active_matrices", self.computed.active_matrices),
            ("head_matrix", self.computed.head_matrix),
            ("attention_flops", full - 2 * (prompt * self.computed.active_matrices + self.computed.head_matrix)),
            ("spared_flops", full - each),
        )
        if most == each:
            equation = Formula("prefill_flops", terms)
        else:
            equation = Formula("prefill_shared_flops", (("first", most), ("others", batch - 1), ("each", each)))
        flops = Line("prefill_flops", most + (batch - 1) * each, Unit.FLOPS, equation)
        parts = [weights._replace(item="prefill_weights_read")]
        cached = sum(c.cached_bytes(batch, other if newcomer else first, work) for c in self.caches) // self.chain.stages
        if cached:
            numbers = (("bytes", cached), ("cached_tokens", prompt - (other if newcomer else first)))
            parts.append(Line("prefill_kv_read", cached, Unit.BYTES, Formula("cached_read", numbers)))
        paths = (self._host_path(self.host._replace(caches=None).read_bytes(1, 1, work), self.host),) if self.host else ()
        devices = self.chain.ranks * min(self.chain.replicas, batch) * self.chain.stages
        return floor("prefill", tuple(parts), flops, self.device, self.units, self.chain.stages, devices, paths)
