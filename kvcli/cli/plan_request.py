"""What the options of `kvcli plan` mean: words to the types of a plan's request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcli.errors import BadInput, Notice
from kvcli.model.resolve import resolve
from kvcli.model.spec import ModelSpec
from kvcli.plan.sharing.split import ALONE, Split
from kvcli.units import parse_count, parse_counts

if TYPE_CHECKING:
    from kvcli.hardware.accelerators import Accelerator
    from kvcli.model.hub_access import HubAccess
    from kvcli.plan.budget.options import BudgetOptions
    from kvcli.plan.sharing.offload import Offload
    from kvcli.plan.speculative import Speculation


def count(text: str | None, option: str) -> int | None:
    return None if text is None else parse_count(text, option)


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
    if what and not what.isdigit() and what.lower() != "ngram":
        return speculate(spec, drafted, draft=resolve(what, None, hub))
    return speculate(spec, drafted, blocks=int(what[:9]) if what.isdigit() else None, ngram=what.lower() == "ngram")


def layers_of(text: str | None, option: str) -> int | None:
    """A number of layers, which may be 0."""
    return 0 if text is not None and text.strip() == "0" else count(text, option)


def devices_of(asked: list[str] | None, look: bool) -> tuple[list[Accelerator | None], list[Notice]]:
    """The parts to plan for. Without a name, people get the GPU of this machine; documents never depend on it."""
    if asked:
        from kvcli.hardware.accelerators import find
        from kvcli.hardware.local import local_part

        return [local_part() if name.strip().lower() == "local" else find(name) for name in asked], []
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


def contexts_of(spec: ModelSpec, asked: str | None, column: bool) -> list[int]:
    """The contexts asked for; without any the trained maximum, and for people a column of lengths up to it."""
    if asked is not None:
        return parse_counts(asked, "--ctx")
    longest = spec.max_context_tokens
    if not column:
        return [longest]
    lengths = []
    length = 1024
    while length < longest:
        lengths.append(length)
        length *= 4 if longest > 65536 else 2
    return [*lengths, longest]
