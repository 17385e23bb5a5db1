"""The budget of the fullest device: its contents, what stands beside them, and whether all of it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcli.errors import BadInput
from kvcli.ledger import Basis, Formula, Ledger, Line, Unit
from kvcli.model.cache_records import Attention
from kvcli.model.latent_records import Latent
from kvcli.model.state_records import Recurrent
from kvcli.plan.budget.extras import encoder_cache_line, lora_line
from kvcli.plan.budget.host import HostBudget, host_budget
from kvcli.plan.budget.options import DEFAULTS, BudgetOptions
from kvcli.plan.budget.overheads import Need, Pass, beyond_reserve, need, overheads, reserve
from kvcli.plan.budget.pool import KvPool, Question, Room, Share, joined_shares
from kvcli.plan.budget.reserve import Defaults, defaults, share
from kvcli.plan.lines import draft_lines, weights_line
from kvcli.plan.speculative import joined
from kvcli.plan.storage.vllm import Vllm
from kvcli.units import format_bytes

if TYPE_CHECKING:
    from fractions import Fraction

    from kvcli.dtypes import KvTypes
    from kvcli.plan.cache import CachePlan
    from kvcli.plan.drafter import DraftPlan
    from kvcli.plan.request import PlanRequest
    from kvcli.plan.sharing.shared import Place, Shared
    from kvcli.plan.weights import WeightBytes

#: No chunk of the ideal engine's prompts needs to be longer.
IDEAL_CHUNK = 8192
#: Engines whose cache is a pool that fills their share of memory.
POOLED = ("vllm", "sglang", "trtllm")


class MemoryPlan(NamedTuple):
    """The fullest device. `ledger` are its contents: weights, caches and what was asked for; `needs` what stands beside them.

    `total_bytes` are the contents and the low ends of the needs: what is certain. `fits` says whether that fits, and
    `headroom_bytes` what is left then, negative on a misfit. `high_bytes` are the contents and the high ends.
    """

    ledger: Ledger
    needs: tuple[Need, ...]
    total_bytes: int
    high_bytes: int
    usable_bytes: int
    usable_basis: str
    host: HostBudget | None
    question: Question

    @property
    def headroom_bytes(self) -> int:
        return self.usable_bytes - self.total_bytes

    @property
    def fits(self) -> bool:
        return self.headroom_bytes >= 0 and (self.host is None or self.host.fits is not False)

    @property
    def verdict(self) -> str:
        """`fits` even at the high ends, `fits_if` overheads stay under a limit, `does_not_fit` even at the low ends."""
        if not self.fits:
            return "does_not_fit"
        host = self.host
        high = self.high_bytes <= self.usable_bytes and (host is None or host.usable_bytes is None or host.high_bytes <= host.usable_bytes)
        return "fits" if high else "fits_if"

    @property
    def condition(self) -> str:
        """On what it depends whether all of it fits, in words; empty where nothing is open."""
        if self.verdict != "fits_if":
            return ""
        if self.high_bytes <= self.usable_bytes:
            return "the host's prompts leave room"
        return f"overheads stay under {format_bytes(self.overheads_at_most_bytes)}"

    @property
    def contents_bytes(self) -> int:
        return sum(int(line.amount) for line in self.ledger)

    @property
    def overheads_at_most_bytes(self) -> int:
        """What the needs that are ranges may take together."""
        certain = sum(each.low_bytes for each in self.needs if each.low_bytes == each.high_bytes)
        return self.usable_bytes - self.contents_bytes - certain

    @property
    def pool(self) -> KvPool | None:
        return self.question.answer()


def memory_on(
    request: PlanRequest, weights: WeightBytes, kv: KvTypes, cache: CachePlan, shared: Shared | None, draft: DraftPlan | None
) -> MemoryPlan | None:
    """None without a device, and for parts that are sold with any amount of memory.

    Raises BadInput for a share of memory, or a pool, of an engine that has none, NotModelled for adapters of unknown matrices.
    """
    device, options = request.device, request.budget or DEFAULTS
    if device is None or device.usable_bytes is None:
        return None
    engine, spec, split = request.engine, request.spec, request.split
    own = options.kv_memory_bytes
    if own is not None and engine.name not in POOLED:
        hint = "use it with --engine " + ", ".join(POOLED)
        raise BadInput(f"{engine.name} has no pool as --kv-memory says", hint=hint, code="unknown_engine_option")
    fullest = None if shared is None else shared.fullest
    layers = _layers(request, shared, fullest)
    contents = _contents(request, weights, cache, shared, draft)
    if options.lora is not None:
        contents += (lora_line(spec, options.lora, layers, split.tensor),)
    if options.encoder_cache_tokens is not None:
        contents += (encoder_cache_line(spec, options.encoder_cache_tokens),)
    part = share(engine.name, engine.version, device, split, options.utilization, _drafter(request))
    default = defaults(engine.name, device, split)
    work = largest_pass(request, default, options)
    needs = overheads(engine.name, spec, work, split.devices, _cells(request), options, device.kind == "cpu")
    static = sum(int(line.amount) for line in contents if line.item not in ("kv_cache", "recurrent_state", "draft_kv_cache"))
    stored = sum(int(line.amount) for line in contents) - static
    # a pool of given size is taken whatever the share says
    pair = part.as_integer_ratio() if part is not None and own is None else None
    kept = reserve(engine.name, device.usable_bytes, pair, needs, static)
    others = needs if kept is None else beyond_reserve(engine.name, engine.version, needs, kept.low_bytes)
    question = _question(request, kv, cache, shared, fullest, needs, part, static, default)
    beside = (*_admission(request, question, stored), *others, *(() if kept is None else (kept,)))
    held = stored + sum(each.low_bytes for each in beside if each.line.item == "admission")
    if own is not None and own >= held:
        contents += (_line("kv_pool_free", "pool_free", (("pool", own), ("stored", held)), own - held),)
    place = None if shared is None else shared.host
    if device.unified and place is not None:  # the host's memory is the device's own
        contents += (_line("host_part", "host_part", (("layers", place.layers), ("bytes", place.total_bytes)), place.total_bytes),)
        place = None
    low = sum(int(line.amount) for line in contents) + sum(each.low_bytes for each in beside)
    if own is not None and own < held:  # the pool cannot hold them, whatever the device has
        short = max(0, device.usable_bytes + held - own - low)
        contents += (_line("kv_pool_short", "pool_short", (("pool", own), ("stored", held)), short),)
    certain = sum(int(line.amount) for line in contents)
    total = certain + sum(each.low_bytes for each in beside)
    high = certain + sum(each.high_bytes for each in beside)
    host = host_budget(engine.name, place, options)
    return MemoryPlan(Ledger(contents), beside, total, high, device.usable_bytes, device.usable_basis, host, question)


def _line(item: str, formula: str, terms: tuple[tuple[str, int], ...], amount: int) -> Line:
    return Line(item, amount, Unit.BYTES, Formula(formula, terms), Basis.FORMULA if item == "host_part" else Basis.USER)


def _layers(request: PlanRequest, shared: Shared | None, fullest: Place | None) -> range:
    if shared is None or fullest is None:
        return range(len(request.spec.order))
    return shared.cache.ranks[shared.places.index(fullest)].rank.layers


def _contents(
    request: PlanRequest, weights: WeightBytes, cache: CachePlan, shared: Shared | None, draft: DraftPlan | None
) -> tuple[Line, ...]:
    """Weights, keys and values, states, and a drafter's of both."""
    spec = request.spec
    states = [isinstance(record, Recurrent) for group in spec.groups for record in group.records]
    if shared is None:
        sizes = [row.stored_bytes for row in cache.rows]
    else:
        sizes = list(shared.cache.ranks[shared.places.index(shared.fullest)].rows)
    line = weights_line(spec, weights, "weights", shared)
    added = () if draft is None else tuple(each for each in draft_lines(draft, shared) if each.amount or shared is None)
    basis = Basis.FORMULA if cache.engine == "ideal" else Basis.ENGINE_RULE
    found = [line]
    for item, wanted in (("kv_cache", False), ("recurrent_state", True)):
        rows = [(row.kind, size) for row, size, state in zip(cache.rows, sizes, states, strict=True) if state == wanted]
        if rows or not wanted:
            formula = Formula("sum_of_layers", tuple((f"{kind}_bytes", size) for kind, size in rows))
            found.append(Line(item, sum(size for _, size in rows), Unit.BYTES, formula, basis, cache.engine))
    return (*found, *added)


def largest_pass(request: PlanRequest, default: Defaults, options: BudgetOptions) -> Pass:
    """Tokens of the largest forward pass and its logits. Engines that start up with one reserve it whatever the workload is."""
    engine, workload, split = request.engine, request.workload, request.split
    asked = workload.batch_size * workload.prefill_tokens
    most = IDEAL_CHUNK if engine.name == "ideal" else getattr(getattr(engine, "server", engine), "ubatch", asked)
    chunk = getattr(engine, "in_flight_tokens", None) or default.chunk_tokens or min(asked, most)
    sequences = options.sequences or default.sequences or workload.batch_size
    if engine.name == "sglang":  # its graphs are captured up to so many, but logits of fewer may be asked
        sequences = min(sequences, workload.batch_size)
    return Pass(chunk, sequences, split.tensor)


def _admission(request: PlanRequest, question: Question, stored: int) -> tuple[Need, ...]:
    """What vLLM wants free for one request beyond what all sequences hold: it starts only if its pool admits one of the context.

    Windows hold a batch in flight beside them, states a copy; layers that keep every token need nothing more.
    """
    records = (record for group in request.spec.groups for record in group.records)
    if not isinstance(request.engine, Vllm) or all(isinstance(record, Attention | Latent) and not _forgets(record) for record in records):
        return ()
    more = max(0, question.admission_bytes() - stored)
    terms = (("admission", stored + more), ("stored", stored))
    return (need("admission", more, more, Formula("admission", terms), Basis.ENGINE_RULE, "vllm"),) if more else ()


def _forgets(record: Attention | Latent) -> bool:
    return record.window_tokens is not None or getattr(record, "chunk_tokens", None) is not None


def _cells(request: PlanRequest) -> int:
    return request.workload.context_tokens * request.workload.batch_size


def _drafter(request: PlanRequest) -> str:
    speculation = request.speculation
    if speculation is None:
        return ""
    return "ngram" if speculation.drafter is None else "blocks" if speculation.own_blocks else "model"


def _question(
    request: PlanRequest,
    kv: KvTypes,
    cache: CachePlan,
    shared: Shared | None,
    fullest: Place | None,
    needs: tuple[Need, ...],
    part: Fraction | None,
    static: int,
    default: Defaults,
) -> Question:
    """What its pool depends on. On other devices than the fullest, weights alone differ."""
    spec, split, options = request.spec, request.split, request.budget or DEFAULTS
    layers = len(spec.order)
    if shared is None or fullest is None:
        kinds = [(range(layers), request.workload.context_tokens, 0)]
        stored: tuple[int, ...] = (cache.stored_bytes,)
    else:
        pairs = [(rank.rank, each) for rank, each in zip(shared.cache.ranks, shared.places, strict=True) if not each.host]
        most = fullest.weights_bytes + fullest.draft.weights
        kinds = [(rank.layers, rank.tokens, each.weights_bytes + each.draft.weights - most) for rank, each in pairs if rank.tokens]
        stored = tuple(each.stored_bytes + each.draft.stored for _, each in pairs for _ in range(each.devices))
    total = (request.device.usable_bytes or 0) if request.device else 0
    shares = tuple(Share(own, split.attention_ranks, tokens, static + more) for own, tokens, more in kinds)
    drafter = request.speculation.drafter if request.speculation else None
    if drafter is not None:
        spec, shares = joined(spec, drafter), joined_shares(shares, layers, len(drafter.order))
    room = Room(request.engine.name, request.engine.version, total, part, needs, options.kv_memory_bytes)
    return Question(request.engine, spec, request.workload, kv, split, shares, room, default.chunk_tokens, stored)
