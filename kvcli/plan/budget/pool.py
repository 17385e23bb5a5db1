"""The pool that fills an engine's share of memory: what its log prints about it.

vLLM: N = floor(bytes / bytes of a block id) on the device that has fewest, R = ids of one request of the context, concurrency N / R;
up to 0.20.0 it prints N // groups x block tokens, later int(N / R x context). SGLang: slots of tokens in whole pages, windows in
0.8 as many, states in 0.9 / 1.9 of the memory. TensorRT-LLM: whole blocks. llama.cpp: buffers of fixed size on each device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from kvcli.dtypes import KvTypes
from kvcli.errors import NotModelled
from kvcli.model.layers import cache_bytes
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Recurrent
from kvcli.plan.budget.overheads import Need
from kvcli.plan.budget.reserve import sglang_pool_bytes, trtllm_pool_bytes, vllm_pool_bytes
from kvcli.plan.sharing.ranks import rank_spec
from kvcli.plan.sharing.split import Split
from kvcli.plan.storage.policy import StoragePolicy
from kvcli.plan.storage.sglang import SgLang
from kvcli.plan.storage.trtllm import TensorRtLlm
from kvcli.plan.storage.vllm import Vllm
from kvcli.plan.storage.vllm_groups import PoolUnit
from kvcli.plan.workload import Workload

#: Batches in flight of which vLLM's window layers keep the tokens, by version.
BATCHES = {"0.33": 2, "0.9": 1}
#: SGLang's --mamba-full-memory-ratio and --swa-full-tokens-ratio.
STATE_RATIO, WINDOW_RATIO = Fraction("0.9"), Fraction("0.8")


class Amount(NamedTuple):
    """A pool of some size. `tokens` as the engine prints them; `concurrency` sequences of the context."""

    blocks: int | None
    tokens: int | None
    concurrency: Fraction
    window_tokens: int | None = None
    state_slots: int | None = None


class KvPool(NamedTuple):
    """`least` and `most` agree where the pool's size is known. `bytes` are of one device, (least, most)."""

    least: Amount
    most: Amount
    bytes: tuple[int, int]
    buffers_bytes: tuple[int, ...] = ()

    @property
    def exact(self) -> bool:
        return self.bytes[0] == self.bytes[1]


class Share(NamedTuple):
    """One kind of device: its `layers` and tensor `ranks` of the model, its sequences' tokens, and its bytes of weights and the like."""

    layers: range
    ranks: int
    tokens: int
    static_bytes: int


class Room(NamedTuple):
    """What decides how many bytes of `total_bytes` a pool has: the engine's `part`, the needs beside it, or `own_bytes` of the user."""

    engine: str
    version: str
    total_bytes: int
    part: Fraction | None
    needs: tuple[Need, ...]
    own_bytes: int | None

    def left(self, static: int, high: bool) -> int:
        """Bytes beside `static` ones, with the needs at their high ends, or at their low ends."""
        if self.own_bytes is not None:
            return self.own_bytes
        if self.part is None:
            return 0
        size = {each.line.item: each.high_bytes if high else each.low_bytes for each in self.needs}
        not_torch = sum(size.get(item, 0) for item in ("cuda_context", "communication", "reserve"))
        forward = size.get("activations", 0) + size.get("logits", 0)
        if self.engine == "vllm":
            graphs = 0 if self.version == "0.9" else size.get("cuda_graphs", 0)
            left = vllm_pool_bytes(self.total_bytes, self.part, static, not_torch, forward, graphs)
        elif self.engine == "sglang":
            left = sglang_pool_bytes(self.total_bytes, self.part, static, not_torch)
        else:
            left = trtllm_pool_bytes(self.total_bytes, self.part, static, not_torch, forward)
        return max(0, left)


class Question(NamedTuple):
    """Everything a pool depends on; answered when it is looked at, since most plans of a sweep are not.

    `spec` has the layers of a drafter that shares the pool. `stored` are whole buffers by device, for engines without a pool that
    grows; `slots` the sequences they are for.
    """

    engine: StoragePolicy
    spec: ModelSpec
    workload: Workload
    kv: KvTypes
    split: Split
    shares: tuple[Share, ...]
    room: Room
    chunk_tokens: int | None
    stored: tuple[int, ...] = ()

    def answer(self) -> KvPool | None:
        """None for engines without a pool, and where kvcli has no rule for it."""
        if self.engine.name in ("llama.cpp", "ollama"):
            return self._buffers()
        if not isinstance(self.engine, Vllm | SgLang | TensorRtLlm):
            return None
        holders = [each for each in self.shares if self._holds(each)]
        ends = [(self.room.left(each.static_bytes, high=True), self.room.left(each.static_bytes, high=False)) for each in holders]
        try:
            found = [self._of(each, sizes) for each, sizes in zip(holders, ends, strict=True)]
        except NotModelled:
            return None
        if not found:
            return None
        least, most = (min((pair[end] for pair in found), key=_order) for end in (0, 1))
        return KvPool(least, most, (min(low for low, _ in ends), min(high for _, high in ends)))

    def admission_bytes(self) -> int:
        """What one request takes of vLLM's pool to be admitted, on the device where that is most; 0 in other engines."""
        if not isinstance(self.engine, Vllm):
            return 0
        engine = self._vllm(self.engine)
        return max(engine.pool_unit(*self._rank(each), self.kv, BATCHES[engine.version]).request_bytes for each in self.shares)

    def _vllm(self, engine: Vllm) -> Vllm:
        return replace(engine, in_flight_tokens=engine.in_flight_tokens or self.chunk_tokens)

    def _rank(self, each: Share) -> tuple[ModelSpec, Workload]:
        """The model of one device, and one sequence's part on it."""
        work = self.workload._replace(context_tokens=each.tokens, batch_size=1)
        if len(each.layers) == len(self.spec.order) and each.ranks == 1:
            return self.spec, work
        return rank_spec(self.spec, each.layers, each.ranks)[0], work

    def _holds(self, each: Share) -> bool:
        """Whether its layers keep anything: a stage may have none that do."""
        spec, _ = self._rank(each)
        states = any(isinstance(record, Recurrent) for group in spec.groups for record in group.records)
        return states or cache_bytes(spec.groups, 1, self.kv) > 0

    def _buffers(self) -> KvPool:
        rule = getattr(self.engine, "server", self.engine)
        slots = getattr(rule, "slots", None) or self.workload.batch_size
        tokens = getattr(rule, "shared_tokens", None) or self.workload.context_tokens * slots
        amount = Amount(None, tokens, min(Fraction(slots), Fraction(tokens, self.workload.context_tokens)))
        most = max(self.stored)
        return KvPool(amount, amount, (most, most), self.stored)

    def _of(self, each: Share, sizes: tuple[int, int]) -> list[Amount]:
        """The pools of these sizes on one kind of device."""
        spec, work = self._rank(each)
        engine, kv = self.engine, self.kv
        if isinstance(engine, Vllm):
            unit = self._vllm(engine).pool_unit(spec, work, kv, BATCHES[engine.version])
            printed = self.split.context if engine.version == "0.9" else None
            return [vllm_amount(unit, size, self.workload.context_tokens, printed) for size in sizes]
        if isinstance(engine, SgLang):
            return [sglang_amount(engine, spec, work, kv, size) for size in sizes]
        if isinstance(engine, TensorRtLlm):
            return [trtllm_amount(engine, spec, work, kv, size) for size in sizes]
        raise NotModelled(f"kvcli has no rule of {engine.name}'s pool")


def _order(amount: Amount) -> tuple[int, Fraction]:
    """The device that has least decides."""
    return (amount.blocks if amount.blocks is not None else amount.tokens or 0, amount.concurrency)


def vllm_amount(unit: PoolUnit, size: int, context_tokens: int, older_ranks: int | None = None) -> Amount:
    """`size` bytes of one device for requests of `context_tokens`. `older_ranks`: print tokens as up to 0.20.0, times context ranks."""
    blocks = size // unit.block_bytes
    concurrency = Fraction(blocks, unit.request_ids)
    if older_ranks:
        return Amount(blocks, blocks // unit.groups * (unit.block_tokens or 0) * older_ranks, concurrency)
    return Amount(blocks, int(concurrency * context_tokens), concurrency)


def _rows(engine: StoragePolicy, spec: ModelSpec, work: Workload, kv: KvTypes) -> tuple[int, int]:
    """Bytes that one block, and one state, of all layers take."""
    stored = engine.store(spec, work._replace(context_tokens=1), kv).rows
    records = [record for group in spec.groups for record in group.records]
    states = sum(size for size, record in zip(stored, records, strict=True) if isinstance(record, Recurrent))
    return sum(stored) - states, states


def trtllm_amount(engine: TensorRtLlm, spec: ModelSpec, work: Workload, kv: KvTypes, size: int) -> Amount:
    """Raises NotModelled for hybrids, of whose split between states and keys kvcli knows no rule."""
    block, state = _rows(replace(engine, drafted=0), spec, work, kv)
    if state or not block:
        raise NotModelled("kvcli has no rule of trtllm's pool of states")
    blocks = size // block
    return Amount(blocks, blocks * engine.block_tokens, Fraction(blocks, -(-work.context_tokens // engine.block_tokens)))


def sglang_amount(engine: SgLang, spec: ModelSpec, work: Workload, kv: KvTypes, size: int) -> Amount:
    """Raises NotModelled where no pool of one token width exists (DeepSeek-V4), and for states of drafted tokens."""
    page, rows, windows, state = engine.pool_rows(spec, kv)
    slots = None
    if state:
        if engine.drafted:
            raise NotModelled("kvcli has no rule how sglang deals memory among states of drafted tokens")
        slots = int(size * STATE_RATIO / (1 + STATE_RATIO)) // state
        size -= slots * state
    tokens = int(Fraction(size) / (rows + WINDOW_RATIO * windows)) // page * page
    pages = Fraction(tokens // page, -(-(work.context_tokens + engine.drafted) // page))
    return Amount(None, tokens, pages, int(tokens * WINDOW_RATIO) // page * page if windows else None, slots)


def joined_shares(shares: Sequence[Share], layers: int, drafted_layers: int) -> tuple[Share, ...]:
    """The same with a drafter's layers behind the last of the model's, on the devices that have it."""
    end = layers + drafted_layers
    return tuple(each._replace(layers=range(each.layers.start, end)) if each.layers.stop == layers else each for each in shares)
