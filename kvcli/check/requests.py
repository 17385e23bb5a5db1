"""A deployment becomes a plan's request: its settings in kvcli's units, the engine's rule, the split, the budget."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from kvcli import dtypes
from kvcli.check.deployment import Deployment, Setting
from kvcli.check.engines.settings import counts
from kvcli.check.kept import as_run, version_of
from kvcli.check.models import Models
from kvcli.check.nodes import Word
from kvcli.errors import BadInput
from kvcli.hardware.accelerators import Accelerator
from kvcli.model.spec import ModelSpec
from kvcli.plan.budget.options import BudgetOptions, Lora
from kvcli.plan.drafter import Speculation
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.checks import read_split
from kvcli.plan.sharing.offload import Offload
from kvcli.plan.sharing.split import Split
from kvcli.plan.speculative import speculate
from kvcli.plan.storage.policy import ENGINES, EngineOptions, StoragePolicy, policy
from kvcli.plan.weights import parse_weights
from kvcli.plan.workload import Workload

#: The first version of vLLM that counts its pool as kvcli's newer rule does.
VLLM_NEWER = (0, 21)
#: The first version of vLLM that takes prompts in chunks in any case; before, from so many tokens on; and its chunk.
VLLM_CHUNKS, WHOLE_PROMPTS, SMALLEST_CHUNK = (0, 8), 32768, 2048
#: Within this version it began to take long prompts in chunks (vllm-project/vllm#6666); older ones never did unasked.
VLLM_FIRST_CHUNKS = (0, 5)
#: rope types whose factor lengthens what vLLM and SGLang take for the model's context; by how much others do stands in the config
LENGTHENING = ("linear", "dynamic")


class Asked(NamedTuple):
    """One sequence of the longest context that the engine admits. `context_tokens` None: it lowers the length until it fits (`auto`)."""

    request: PlanRequest
    context_tokens: int | None
    assumed: tuple[str, ...]


def setting(deployment: Deployment, key: str) -> Setting | None:
    return deployment.settings.get(key)


def number(deployment: Deployment, key: str) -> int | None:
    """A whole number that is set, None where it is absent or a word (`auto`)."""
    found = deployment.settings.get(key)
    return found.value if found and isinstance(found.value, int) and not isinstance(found.value, bool) else None


def flag(deployment: Deployment, key: str) -> bool:
    found = deployment.settings.get(key)
    return bool(found and found.value is True)


def ask(deployment: Deployment, spec: ModelSpec, part: Accelerator | None, models: Models, weights: str = "", ideal: bool = False) -> Asked:
    """`ideal`: whatever the engine stores, count what none can do without.

    Raises what the settings contradict: BadInput for values and splits, NotModelled for what kvcli has no rule for."""
    assumed: list[str] = []
    tokens, auto = context_of(deployment, spec, assumed)
    rule = policy("ideal") if ideal else engine_of(deployment, tokens, assumed)
    typed = deployment.settings.get("weights")
    named = str(typed.value) if typed else weights
    kv = deployment.settings.get("kv_dtype")
    run = as_run(deployment, spec, assumed)
    request = PlanRequest(
        run.spec,
        Workload(tokens, 1),
        rule,
        kv=None if kv is None or str(kv.value) == "auto" else dtypes.parse_kv(str(kv.value)),
        weights=parse_weights(named) if named else run.weights,
        device=part,
        split=split_of(deployment),
        offload=_offload(deployment),
        speculation=_speculation(deployment, spec, models),
        budget=_budget(deployment, rule),
    )
    by_source: dict[str, list[str]] = {}
    for key, each in deployment.settings.items():
        if each.default:
            by_source.setdefault(each.said, []).append(f"{key} {each.value}")
    assumed += [f"{said}: {', '.join(found)}" for said, found in by_source.items()]
    return Asked(request, None if auto else tokens, tuple(assumed))


def engine_of(deployment: Deployment, context_tokens: int, assumed: list[str]) -> StoragePolicy:
    """The engine's storage rule, of the version nearest to the deployment's. What has none is held against what no engine does without."""
    name = deployment.engine
    if name not in ENGINES:
        assumed.append(f"{name} has no storage rule: what no engine can do without is counted")
        return policy("ideal")
    sequences, chunk = number(deployment, "slots"), prefill_chunk(deployment, context_tokens)
    shared = flag(deployment, "kv_unified") and name == "llama.cpp"
    return policy(
        name,
        EngineOptions(
            version=_rule_version(deployment, assumed),
            block_size=number(deployment, "block_tokens") if name in ("vllm", "trtllm") else None,
            page_size=number(deployment, "block_tokens") if name == "sglang" else None,
            ubatch=number(deployment, "ubatch") if name == "llama.cpp" else None,
            parallel=sequences if name in ("llama.cpp", "ollama") else None,
            kv_unified=shared,
            # then the longest sequence may take all of the one buffer
            shared_tokens=context_tokens if shared else None,
            swa_full=flag(deployment, "swa_full") and name == "llama.cpp",
            max_num_batched_tokens=chunk,
            drafted=drafted(deployment),
        ),
    )


def chunks_by_length(deployment: Deployment) -> bool:
    """Whether the prefill chunk depends on the longest context, so that a longer one may fit where a shorter does not."""
    if deployment.engine != "vllm" or deployment.settings.get("chunked_prefill") is not None:
        return False
    return VLLM_FIRST_CHUNKS <= version_of(deployment) < VLLM_CHUNKS


def may_take_whole(deployment: Deployment, context_tokens: int) -> bool:
    """Whether some releases of the version take a prompt of that length whole and others in chunks."""
    given = number(deployment, "max_batched_tokens")
    first = version_of(deployment) == VLLM_FIRST_CHUNKS
    return given is None and first and chunks_by_length(deployment) and context_tokens > WHOLE_PROMPTS


def prefill_chunk(deployment: Deployment, context_tokens: int) -> int | None:
    """Tokens of one pass; None for the engine's own choice. Without chunks a whole prompt must go through at once.

    vLLM from 0.5 to 0.7 goes without up to 32,768 tokens and from there on takes chunks (`EngineArgs.create_engine_config`).
    """
    given, chunked = number(deployment, "max_batched_tokens"), deployment.settings.get("chunked_prefill")
    if given is not None or deployment.engine != "vllm":
        return given
    if chunked is None and () < version_of(deployment) < VLLM_FIRST_CHUNKS:
        whole = True
    else:
        whole = chunked.value is False if chunked else chunks_by_length(deployment) and context_tokens <= WHOLE_PROMPTS
    return max(context_tokens, SMALLEST_CHUNK) if whole else SMALLEST_CHUNK if chunks_by_length(deployment) else None


def _rule_version(deployment: Deployment, assumed: list[str]) -> str | None:
    said = deployment.version.text if deployment.version else deployment.assumed_version
    if deployment.version is None and said:
        assumed.append(f"{deployment.engine} {said} is assumed: the image does not say its version")
    if deployment.engine != "vllm" or not said:
        return None
    return "0.9" if () < version_of(deployment) < VLLM_NEWER else None


def context_of(deployment: Deployment, spec: ModelSpec, assumed: list[str]) -> tuple[int, bool]:
    """The longest context that is admitted, and whether the engine may lower it."""
    given = deployment.settings.get("context_tokens")
    own = default_context(deployment, spec)
    if given is None:
        why = "the length that is set is not known" if "context_tokens" in deployment.unread else "no length is set"
        assumed.append(f"{why}: the model's own, {own:,} tokens")
        return own, False
    if isinstance(given.value, int):
        return given.value, False
    return own, True


def default_context(deployment: Deployment, spec: ModelSpec) -> int:
    """What an engine takes where no length is given: the trained positions, times a rope factor that vLLM and SGLang multiply with."""
    own = spec.max_context_tokens
    factor = deployment.settings.get("rope_factor")
    if factor is not None and not isinstance(factor.value, str):
        return int(own * float(factor.value))
    scaling = spec.decoder.rope.scaling if spec.decoder and spec.decoder.rope else None
    if scaling and scaling.kind in LENGTHENING and deployment.engine in ("vllm", "sglang") and "gemma3" not in spec.model_type:
        return int(own * scaling.factor)
    return own


def split_of(deployment: Deployment) -> Split:
    """The devices of one instance, replicas of it by data parallelism among them."""
    tensor, pipeline = number(deployment, "tensor_parallel") or 1, number(deployment, "pipeline_parallel") or 1
    data = number(deployment, "data_parallel") or 1
    inside = flag(deployment, "dp_attention")  # SGLang deals the tensor ranks among groups
    experts = deployment.settings.get("expert_parallel")
    replicas = 1 if inside else data
    spread = None
    if experts is not None and experts.value is True:
        spread = tensor * replicas
    elif experts is not None and isinstance(experts.value, int) and experts.value:
        spread = int(experts.value)
    total = tensor * pipeline * replicas
    return read_split(total, tensor, pipeline, spread, data if inside else None, number(deployment, "decode_context_parallel"))


def _offload(deployment: Deployment) -> Offload | None:
    layers, experts = number(deployment, "gpu_layers"), number(deployment, "cpu_moe_layers")
    if deployment.engine != "llama.cpp" or (layers is None and not experts):
        return None
    return Offload(layers, experts or 0)


def drafted(deployment: Deployment) -> int:
    found = deployment.settings.get("speculation")
    count = str(found.value).partition(":")[0] if found else ""
    return int(count) if counts(count) else 0


def _speculation(deployment: Deployment, spec: ModelSpec, models: Models) -> Speculation | None:
    found = deployment.settings.get("speculation")
    if found is None:
        return None
    count, what = drafted(deployment), str(found.value).partition(":")[2].strip()
    if what.lower() == "ngram":
        return speculate(spec, count, ngram=True)
    if not what or what.isdecimal():
        return speculate(spec, count, blocks=int(what) if what else None)
    drafter = models.find(Word(what, found.place or deployment.place))
    if drafter.spec is None:
        name = "its name" if drafter.why.startswith("the model ") else repr(what[:80])
        raise BadInput(
            f"the draft model: {drafter.why}",
            f"its config.json beside the capacity file, and models: {{ {name}: ITS FOLDER }}",
            "unknown_model",
        )
    return speculate(spec, count, draft=drafter.spec)


def _budget(deployment: Deployment, rule: StoragePolicy) -> BudgetOptions:
    share = deployment.settings.get("memory_fraction")
    pooled = rule.name in ("vllm", "sglang", "trtllm")
    adapters, rank = number(deployment, "lora_adapters"), number(deployment, "lora_rank")
    return BudgetOptions(
        utilization=Fraction(str(share.value)) if share and not isinstance(share.value, str) and pooled else None,
        graphs_bytes=0 if flag(deployment, "eager") else None,
        kv_memory_bytes=number(deployment, "kv_memory_bytes") if pooled else None,
        sequences=number(deployment, "max_sequences"),
        lora=Lora(adapters, rank or 16) if adapters else None,
    )
