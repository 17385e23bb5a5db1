"""What KV001 says of an engine that admits no request of the longest length: pools of a set size, and TGI's check at its start."""

from __future__ import annotations

from kvcli.check.case import Case
from kvcli.check.deployment import Deployment
from kvcli.check.kept import version_of
from kvcli.check.pool import pool_tokens, refuses_small
from kvcli.check.verdict import Outcome
from kvcli.check.words import spelled

#: Models whose attention TGI runs in pages on cards from Ampere on: then its router does not start with a --max-total-tokens
#: beyond what the profile found room for (`NotEnoughMemory`, backends/v3/src/lib.rs of 3.x). With others it takes what it is told.
TGI_PAGED = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "gemma",
    "gemma2",
    "phi3",
    "starcoder2",
    "cohere",
    "granite",
    "deepseek_v2",
    "deepseek_v3",
)


#: Versions of vLLM of which every engine checks the memory and then takes the blocks that it is told (`may_override_num_blocks`); before,
#: the first engine refused, and newer ones count what they check in these blocks.
STARTS_SMALL = tuple((0, minor) for minor in range(11, 16))


def small_pool(case: Case, tokens: int) -> Outcome:
    """The size of the pool that the deployment sets, not the memory, is what has no room."""
    said, size = size_said(case), pool_tokens(case) or 0
    message = f"{said}: the pool of {size:,} tokens does not hold one request of {tokens:,}"
    certain = refuses_small(case)
    message += f", and {case.deployment.engine} does not start" if certain else _starts(case, size)
    fix = f"{spelled(case, 'context_tokens', size)}, or leave {said} out"
    return Outcome("KV001", "error" if certain else "warning", message, case.place("kv_tokens"), f"{size:,} < {tokens:,}", fix)


def _starts(case: Case, size: int) -> str:
    deployment = case.deployment
    late = f"requests of more than {size:,} never finish"
    if deployment.engine != "vllm":
        return f": {late}"
    if deployment.version is not None and version_of(deployment) in STARTS_SMALL:
        return f": vllm starts, and {late}"
    return f": vllm may start, and {late} then; its first engine and its newest versions do not start"


def size_said(case: Case) -> str:
    found = case.setting("kv_tokens")
    return found.said.partition(" x ")[0] if found else ""


def tgi_refuses(case: Case) -> bool:
    """Whether TGI was told a length that it checks at its start."""
    length, spec, part = case.setting("context_tokens"), case.found.spec, case.part
    told = length is not None and not length.default and isinstance(length.value, int)
    if case.deployment.engine != "tgi" or not told or spec is None or part is None:
        return False
    return spec.model_type in TGI_PAGED and part.vendor == "NVIDIA" and part.peak("bf16") > 0


def beside_others(case: Case, crowded: tuple[str, str], softened: bool) -> Outcome:
    """Each would fit alone. Fails where neither can leave anything in the host's memory, or start with less."""
    cases = [case.deployment, *case.deployment.beside]
    certain = all(each.engine == "vllm" and not _spared(each) for each in cases) and not softened
    message, formula = crowded
    end = ": one of them does not start" if certain else ""
    fix = "devices of its own: CUDA_VISIBLE_DEVICES before each command, or a container each"
    return Outcome("KV001", "error" if certain else "warning", f"{message}{end}", case.place("context_tokens"), formula, fix)


def _spared(deployment: Deployment) -> bool:
    length = deployment.settings.get("context_tokens")
    spared = "weights_offload_bytes" in deployment.settings or "sleep_mode" in deployment.settings
    return spared or (length is not None and isinstance(length.value, str))


def shares_beside(case: Case, share: float) -> Outcome | None:
    """KV011 of several engines that count the whole of one device each. Which of them then finds too little depends on their order."""
    beside = [(each.container, each.settings.get("memory_fraction")) for each in case.deployment.beside]
    known = [(name, float(each.value)) for name, each in beside if each is not None and not isinstance(each.value, str)]
    total = share + sum(value for _, value in known)
    if not known or total <= 1:
        return None
    names = ", ".join(f"{name} takes {value:g}" for name, value in known)
    terms = " + ".join(f"{value:g}" for value in (share, *(value for _, value in known)))
    message = f"{case.deployment.engine} takes {share:g} of the device, and {names} of the same one: what starts last may find too little"
    fix = spelled(case, "memory_fraction", int(95 / (1 + len(known))) / 100)
    return Outcome("KV011", "warning", message, case.place("memory_fraction"), f"{terms} = {total:g} > 1", fix)
