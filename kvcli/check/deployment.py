"""The deployment: model, engine and version, settings with their places, devices. Engine readers write it, rules read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcli.check.launch import GpuRequest, Problem
from kvcli.check.nodes import Place, Word

#: What a deployment can set, in kvcli's words -> its type and unit. One vocabulary for all engines; what an engine lacks is absent.
SETTINGS: dict[str, str] = {
    "context_tokens": "int: the longest sequence the engine admits; 'auto' where the engine lowers it until it fits",
    "longer_allowed": "bool: more than the model's positions are admitted, or may be",
    "slots": "int: llama.cpp's sequences, each with context_tokens of its own unless kv_unified",
    "kv_unified": "bool: all slots share one buffer of context_tokens",
    "swa_full": "bool: llama.cpp keeps windows in full",
    "ubatch": "int tokens",
    "max_sequences": "int: the most the scheduler runs together",
    "max_batched_tokens": "int: tokens of one step, all sequences",
    "tensor_parallel": "int",
    "pipeline_parallel": "int",
    "data_parallel": "int",
    "data_parallel_local": "int: ranks of data_parallel that this container runs, where they are not all",
    "nodes": "int: containers among which the ranks are dealt evenly",
    "ray": "bool: ranks may run in other containers",
    "expert_parallel": "bool or int",
    "dp_attention": "bool",
    "decode_context_parallel": "int",
    "kv_dtype": "str as kvcli's --kv-dtype takes it (K:V where they differ), 'auto' for the engine's own choice",
    "weights": "str as kvcli's --weights takes it, only where the engine quantises while it loads",
    "quantization": "str: the method by which the files are said to be quantised, where the engine does not quantise them itself",
    "dtype": "str: compute dtype, 'auto' for the file's",
    "memory_fraction": "float: share of the device, as the engine counts it",
    "kv_memory_bytes": "int: an absolute budget of the pool",
    "kv_tokens": "int: an absolute size of the pool",
    "block_tokens": "int: tokens of a page",
    "prefix_caching": "bool",
    "chunked_prefill": "bool",
    "eager": "bool: no CUDA graphs",
    "sleep_mode": "bool: it can be told to give its memory back",
    "speculation": "str as kvcli's --speculative takes it",
    "weights_offload_bytes": "int: weights a device leaves in the host's memory",
    "kv_offload_bytes": "int: a second tier of the cache in the host's memory",
    "gpu_layers": "int: llama.cpp's -ngl; 'auto' where the engine moves layers to the host until the rest fits",
    "cpu_moe_layers": "int: llama.cpp's --n-cpu-moe",
    "lora_adapters": "int: adapters held together",
    "lora_rank": "int",
    "rope_factor": "float: a linear or dynamic factor set beside the config",
    "trust_remote_code": "bool",
}


class Setting(NamedTuple):
    """A value and where it was written. `place` None: the default of this version of the engine. `said`: the words that set it."""

    value: int | float | str | bool
    said: str
    place: Place | None = None

    @property
    def default(self) -> bool:
        return self.place is None


class Deployment(NamedTuple):
    """One model served by one engine. `model` is as written: a hub id, a path, or a URI. `settings`: keys of SETTINGS;
    `unread`: those that are set to what was not understood.

    `beside`: engines that run in the same container on the same devices; `background`: later ones of it do not wait for this one.
    `version` None: the image or the command does not say, so `assumed_version` is the engine version whose defaults were taken.
    """

    name: str
    container: str
    place: Place
    engine: str
    model: Word | None
    settings: Mapping[str, Setting]
    version: Word | None = None
    assumed_version: str = ""
    gpus: GpuRequest | None = None
    replicas: int = 1
    problems: tuple[Problem, ...] = ()
    unread: frozenset[str] = frozenset()
    background: bool = False
    beside: tuple[Deployment, ...] = ()
