"""What stands on a device beside weights and cache: activations, logits, context, graphs, buffers, slack, the engine's reserve.

What cannot be derived is a range that names its source; a value of the user takes its place. Low ends are bounds that add up to
a bound: memory that two needs may use one after the other is counted once. The ideal engine's low ends are 0, since it stands for
what no engine can do without.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli.dtypes import FP32
from kvcli.ledger import Basis, Formula, Line, Unit
from kvcli.model.cache_records import Attention
from kvcli.model.layers import LayerParameters
from kvcli.model.spec import ModelSpec
from kvcli.plan.budget.options import BudgetOptions
from kvcli.plan.budget.reserve import GIB, LLAMA_CPP_LEAVES, MIB

#: The largest activation peak that a start-up line printed, in bytes; the smallest was 0.32 GiB.
LARGEST_PEAK = int(9.37 * GIB)
PEAKS = "vLLM logs: 0.32 to 9.37 GiB"
#: Above every printed peak of a decoder with attention alone: so often the widest rows, and so many copies of the logits, which a
#: profile also samples from (8B: 2.99 GiB with 29,000 tokens and 9.37 with 131,072, where this says 3.7 and 13.5).
ROWS_AT_MOST, LOGITS_AT_MOST = 2, 8
SCALED = "above vLLM's logs, by width"
#: What was not torch's on one device, and with several, in bytes; what the CUDA context itself takes is not in the usable memory.
CONTEXT = (int(0.05 * GIB), int(0.47 * GIB))
CONTEXTS = "vLLM logs: 0.05 to 0.47 GiB"
LARGEST_LINKED = int(1.39 * GIB)
LINKED = "vLLM logs: at most 1.39 GiB"
#: Graphs of 4 x RTX 4090 in vllm issue 7553; others printed 0.04 to 0.96 GiB.
LARGEST_GRAPHS = 2464 * MIB
GRAPHS = "vLLM users: 0 to 2,464 MiB"
LARGEST_SLACK = int(1.83 * GIB)
SLACK = "users saw at most 1.83 GiB"
GGML = "llama.cpp: one batch in float32"


class Need(NamedTuple):
    """One line of the budget. `line.amount` is the low end, which is certain; `high_bytes` what it may become."""

    line: Line
    high_bytes: int

    @property
    def low_bytes(self) -> int:
        return int(self.line.amount)


class Pass(NamedTuple):
    """The largest forward pass: `chunk_tokens` of prompts at once, and logits of `sequences`. `ranks` share a layer's columns."""

    chunk_tokens: int
    sequences: int
    ranks: int = 1


def need(item: str, low: int, high: int, formula: Formula, basis: Basis, source: str = "") -> Need:
    return Need(Line(item, low, Unit.BYTES, formula, basis, source), max(low, high))


def widest_row(spec: ModelSpec, ranks: int) -> int:
    """Elements a token that one layer certainly holds at once, beside its input: projected heads, or the MLP's widest rows.

    From the counts of parameters: a matrix of hidden_size columns has count / hidden_size rows; two or three matrices of an MLP have
    at least half of that as inner rows. Routed experts may run one after another and count nothing.
    """
    most = 0
    for group in spec.groups:
        p = group.parameters
        most = max(most, (p.query + p.key_value) // spec.hidden_size, p.mlp // (2 * spec.hidden_size))
    return most // ranks


def activation_bytes(spec: ModelSpec, work: Pass) -> int:
    """A bound: the input of one layer and the widest rows within it, in 16 bits."""
    return 2 * work.chunk_tokens * (spec.hidden_size + widest_row(spec, work.ranks))


def activations_at_most_bytes(spec: ModelSpec, work: Pass) -> tuple[int, str]:
    """More than any log showed, by the rows and logits of the pass; and the source. Not for towers, latents and states: of these too few
    logs are known, and the largest peak of all stands for them."""
    experts = max((p.experts_per_token * (p.expert // spec.hidden_size + 2 * spec.hidden_size) for p in _parameters(spec)), default=0)
    rows = ROWS_AT_MOST * activation_bytes(spec, work) + 2 * work.chunk_tokens * experts // work.ranks
    scaled = rows + LOGITS_AT_MOST * logits_bytes(spec, work)
    towers = spec.tower_parameters or any(notice.code == "towers_not_counted" for notice in spec.notices)
    plain = all(isinstance(record, Attention) for group in spec.groups for record in group.records)
    return (scaled, SCALED) if plain and not towers else (max(LARGEST_PEAK, scaled), PEAKS)


def _parameters(spec: ModelSpec) -> tuple[LayerParameters, ...]:
    return tuple(group.parameters for group in spec.groups)


def logits_bytes(spec: ModelSpec, work: Pass) -> int:
    """float32, of all words on each device, of each sequence."""
    return FP32.bytes_for(work.sequences * spec.vocab_size)


def ggml_bytes(spec: ModelSpec, work: Pass, cells: int) -> int:
    """The most of llama.cpp's compute buffer with flash attention: logits, mask and rows of one batch in float32.

    Experts run at once, so each token has inner rows and an output of every one of its experts.
    """
    routed = (group.parameters for group in spec.groups if group.parameters.num_experts)
    experts = max((p.experts_per_token * (p.expert // spec.hidden_size + spec.hidden_size) for p in routed), default=0)
    rows = spec.vocab_size + spec.hidden_size + 4 * widest_row(spec, 1) + experts + cells
    return FP32.bytes_for(work.chunk_tokens * rows)


#: Needs that no plan changes.
GRAPHS_NEED = need("cuda_graphs", 0, LARGEST_GRAPHS, Formula("graphs_seen"), Basis.CONSTANT, GRAPHS)
LINKS_NEED = need("communication", 0, LARGEST_LINKED - CONTEXT[1], Formula("links_seen"), Basis.CONSTANT, LINKED)
SLACK_NEED = need("allocator_slack", 0, LARGEST_SLACK, Formula("slack_seen"), Basis.CONSTANT, SLACK)
CONTEXT_NEED = need("cuda_context", *CONTEXT, Formula("context_seen"), Basis.CONSTANT, CONTEXTS)
IDEAL_CONTEXT = need("cuda_context", 0, CONTEXT[1], Formula("context_seen"), Basis.CONSTANT, CONTEXTS)


def overheads(
    engine: str, spec: ModelSpec, work: Pass, devices: int, cells: int, options: BudgetOptions, cpu: bool = False
) -> tuple[Need, ...]:
    """All but the engine's reserve, in the order they are read. `cells` are the tokens of llama.cpp's mask."""
    # a CPU has no graphs; ggml's hold no memory of their own, and its buffers are allocated once
    ggml = cpu or engine in ("llama.cpp", "ollama")
    found = [*_passes(engine, spec, work, cells, options)]
    if options.graphs_bytes is not None:
        found.append(_of_user("cuda_graphs", options.graphs_bytes, "--graphs"))
    elif not ggml:
        found.append(GRAPHS_NEED)
    if options.reserve_bytes is not None:
        return (*found, _of_user("reserve", options.reserve_bytes, "--reserve"))
    if not cpu:
        found.append(IDEAL_CONTEXT if engine == "ideal" else CONTEXT_NEED)
    if devices > 1:
        found.append(LINKS_NEED)
    if not ggml:
        found.append(SLACK_NEED)
    return tuple(found)


def _passes(engine: str, spec: ModelSpec, work: Pass, cells: int, options: BudgetOptions) -> tuple[Need, ...]:
    """Activations and logits. The logits come after the layers and reuse their memory."""
    if options.activations_bytes is not None:
        return (_of_user("activations", options.activations_bytes, "--activations"),)
    layer, logits = activation_bytes(spec, work), logits_bytes(spec, work)
    widest = layer // (2 * work.chunk_tokens) - spec.hidden_size
    terms = (("tokens", work.chunk_tokens), ("hidden_size", spec.hidden_size), ("widest_row", widest), ("bytes", layer))
    formula = Formula("activations", terms)
    if engine in ("llama.cpp", "ollama"):
        return (need("activations", layer, ggml_bytes(spec, work, cells), formula, Basis.FORMULA, GGML),)
    counted = 0 if engine == "ideal" else 1
    most, source = activations_at_most_bytes(spec, work)
    beyond = Formula("logits", (("sequences", work.sequences), ("vocab_size", spec.vocab_size), ("bytes", logits)))
    return (
        need("activations", counted * layer, most, formula, Basis.FORMULA, source),
        need("logits", counted * max(0, logits - layer), logits, beyond, Basis.FORMULA),
    )


def _of_user(item: str, size: int, option: str) -> Need:
    return need(item, size, size, Formula("given", (("bytes", size),)), Basis.USER, option)


def reserve(engine: str, total: int, share: tuple[int, int] | None, needs: tuple[Need, ...], static: int) -> Need | None:
    """What the engine sets aside of `total` bytes; None where it sets nothing aside. `share` is numerator and denominator,
    `static` the bytes of weights and the like."""
    if engine in ("llama.cpp", "ollama"):
        left = Formula("fit_target", (("bytes", LLAMA_CPP_LEAVES),))
        return need("engine_reserve", LLAMA_CPP_LEAVES, LLAMA_CPP_LEAVES, left, Basis.ENGINE_RULE, "--fit leaves it")
    if share is None:
        return None
    above, below = share
    size = {each.line.item: each.low_bytes for each in needs}
    not_torch = sum(size.get(item, 0) for item in ("cuda_context", "communication", "reserve"))
    # of what is there before the model is loaded; of what is free after a forward pass
    taken = {"sglang": not_torch, "trtllm": static + not_torch + size.get("activations", 0) + size.get("logits", 0)}.get(engine, 0)
    base = max(0, total - taken)
    kept = base - base * above // below
    terms = (("base", base), ("share", above / below))
    return need("engine_reserve", kept, kept, Formula("engine_reserve", terms), Basis.ENGINE_RULE, f"{engine} takes {above / below:g}")


#: What lives in an engine's reserve, and so takes nothing of the rest: allocator slack beside vLLM's profile, and its graphs before
#: 0.21; in SGLang all that is not weights, cache or context.
IN_RESERVE: dict[tuple[str, str], tuple[str, ...]] = {
    ("vllm", "0.33"): ("allocator_slack",),
    ("vllm", "0.9"): ("cuda_graphs", "allocator_slack"),
    ("trtllm", "1"): ("cuda_graphs", "allocator_slack"),
    ("sglang", "0.5"): ("activations", "logits", "cuda_graphs", "allocator_slack"),
}


def beyond_reserve(engine: str, version: str, needs: tuple[Need, ...], kept: int) -> tuple[Need, ...]:
    """The needs, those that live in the reserve cut to what may not find room there."""
    inside = IN_RESERVE.get((engine, version), ())
    found, low_room, high_room = [], kept, kept
    for each in needs:
        if each.line.item in inside:
            low, high = max(0, each.low_bytes - low_room), max(0, each.high_bytes - high_room)
            low_room, high_room = max(0, low_room - each.low_bytes), max(0, high_room - each.high_bytes)
            source = f"{each.line.source}; beyond the reserve".removeprefix("; ")
            each = Need(each.line._replace(amount=low, source=source), high)
        found.append(each)
    return tuple(found)
