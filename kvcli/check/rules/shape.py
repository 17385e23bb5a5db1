"""KV003, KV004, KV010, KV013, KV014: lengths, splits, types and devices that contradict the model, the engine or each other."""

from __future__ import annotations

from kvcli.check import fixes
from kvcli.check.case import Case, passed, skipped
from kvcli.check.kept import compute_type, version_of
from kvcli.check.lengths import may_fit
from kvcli.check.manifests.workspace import BY_OPERATOR
from kvcli.check.requests import default_context, number, split_of
from kvcli.check.rules.methods import refused_method
from kvcli.check.splits import NODE
from kvcli.check.verdict import Outcome
from kvcli.check.words import are, in_words, spelled
from kvcli.dtypes import BF16
from kvcli.errors import BadInput, KvcliError
from kvcli.hardware.accelerators import Accelerator
from kvcli.hardware.mig import is_slice
from kvcli.model.latent_records import Latent
from kvcli.model.spec import ModelSpec
from kvcli.units import format_bytes, plural

#: Engines that do not start with more than the model's positions; others only warn.
REFUSE_LONGER = ("vllm", "sglang")
SPLIT_CODES = ("split_does_not_divide", "split_contradicts", "too_many_devices")
#: weight types -> the multiply unit they are made for
UNITS = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
#: Engines that run a process a rank, each on the device of its number.
RANKS = ("vllm", "sglang", "tgi", "trtllm")
#: Versions of vLLM before this one never chose fp16 for a file in bf16 by themselves.
VLLM_FALLS_BACK = (0, 8)
#: Models that vLLM refuses to run in fp16 (`_FLOAT16_NOT_SUPPORTED_MODELS`).
NEED_BF16 = ("gemma2", "gemma3", "glm4", "plamo2")


def beyond_trained(case: Case) -> Outcome:
    """KV003."""
    spec, given = case.found.spec, case.setting("context_tokens")
    if spec is None:
        return skipped("KV003", case, "the model is not known")
    own, place = default_context(case.deployment, spec), case.place("context_tokens")
    admitted = given.value if given is not None and isinstance(given.value, int) else own
    if admitted > own:
        allowed = case.setting("longer_allowed")
        refuses = f", and {case.deployment.engine} does not start" if case.deployment.engine in REFUSE_LONGER else ""
        message = f"{plural(admitted, 'token')} are more than the {own:,} positions that {spec.name} was trained for"
        if refuses and allowed is not None and allowed.value:
            message += f", as {allowed.said} allows"
            return Outcome("KV003", "warning", message, place, f"{admitted:,} > {own:,}", _length(case, own))
        message += refuses
        formula = f"{admitted:,} > {own:,}"
        return Outcome("KV003", "error" if refuses else "warning", message, place, formula, _length(case, own))
    p99 = case.load.context_p99
    if p99 and p99 > admitted:
        message = f"requests of the p99 length, {plural(p99, 'token')}, are longer than the {admitted:,} the engine admits"
        longer = case.changed(context_tokens=p99).plan if p99 <= own else None
        fits = longer is not None and (longer.memory is None or may_fit(longer))
        fix = spelled(case, "context_tokens", p99) if fits else ""
        return Outcome("KV003", "warning", message, place, f"{p99:,} > {admitted:,}", fix)
    return passed("KV003", case)


def _length(case: Case, most: int) -> str:
    """The longest that is no more than `most` and that memory holds too, so that KV001 proposes no other."""
    if case.plan is None or case.plan.memory is None or fixes.surely_fits(case.plan):
        return spelled(case, "context_tokens", most)
    sure = fixes.longest_context(case, fixes.surely_fits) or fixes.longest_context(case, fixes.may_fit)
    return spelled(case, "context_tokens", min(most, sure or most))


def split(case: Case) -> Outcome:
    """KV004. Fails where the engine refuses the split, warns of KV heads that are held more than once."""
    place = case.place("tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel")
    if case.error is not None and case.error.code in SPLIT_CODES:
        message, fix = in_words(case, case.error.message), in_words(case, case.error.hint)
        if any(each.code == BY_OPERATOR for each in case.deployment.problems):
            return Outcome("KV004", "warning", message, place, fix=fix)
        return Outcome("KV004", "error", message, place, fix=fix)
    plan = case.plan
    if plan is None:
        return skipped("KV004", case, case.error.message if case.error else "the model is not known")
    copies = sum(size for _, size in plan.shared.cache_copies) if plan.shared else 0
    if not copies:
        return passed("KV004", case)
    ranks = plan.shared.split.attention_ranks if plan.shared else 1
    once = plan.cache.stored_bytes - copies
    latent = any(isinstance(record, Latent) for group in plan.spec.groups for record in group.records)
    held = "each hold all latent rows" if latent else "hold KV heads more than once"
    message = f"{ranks} ranks {held}: {format_bytes(copies)} of the cache are copies"
    formula = f"stored {plan.cache.stored_bytes:,} B = once {once:,} B + copies {copies:,} B"
    return Outcome("KV004", "warning", message, place, formula)


def of_cache_type(error: KvcliError) -> bool:
    """Whether it is the cache's type that cannot be planned; a type of the weights is told from a file's name, and refuses nothing."""
    return error.code == "unsupported_kv_dtype" or (error.code == "unknown_dtype" and "--weights" not in error.message)


def kv_dtype(case: Case) -> Outcome:
    """KV010."""
    place = case.place("kv_dtype")
    if case.error is not None and of_cache_type(case.error):
        return Outcome("KV010", "error", case.error.message, place, fix=_hint(case))
    plan, part = case.plan, case.part
    if plan is None or part is None:
        return skipped("KV010", case, case.error.message if case.error else "the model or the device is not known")
    name = plan.cache.kv.key.name
    unit = UNITS.get(name)
    if unit and part.peak_flops and not part.peak(unit):
        message = f"{part.id} has no {unit} units: keys and values kept in {name} are converted before they are multiplied"
        return Outcome("KV010", "warning", message, place)
    return passed("KV010", case)


def _hint(case: Case) -> str:
    hint = case.error.hint if case.error else ""
    wanted = hint.removeprefix("--kv-dtype ").strip()
    return spelled(case, "kv_dtype", wanted) if hint.startswith("--kv-dtype ") and " " not in wanted else hint


def format_without_units(case: Case) -> Outcome:
    """KV013. Narrow weights are kept so and multiplied in 16 bit: they fit, but are not faster than their bytes. vLLM does not start with
    bf16 on cards without it."""
    spec, part = case.found.spec, case.part
    if spec is not None and part is not None and _refuses_bf16(case, spec, part):
        message = f"vllm does not start in bfloat16 on {part.id}, which has no units for it"
        fix = "" if spec.model_type.startswith(NEED_BF16) else spelled(case, "dtype", "half")
        return Outcome("KV013", "error", message, case.place("dtype"), fix=fix)
    if part is not None and (refused := refused_method(case, part)) is not None:
        return refused
    if spec is None or part is None or case.plan is None:
        return skipped("KV013", case, "the model or the device is not known")
    kind = case.plan.weights.dtype
    unit = next((unit for name, unit in UNITS.items() if kind.startswith(name)), None)
    if unit is None or not part.peak_flops or part.peak(unit):
        return passed("KV013", case)
    message = f"{part.id} has no {unit} units: {kind} weights are multiplied in 16 bit, so they save memory and no arithmetic"
    return Outcome("KV013", "warning", message, case.place("weights"))


def _refuses_bf16(case: Case, spec: ModelSpec, part: Accelerator) -> bool:
    """vLLM wants compute capability 8.0 (`check_if_supports_dtype`); where no type is said, 0.9 and later take fp16 on older cards."""
    if case.deployment.engine != "vllm" or part.vendor != "NVIDIA" or part.peak("bf16") or not part.peak("fp16"):
        return False
    said, version = case.setting("dtype"), case.deployment.version
    unsaid = said is None or said.value == "auto"
    if unsaid and (version is None or not () < version_of(case.deployment) < VLLM_FALLS_BACK):
        return False
    return compute_type(case.deployment, spec) == BF16


def gpu_request(case: Case) -> Outcome:
    """KV014. Fails where fewer devices are asked for than the engine uses, warns where some stay idle."""
    gpus, deployment = case.deployment.gpus, case.deployment
    place = case.place("tensor_parallel", "pipeline_parallel", "data_parallel")
    try:
        used = split_of(deployment).devices
    except BadInput:
        return skipped("KV014", case, "the split contradicts itself")
    product = _product(case, used)
    if (sliced := _several_slices(case, used, product)) is not None:
        return sliced
    pool = case.pool.devices if case.pool else None
    if pool is not None and used > pool:
        message = f"the engine uses {plural(used, 'device')} ({product}), and the pool {case.pool.name if case.pool else ''} has {pool}"
        return Outcome("KV014", "error", message, place, f"{product} = {used} > {pool}", _within(case, pool, used))
    beside = _beside(case, used, product)
    if gpus is None or gpus.amount is None:
        return beside or skipped("KV014", case, "nothing says how many devices are requested")
    local, ranks = number(deployment, "data_parallel_local"), number(deployment, "data_parallel") or 1
    if local and ranks > local:
        used = used * local // ranks
    nodes = number(deployment, "nodes") or 1
    wanted, asked = -(-used // nodes), gpus.amount * (gpus.hosts if nodes == 1 else 1)
    ray = case.setting("ray")
    if wanted > asked and not (ray is not None and ray.value is True):
        message = f"the engine uses {plural(wanted, 'device')} ({product}), and {asked} {'is' if asked == 1 else 'are'} {gpus.asked}"
        cluster = next((each for each in deployment.problems if each.code == "ray_cluster"), None)
        if cluster is not None and deployment.engine == "vllm":
            message = f"{message}: {cluster.message}"
            return Outcome("KV014", "warning", message, gpus.place, f"{product} = {wanted} > {asked}", "--distributed-executor-backend ray")
        fix = gpus.of(wanted) if nodes == 1 and gpus.hosts == 1 else ""
        fix = fix or spelled(case, "tensor_parallel", asked)
        return Outcome("KV014", "error", message, gpus.place, f"{product} = {wanted} > {asked}", fix)
    if beside is not None:
        return beside
    if wanted < asked and not gpus.fewer:
        use = f"{wanted} {'is' if wanted == 1 else 'are'} used ({product})"
        message = f"{are(asked, 'device')} {gpus.asked} and {use}: the others stay idle"
        fix = spelled(case, "tensor_parallel", asked) if wanted == 1 else gpus.of(wanted)
        return Outcome("KV014", "warning", message, place if wanted == 1 else gpus.place, f"{product} = {wanted} < {asked}", fix)
    return passed("KV014", case)


def _beside(case: Case, used: int, product: str) -> Outcome | None:
    """Devices of another maker than those that are asked for, and replicas that the pool cannot hold together."""
    gpus, pool, copies = case.deployment.gpus, case.pool.devices if case.pool else None, case.deployment.replicas
    if gpus is not None and case.part is not None and _foreign(gpus.resource, case.part.vendor):
        message = f"{gpus.resource} is requested, and {case.part.id} is a part of {case.part.vendor}"
        return Outcome("KV014", "warning", message, gpus.place)
    if pool is None or used * copies <= pool:
        return None
    held = f"the pool {case.pool.name if case.pool else ''} has {pool}"
    message = f"{copies} replicas use {used * copies} devices ({product} each), and {held}"
    fix = f"replicas: {pool // used}, or a pool with devices: {used * copies}"
    return Outcome("KV014", "warning", message, case.deployment.place, f"{copies} x {used} = {used * copies} > {pool}", fix)


def _foreign(resource: str | None, vendor: str) -> bool:
    """Whether a resource is of another maker's devices; of most resources the maker is not told."""
    maker = {"nvidia.com": "NVIDIA", "amd.com": "AMD"}.get((resource or "").partition("/")[0])
    return maker is not None and vendor in ("NVIDIA", "AMD", "Intel", "Google") and vendor != maker


def _within(case: Case, pool: int, used: int) -> str:
    """The most tensor ranks of one instance that the pool has and that may fit, or a pool of as many devices as are used."""
    ranks = ""
    for tensor in range(min(pool, NODE), 0, -1):
        plan = case.changed(tensor_parallel=tensor, pipeline_parallel=1, data_parallel=1).plan
        if plan is not None and may_fit(plan):
            own = [(key, 1) for key in ("pipeline_parallel", "data_parallel") if (number(case.deployment, key) or 1) > 1]
            ranks = " ".join(spelled(case, key, value) for key, value in (("tensor_parallel", tensor), *own))
            break
    larger = f"a pool with devices: {used}"
    return f"{ranks}, or {larger}" if ranks else larger


def _several_slices(case: Case, used: int, product: str) -> Outcome | None:
    """Ranks of one container on slices of cards: a CUDA process sees one MIG slice, whatever its container has (MIG user guide, CUDA
    device enumeration), so that the second rank finds no device."""
    gpus, ray = case.deployment.gpus, case.setting("ray")
    containers = max(number(case.deployment, "nodes") or 1, gpus.hosts if gpus else 1)
    if case.part is None or not is_slice(case.part) or case.deployment.engine not in RANKS or -(-used // containers) < 2:
        return None
    if ray is not None and ray.value is True:
        return None
    message = f"{case.deployment.engine} runs {used} ranks ({product}), and a process sees one MIG slice, however many are requested"
    alone = case.changed(tensor_parallel=1, pipeline_parallel=1, data_parallel=1)
    plan, one = alone.plan, spelled(case, "tensor_parallel", 1)
    slice_ = "" if plan is None or fixes.surely_fits(plan) else fixes.larger_slice(alone, fixes.surely_fits)
    fix = one if plan is not None and fixes.surely_fits(plan) else f"{one} on {slice_}" if slice_ else ""
    return Outcome("KV014", "error", message, case.place("tensor_parallel", "pipeline_parallel"), f"{product} = {used} > 1", fix)


def _product(case: Case, used: int) -> str:
    parts = (("tp", "tensor_parallel"), ("pp", "pipeline_parallel"), ("dp", "data_parallel"))
    degrees = [(name, number(case.deployment, key) or 1) for name, key in parts]
    return " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1 or name == "tp") or f"{used}"
