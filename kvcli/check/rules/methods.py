"""Methods of quantisation that vLLM refuses: on cards that lack what its kernels need, and with a type that they do not compute in."""

from __future__ import annotations

from kvcli.check.case import Case
from kvcli.check.kept import version_of
from kvcli.check.verdict import Outcome
from kvcli.check.words import spelled
from kvcli.hardware.accelerators import Accelerator

#: Versions of which this is known: `get_min_capability` and `get_supported_act_dtypes` of `AWQConfig` and `Fp8Config` in 0.6 to 0.11, where
#: vllm-project/vllm#28857 has the message. Later ones brought fp8 to Turing.
KNOWN = ((0, 6), (0, 11))


def refused_method(case: Case, part: Accelerator) -> Outcome | None:
    """KV013 of what `--quantization` names. Without it vLLM takes another kernel of the same files where it has one."""
    deployment, said = case.deployment, case.setting("quantization") or case.setting("weights")
    known = deployment.version is not None and KNOWN[0] <= version_of(deployment) <= KNOWN[1]
    if deployment.engine != "vllm" or not known or part.vendor != "NVIDIA" or said is None or said.place is None:
        return None
    method = said.said.removeprefix("--quantization ").removeprefix("-q ").strip()
    least = {"fp8": "8.0", "awq": "7.5"}.get(method)
    if least is not None and not _has(part, least):
        message = f"vllm does not start with {said.said} on {part.id}: it needs a card of compute capability {least}"
        return Outcome("KV013", "error", message, said.place)
    dtype = case.setting("dtype")
    if method == "awq" and dtype is not None and dtype.value in ("bf16", "fp32"):
        message = f"vllm does not start with {said.said} and {dtype.said}: its kernels compute in fp16"
        return Outcome("KV013", "error", message, dtype.place or said.place, fix=spelled(case, "dtype", "half"))
    return None


def _has(part: Accelerator, capability: str) -> bool:
    """8.0 came with bf16, 7.5 with tensor cores for int8; parts of which no rate is known may have either."""
    if not part.peak_flops or part.peak("bf16"):
        return True
    return capability == "7.5" and part.peak("int8") > 0 and part.peak("fp16") > 0
