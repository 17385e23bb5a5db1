"""The model as an engine runs it: the type it computes in, and the cache that this version keeps of its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kvcli.check.deployment import Deployment
from kvcli.check.engines.settings import counts
from kvcli.dtypes import COMPUTE, FP16, FP32, PLAIN, DType
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Latent
from kvcli.model.spec import ModelSpec

#: The first version of vLLM that keeps MLA's latent rows. Before, it kept each head's keys and values, both padded to this dimension:
#: 5,373 blocks of 16 tokens of DeepSeek-V2-Lite took 35.42 GiB (vllm-project/vllm#10927).
VLLM_LATENT, PADDED_HEAD = (0, 7), 256
#: Engines that run files in float32 in 16 bits unless they are told otherwise (`_get_and_verify_dtype` of vLLM and of SGLang).
HALVE = ("vllm", "sglang")


class Kept(NamedTuple):
    """`weights` None: of the type that the model's file has."""

    spec: ModelSpec
    weights: DType | None = None


def version_of(deployment: Deployment) -> tuple[int, ...]:
    """The first two numbers of the engine's version, the assumed one where none is said; empty where they are no numbers."""
    said = deployment.version.text if deployment.version else deployment.assumed_version
    return tuple(int(piece) for piece in said.lower().removeprefix("v").split(".")[:2] if counts(piece))


def as_run(deployment: Deployment, spec: ModelSpec, assumed: list[str]) -> Kept:
    """The model as this version of the engine loads it, where that is not as its architecture and its file ask for."""
    if deployment.engine == "vllm" and () < version_of(deployment) < VLLM_LATENT:
        groups = tuple(replace(group, records=tuple(_expanded(record) for record in group.records)) for group in spec.groups)
        if groups != spec.groups:
            assumed.append(f"vllm before 0.7 keeps the keys and values of every head of {spec.name}, not its latent rows")
            spec = replace(spec, groups=groups)
    return _computed(deployment, spec, assumed)


def compute_type(deployment: Deployment, spec: ModelSpec) -> DType:
    """The type that products are made in, of which the weights are that no method quantises."""
    found = deployment.settings.get("dtype")
    named = PLAIN.get(str(found.value)) if found else None
    if named in COMPUTE:
        return named
    return FP16 if spec.dtype == FP32 and deployment.engine in HALVE else spec.dtype


def _computed(deployment: Deployment, spec: ModelSpec, assumed: list[str]) -> Kept:
    kind, file = compute_type(deployment, spec), spec.tensors
    loaded = PLAIN.get(file.dtype) if file is not None else spec.dtype
    if (kind == spec.dtype and loaded in (kind, None)) or (deployment.engine not in HALVE and "dtype" not in deployment.settings):
        return Kept(spec)  # llama.cpp leaves files as they are
    said = deployment.settings.get("dtype")
    if kind != spec.dtype and (said is None or said.default):
        assumed.append(f"{deployment.engine} runs {spec.name}, a file in {spec.dtype.name}, in 16 bits")
    if kind == FP32 and deployment.engine in HALVE:
        assumed.append("a cache in float32 is counted in 16 bits, the least that it takes")
    # what a method quantised stays as it is, and so does a file of types that kvcli only knows by their sizes
    return Kept(replace(spec, dtype=kind), kind if spec.quantization is None and loaded in COMPUTE else None)


def _expanded(record: CacheRecord) -> CacheRecord:
    if not isinstance(record, Latent) or record.index_dim or not record.owns_cache:
        return record
    return Attention(record.num_attention_heads, record.num_attention_heads, PADDED_HEAD, PADDED_HEAD, record.window_tokens)
