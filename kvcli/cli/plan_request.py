"""What the options of `kvcli plan` mean: words to the types of a plan's request."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from kvcli.errors import BadInput, KvcliError, Notice, NotModelled
from kvcli.model.resolve import resolve
from kvcli.model.spec import ModelSpec
from kvcli.plan.build import build
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.split import ALONE, Split
from kvcli.units import parse_count, parse_counts, parse_rate, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from kvcli.hardware.accelerators import Accelerator
    from kvcli.model.hub.access import HubAccess
    from kvcli.plan.budget.options import BudgetOptions
    from kvcli.plan.drafter import Speculation
    from kvcli.plan.sharing.offload import Offload


def count(text: str | None, option: str) -> int | None:
    return None if text is None else parse_count(text, option)


#: what `--sweep` runs over
AXES = ("ctx", "batch", "device", "kv-dtype", "tp")


def sweep_of(asked: list[str] | None, given: dict[str, object]) -> dict[str, list[str]]:
    """Axis -> values, of one or two `AXIS=VALUES`. Raises BadInput for others, and for an axis that its own option also gives."""
    found: dict[str, list[str]] = {}
    for text in asked or ():
        axis, equals, values = text.partition("=")
        axis = axis.strip()
        if axis not in AXES or not equals or not values.strip():
            hint = "--sweep ctx=4k..128k*2, with one of " + ", ".join(AXES)
            raise BadInput(f"--sweep {text[:60]!r} is no axis with its values", hint=hint, code="bad_sweep")
        if axis in found or given.get(axis) is not None:
            raise BadInput(f"{axis} is given twice", hint=f"leave --{axis} out, or sweep it once", code="bad_sweep")
        found[axis] = [each.strip() for each in values.split(",")]
    if len(found) > 2:
        raise BadInput(f"--sweep runs over two axes at most, not {len(found)}", hint="leave one out", code="bad_sweep")
    if "tp" in found:
        found["tp"] = [str(each) for each in parse_counts(",".join(found["tp"]), "--sweep tp")]
    return found


class Failed(NamedTuple):
    """A point of a sweep that cannot be planned, and why."""

    request: PlanRequest
    error: KvcliError


def progress_of(requests: list[PlanRequest]) -> AbstractContextManager[Callable[[], None]]:
    """A step for each request, counted on a terminal; one request, or a log, costs nothing."""
    if len(requests) < 2 or not sys.stderr.isatty():
        return nullcontext(lambda: None)
    from kvcli.report.progress import counting

    return counting(len(requests), "planned")


def built(requests: list[PlanRequest], sweeping: bool) -> tuple[list[Plan], list[Failed]]:
    """All plans. Points of a sweep that contradict the model (a tp that does not divide) fail alone, unless all do."""
    plans: list[Plan] = []
    failed: list[Failed] = []
    with progress_of(requests) as step:
        for request in requests:
            try:
                plans.append(build(request))
            except (BadInput, NotModelled) as error:
                failed.append(Failed(request, error))
                if not sweeping:
                    raise
            step()
    if not plans:
        raise failed[0].error
    return plans, failed


def split_of(devices: str | None, tp: str | None, pp: str | None, ep: str | None, dp_attention: str | None, dcp: str | None) -> Split:
    if (devices, tp, pp, ep, dp_attention, dcp) == (None,) * 6:
        return ALONE
    from kvcli.plan.sharing.checks import read_split

    groups = 0 if dp_attention == "all" else count(dp_attention, "--dp-attention")
    return read_split(count(devices, "--devices"), count(tp, "--tp"), count(pp, "--pp"), count(ep, "--ep"), groups, count(dcp, "--dcp"))


def budget_of(
    utilization: str | None,
    activations: str | None,
    graphs: str | None,
    reserve: str | None,
    kv_memory: str | None,
    max_num_seqs: str | None,
    lora: str | None,
    encoder_cache: str | None,
    host_memory: str | None,
    cache_ram: str | None,
    parts: list[Accelerator | None],
) -> BudgetOptions | None:
    """None where nothing was said. Raises BadInput for a budget without a device."""
    sizes = (activations, graphs, reserve, kv_memory)
    if (*sizes, utilization, max_num_seqs, lora, encoder_cache, host_memory, cache_ram) == (None,) * 10:
        return None
    from kvcli.plan.budget.options import read_budget

    if None in parts:
        raise BadInput("a memory budget needs a device", hint="name a part, as in --device h100-sxm5-80", code="budget_without_device")
    sequences, tokens = count(max_num_seqs, "--max-num-seqs"), count(encoder_cache, "--encoder-cache")
    return read_budget(utilization, *sizes, sequences, lora, tokens, host_memory, cache_ram)


def offload_of(ngl: str | None, n_cpu_moe: str | None) -> Offload | None:
    if ngl is None and n_cpu_moe is None:
        return None
    from kvcli.plan.sharing.offload import Offload

    return Offload(layers_of(ngl, "--ngl"), layers_of(n_cpu_moe, "--n-cpu-moe") or 0)


def speculation_of(spec: ModelSpec, text: str | None, drafted: int, hub: HubAccess) -> Speculation | None:
    if text is None:
        return None
    from kvcli.plan.speculative import speculate

    what = text.partition(":")[2].strip()
    if what and not what.isdecimal() and what.lower() != "ngram":
        return speculate(spec, drafted, draft=resolve(what, None, hub))
    return speculate(spec, drafted, blocks=int(what[:9]) if what.isdecimal() else None, ngram=what.lower() == "ngram")


def layers_of(text: str | None, option: str) -> int | None:
    """A number of layers, which may be 0."""
    return 0 if text is not None and text.strip() == "0" else count(text, option)


def devices_of(
    asked: list[str] | None,
    look: bool,
    mig: str | None = None,
    file: str | None = None,
    bandwidth: str | None = None,
    memory: str | None = None,
) -> tuple[list[Accelerator | None], list[Notice]]:
    """The parts to plan for. Without a name, people get the GPU of this machine; documents never depend on it.

    `file` has a user's own parts, all of which are meant where none is named; `bandwidth` and `memory` replace what a part has, or
    are all that is known of one; `mig` takes a slice of each.
    """
    if asked or file or bandwidth or memory or mig:
        return _named_devices(asked or [], mig, file, bandwidth, memory), []
    if look:
        from kvcli.hardware.local import local_gpus

        gpus = local_gpus()
        if gpus and gpus[0].part:
            return [gpus[0].part], [
                Notice("local_device", f"this machine's GPU, {gpus[0].driver_name}, was taken; name others with --device")
            ]
        if gpus:
            return [None], [Notice("unknown_device", f"this machine's GPU, {gpus[0].driver_name}, is not in the table of parts")]
    return [None], []


def _named_devices(
    asked: list[str], mig: str | None, file: str | None, bandwidth: str | None, memory: str | None
) -> list[Accelerator | None]:
    own: tuple[Accelerator, ...] = ()
    if file:
        from kvcli.hardware.user_parts import read

        own = read(file)
    parts = [device_of(name, own) for name in asked] or list(own)
    if mig is not None:
        from kvcli.hardware.mig import instance

        if not parts:
            raise BadInput("--mig takes a slice of a device, and none is named", hint="--device a100-sxm4-80 --mig 3g.40gb", code="usage")
        parts = [instance(part, mig) for part in parts]
    if bandwidth is not None or memory is not None:
        from kvcli.hardware.user_parts import custom, override

        rate = None if bandwidth is None else parse_rate(bandwidth, "--bandwidth")
        size = None if memory is None else parse_size(memory, "--memory")
        parts = [override(part, rate, size) for part in parts] or [custom(rate, size)]
    return [*parts]


def device_of(name: str, own: tuple[Accelerator, ...] = ()) -> Accelerator:
    """One part: `local`, `cpu`, a user's own, or one of the table by id or driver name. Raises BadInput and CannotRunHere."""
    wanted = name.strip().lower()
    if wanted == "local":
        from kvcli.hardware.local import local_part

        return local_part()
    if wanted == "cpu":
        from kvcli.hardware.machine import cpu_part

        return cpu_part()
    from kvcli.hardware.match import find

    return find(name, own)


def contexts_of(spec: ModelSpec, asked: str | None, column: bool, prompt_tokens: int = 0) -> list[int]:
    """The contexts asked for; without any the trained maximum, and for people a column of lengths up to it, from the prompt's on."""
    if asked is not None:
        return parse_counts(asked, "--ctx")
    longest = max(spec.max_context_tokens, prompt_tokens)
    if not column:
        return [longest]
    lengths = [prompt_tokens] if 0 < prompt_tokens < longest else []
    length = 1024
    while length < longest:
        if length > prompt_tokens:
            lengths.append(length)
        length *= 4 if longest > 65536 else 2
    return [*lengths, longest]
