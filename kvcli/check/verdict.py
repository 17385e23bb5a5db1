"""Verdicts: what the rules said of each target on each device. Reports print them; nothing here prints."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcli.check.nodes import Place

Level = Literal["error", "warning", "note", "skipped", "passed"]
#: the worst first
LEVELS: tuple[Level, ...] = ("error", "warning", "note", "skipped", "passed")

#: id -> (name in kebab case, one sentence). Ids never change their meaning.
RULES: dict[str, tuple[str, str]] = {
    "KV001": ("does-not-fit", "The weights and one request of the longest admitted length must fit the devices."),
    "KV002": ("headroom-under-threshold", "The memory that stays free must not fall under the threshold."),
    "KV003": ("context-beyond-trained", "The admitted length must not exceed the positions the model was trained for."),
    "KV004": ("split-does-not-divide", "The parallel split must divide the model's heads; copies of KV heads are memory without use."),
    "KV005": ("ttft-out-of-reach", "The floor of the prefill must not exceed the limit on the time to the first token."),
    "KV006": ("tpot-out-of-reach", "The floor of a decode step must not exceed the limit on the time per output token."),
    "KV007": ("too-few-sequences", "The devices must hold the sequences asked for at their p99 context."),
    "KV008": ("unknown-device", "The device must be a part kvcli knows."),
    "KV009": ("unknown-model", "The model must be one kvcli can read."),
    "KV010": ("kv-dtype-unsupported", "The engine and the device must support the type of the cache."),
    "KV011": ("memory-fraction", "The engine's share of memory must leave room for what it does not count."),
    "KV012": ("worse-than-baseline", "Memory, floors and cost must not be worse than those of the baseline."),
    "KV013": (
        "format-without-units",
        "A part without units for fp8 or fp4 multiplies such weights in 16 bit; without bf16 vLLM refuses it, and so it does some methods.",
    ),
    "KV014": ("gpu-request", "The number of GPUs requested must be the number the engine uses."),
    "KV015": ("cost-over-limit", "The cost per million tokens must not exceed the limit."),
    "KV016": ("not-understood", "What the verdict depends on must be literal and known to kvcli, and what the engine takes."),
}


class Waiver(NamedTuple):
    """`expires` as the file says it, an ISO date."""

    reason: str
    expires: str


class Outcome(NamedTuple):
    """What one rule said. `message`: what is wrong, one sentence. `formula`: the equation with its numbers. `fix`: the smallest change
    that passes, already checked. Each is one line of text, '' where there is nothing to say. A waived error has level `note`."""

    rule: str
    level: Level
    message: str
    place: Place
    formula: str = ""
    fix: str = ""
    waiver: Waiver | None = None


class Measures(NamedTuple):
    """Numbers of a target on a device, None where not known. Bytes are of the fullest device, the low end where there is a range."""

    memory_bytes: int | None = None
    usable_bytes: int | None = None
    sequences: int | None = None
    ttft_floor_s: float | None = None
    tpot_floor_s: float | None = None
    cost_per_mtok: float | None = None


class Cell(NamedTuple):
    """A target on one device of the fleet. `device` is the fleet's name for it, or the part's. `before`: the baseline's numbers, None
    where it has none. `known`: rules and levels that the baseline already holds. `assumed`: defaults that were taken, one sentence each.
    `memory_of`: whose memory `measures` has, where it is more than KV001's one request."""

    target: str
    device: str
    place: Place
    outcomes: tuple[Outcome, ...]
    measures: Measures = Measures()
    before: Measures | None = None
    known: tuple[tuple[str, str], ...] = ()
    assumed: tuple[str, ...] = ()
    memory_of: str = ""

    @property
    def verdict(self) -> Literal["fail", "warn", "pass"]:
        levels = {each.level for each in self.outcomes}
        return "fail" if "error" in levels else "warn" if "warning" in levels else "pass"


class Report(NamedTuple):
    """All cells in the order of the files. `against`: the baseline's path where one was given; `vanished`: (target, device) that it
    holds and this run has not; `passed_over`: a sentence for each file of a folder that could not be read and starts no engine."""

    cells: tuple[Cell, ...]
    against: str | None = None
    vanished: tuple[tuple[str, str], ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(cell.verdict != "fail" for cell in self.cells)
