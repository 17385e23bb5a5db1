"""`--emit`: the launch line that realises a plan, in the words of vLLM, SGLang or llama.cpp.

Options are those of the versions whose storage rules kvcli assumes. What an engine has no option for is refused, not left out.
"""

from __future__ import annotations

import json
import shlex

from kvcli.errors import BadInput, NotModelled
from kvcli.model.presets import find
from kvcli.plan.plan import Plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.llama_cpp import AUTO_KV, TYPES

ENGINES = ("vllm", "sglang", "llama.cpp")
_KV = {
    "vllm": {"fp8": "fp8", "int8": "int8_per_token_head", "nvfp4": "nvfp4", "bf16": "bfloat16"},
    "sglang": {"fp8": "fp8_e4m3", "bf16": "bfloat16"},
}


def launch_line(engine: str, request: PlanRequest, plan: Plan) -> str:
    """One line for a shell. Raises BadInput where the plan is another engine's, NotModelled for what the engine has no option for."""
    if plan.cache.engine != engine:
        text = f"--emit {engine} cannot realise what {plan.cache.engine} stores"
        raise BadInput(text, hint=f"--engine {engine} --emit {engine}", code="emit_other_engine")
    if request.speculation is not None and engine == "llama.cpp" and request.speculation.drafter is None:
        raise NotModelled("kvcli knows no llama-server option for drafts from the text", hint="leave :ngram out", code="no_emit_rule")
    words = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp}[engine](request, plan)
    return shlex.join(words)


def model_name(plan: Plan) -> str:
    """The hub id of a preset, else what the user named."""
    preset = find(plan.spec.name)
    ids = preset.block.get("hub_ids", []) if preset else []
    source = plan.spec.source
    return str(ids[0]) if isinstance(ids, list) and ids else source.removeprefix("preset ")


def _weights(plan: Plan, request: PlanRequest, engine: str) -> list[str]:
    """Types that a server makes of 16-bit files as it loads them."""
    asked = getattr(request.weights, "name", None)
    if asked is None:
        return []
    if asked in ("bf16", "fp16", "fp32"):
        return ["--dtype", {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[asked]]
    if asked == "fp8":
        return ["--quantization", "fp8"]
    raise NotModelled(
        f"{engine} makes no {asked} weights as it loads: it needs a checkpoint in that type",
        hint="name that checkpoint as the model and leave --weights out",
        code="no_emit_rule",
    )


def _kv(plan: Plan, request: PlanRequest, engine: str) -> list[str]:
    """The cache's type where it is not the engine's own choice."""
    if plan.cache.kv == request.engine.auto_kv(plan.spec):
        return []
    name = _KV[engine].get(plan.cache.kv.key.name)
    if name is None:
        text = f"kvcli knows no {engine} option for a cache in {plan.cache.kv.label} beside {plan.spec.dtype.name} weights"
        raise NotModelled(text, hint="leave --kv-dtype out", code="no_emit_rule")
    return ["--kv-cache-dtype", name]


def _budget(request: PlanRequest, share: str, pool: str | None) -> list[str]:
    """What was said of memory; values that only replace an estimate of kvcli's are no options of an engine."""
    budget = request.budget
    if budget is None:
        return []
    words = [share, f"{float(budget.utilization):g}"] if budget.utilization is not None else []
    if budget.kv_memory_bytes is not None:
        if pool is None:
            raise NotModelled(f"{request.engine.name} takes no size of its pool in bytes", hint="use --utilization", code="no_emit_rule")
        words += [pool, str(budget.kv_memory_bytes)]
    if budget.lora is not None:
        if request.engine.name != "vllm":
            raise NotModelled("kvcli knows the options for adapters of vllm alone", hint="leave --lora out", code="no_emit_rule")
        words += ["--enable-lora", "--max-loras", str(budget.lora.slots), "--max-lora-rank", str(budget.lora.rank)]
    return words


def _sequences(request: PlanRequest, plan: Plan) -> str:
    asked = request.budget.sequences if request.budget else None
    return str(asked or plan.workload.batch_size)


def _vllm(request: PlanRequest, plan: Plan) -> list[str]:
    split, work = request.split, plan.workload
    words = ["vllm", "serve", model_name(plan), "--max-model-len", str(work.context_tokens), "--max-num-seqs", _sequences(request, plan)]
    words += _weights(plan, request, "vllm") + _kv(plan, request, "vllm")
    words += _budget(request, "--gpu-memory-utilization", "--kv-cache-memory-bytes")
    words += _degree("--tensor-parallel-size", split.tensor) + _degree("--pipeline-parallel-size", split.pipeline)
    words += _degree("--data-parallel-size", split.data) + _degree("--decode-context-parallel-size", split.context)
    if split.experts > 1:
        if split.experts != split.tensor * split.data:
            text = f"vllm spreads experts over all {split.tensor * split.data} ranks of a stage, not over {split.experts}"
            raise NotModelled(text, hint=f"--ep {split.tensor * split.data}", code="no_emit_rule")
        words.append("--enable-expert-parallel")
    given = _given(request, ("block_tokens", "block-size"), ("in_flight_tokens", "max-num-batched-tokens"))
    words += [f"--{name}={value}" for name, value in given]
    if request.speculation is not None:
        drafter, drafted = request.speculation.drafter, request.speculation.drafted
        own = request.speculation.own_blocks
        how = {"method": "ngram"} if drafter is None else {"method": "mtp"} if own else {"model": _drafter(plan)}
        words += ["--speculative-config", json.dumps({**how, "num_speculative_tokens": drafted})]
    return words


def _sglang(request: PlanRequest, plan: Plan) -> list[str]:
    split, work = request.split, plan.workload
    words = ["python", "-m", "sglang.launch_server", "--model-path", model_name(plan)]
    words += ["--context-length", str(work.context_tokens), "--max-running-requests", _sequences(request, plan)]
    words += _weights(plan, request, "sglang") + _kv(plan, request, "sglang") + _budget(request, "--mem-fraction-static", None)
    words += _degree("--tp-size", split.tensor) + _degree("--pp-size", split.pipeline) + _degree("--ep-size", split.experts)
    if split.attention_data > 1:
        words += ["--enable-dp-attention", "--dp-size", str(split.attention_data)]
    elif split.data > 1:
        words += ["--dp-size", str(split.data)]
    words += [f"--{name}={value}" for name, value in _given(request, ("page_tokens", "page-size"))]
    if request.speculation is not None:
        drafter, drafted = request.speculation.drafter, request.speculation.drafted
        if drafter is None:
            words += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(drafted)]
        else:
            algorithm = "NEXTN" if request.speculation.own_blocks else "STANDALONE"
            words += ["--speculative-algorithm", algorithm, "--speculative-num-steps", str(drafted), "--speculative-eagle-topk", "1"]
            words += ["--speculative-num-draft-tokens", str(drafted + 1)]
            words += [] if request.speculation.own_blocks else ["--speculative-draft-model-path", _drafter(plan)]
    return words


def _llama_cpp(request: PlanRequest, plan: Plan) -> list[str]:
    work, engine = plan.workload, request.engine
    slots = getattr(engine, "slots", None) or work.batch_size
    words = ["llama-server", "-m", _gguf(request, plan)]
    words += ["-c", str(work.context_tokens * slots), "-np", str(slots), "--fit", "off"]
    words += ["-kvu"] if getattr(engine, "unified", False) else []
    words += ["--swa-full"] if getattr(engine, "swa_full", False) else []
    ubatch = getattr(engine, "ubatch", 512)
    words += ["-ub", str(ubatch)] if ubatch != 512 else []
    words += ["-b", str(ubatch)] if ubatch > 2048 else []
    if plan.cache.kv != AUTO_KV:
        words += ["-ctk", TYPES[plan.cache.kv.key.name], "-ctv", TYPES[plan.cache.kv.value.name], "-fa", "on"]
    offload = request.offload
    words += ["-ngl", str(offload.layers)] if offload is not None and offload.layers is not None else []
    words += ["--n-cpu-moe", str(offload.moe_layers)] if offload is not None and offload.moe_layers else []
    if request.split.pipeline > 1:
        words += ["-sm", "layer", "-ts", ",".join("1" * request.split.pipeline)]
    if request.speculation is not None:
        words += ["--spec-type", "draft-mtp"] if request.speculation.own_blocks else ["-hfd", _drafter(plan)]
        words += ["--spec-draft-n-max", str(request.speculation.drafted)]
    return words


def _gguf(request: PlanRequest, plan: Plan) -> str:
    """The file planned, else the name that llama.cpp's converter would give it: llama-server loads GGUF files alone."""
    name = model_name(plan)
    if name.endswith(".gguf"):
        return name
    asked = request.weights.name if request.weights is not None else plan.spec.dtype.name
    kind = {"fp16": "F16", "fp32": "F32"}.get(asked, asked.upper())
    return f"{name.rpartition('/')[2]}-{kind}.gguf"


def _drafter(plan: Plan) -> str:
    drafter = plan.draft.speculation.drafter if plan.draft else None
    preset = find(drafter.name) if drafter else None
    ids = preset.block.get("hub_ids", []) if preset else []
    return str(ids[0]) if isinstance(ids, list) and ids else (drafter.source if drafter else "")


def _degree(option: str, degree: int) -> list[str]:
    return [option, str(degree)] if degree > 1 else []


def _given(request: PlanRequest, *names: tuple[str, str]) -> list[tuple[str, int]]:
    """(option, value) of the engine's own settings that the user gave."""
    return [(option, value) for field, option in names if (value := getattr(request.engine, field, None))]
