"""What the transformers library itself builds and caches: the row that kvcli must reproduce, and which of its types do.

Usage: python benchmarks/oracle.py CONFIG.json | MODEL_TYPE [--tokens 1,64,4096] [--encoder-tokens 64]
       python benchmarks/oracle.py --coverage [TYPE ...]

The first form prints one line in the shape of tests/data/transformers_cache.jsonl. Models are built on the meta device, so
size costs neither memory nor time; where a forward asks for a value, it gets 1, and no row is ever selected, which no cache
depends on. Coverage builds the class default of each causal type and compares kvcli's answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.auto import modeling_auto

from kvcli.dtypes import KvTypes, known
from kvcli.errors import KvcliError, NotModelled
from kvcli.model.config import spec_from_config
from kvcli.plan.build import build as build_plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload

TOKENS = (1, 64, 4096, 32768)
CAUSAL = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
ENCODER_DECODER = {
    **modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    **modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
}
IMAGE = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
#: parts of the names of parameters that belong to no decoder
TOWERS = ("visual", "vision", "image_", "audio", "projector")
#: where modules keep states that are in no cache object
STATES = ("recurrent_states", "conv1d_state")
#: keys under which config classes name the experts one token uses
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k")


class NoValues(TorchDispatchMode):
    """Answers what a meta tensor cannot: a value is 1, and no element is non-zero."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1
        if func is torch.ops.aten.nonzero.default:
            return args[0].new_empty((0, args[0].dim()), dtype=torch.long)
        return func(*args, **(kwargs or {}))


def full_config(values: dict[str, Any]) -> Any:
    return transformers.AutoConfig.for_model(**values)


def decoder_config(config: Any) -> Any:
    """The text half of a multimodal config; encoder-decoder models are taken whole."""
    return config if getattr(config, "is_encoder_decoder", False) else config.get_text_config(decoder=True)


def model_class(full: Any, config: Any) -> tuple[Any, Any]:
    """The class that holds the decoder and its head, and the config it takes: where there is none, one with towers."""
    kinds = ((ENCODER_DECODER, full),) if getattr(full, "is_encoder_decoder", False) else ((CAUSAL, config), (CAUSAL, full), (IMAGE, full))
    for names, named in kinds:
        found = getattr(transformers, names.get(named.model_type, ""), None)
        for taken in (config, full):
            if found and (taken is named or isinstance(taken, found.config_class)):
                return found, taken
    raise LookupError(f"transformers has no class for {full.model_type}")


def make(values: dict[str, Any], device: str = "meta") -> tuple[Any, Any]:
    """The model of a config in its own dtype, and its decoder's config."""
    full = full_config(values)
    config = decoder_config(full)
    dtype = known(str(values.get("dtype") or values.get("torch_dtype") or getattr(full, "dtype", None) or "").removeprefix("torch."))
    config.dtype = getattr(torch, {"fp32": "float32", "fp16": "float16"}.get(dtype.name if dtype else "", "bfloat16"))
    config._attn_implementation = "eager"
    before = torch.get_default_dtype()
    torch.set_default_dtype(config.dtype)
    try:
        with torch.device(device):
            kind, taken = model_class(full, config)
            model = kind._from_config(taken, dtype=config.dtype, attn_implementation="eager").eval()
    finally:
        torch.set_default_dtype(before)
    return model, config


def tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Distinct tensors anywhere inside a cache object."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if not str(key).startswith("_"):  # a window layer keeps its width as a tensor
                yield from tensors(item, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item, seen)
    elif type(value).__module__.startswith("transformers.") and not isinstance(value, torch.nn.Module | transformers.PreTrainedConfig):
        yield from tensors(vars(value), seen)


def cached_bytes(model: Any, config: Any, tokens: int, encoder_tokens: int = 0) -> int:
    """Bytes that the cache holds after a prefill of `tokens`, as its tensors are (not the storages behind their views)."""
    ids = torch.zeros((1, tokens), dtype=torch.long, device=model.device)
    extra: dict[str, Any] = {"input_ids": ids}
    if getattr(config, "is_encoder_decoder", False):
        encoder = getattr(config, "encoder", config)
        states = torch.zeros((1, encoder_tokens, encoder.hidden_size), dtype=model.dtype, device=model.device)
        hidden = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)
        extra = {"decoder_input_ids": ids, "encoder_outputs": hidden}
    elif getattr(config, "cross_attention_layers", None) and encoder_tokens:
        size = (1, encoder_tokens, config.hidden_size)
        extra["cross_attention_states"] = torch.zeros(size, dtype=model.dtype, device=model.device)
    if any(hasattr(module, STATES[0]) for module in model.modules()):  # RecurrentGemma returns no cache and keeps its states on its modules
        extra["past_key_values"] = transformers.DynamicCache(config=config)
    with torch.no_grad(), torch.device(model.device), NoValues():
        out = model(**extra, use_cache=True)
    held = [getattr(out, name, None) for name in ("past_key_values", "cache_params", "state")]
    held += [extra.get("past_key_values"), *(getattr(m, name, None) for m in model.modules() for name in STATES)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors([item for item in held if item is not None], set()))


def counts(model: Any, config: Any) -> tuple[int, int | None, bool]:
    """Unique parameters, those read for one token (None where the routed experts cannot be told), and the tie."""
    counted = {id(p): p for name, p in model.named_parameters() if not any(part in name for part in TOWERS)}
    total = sum(parameter.numel() for parameter in counted.values())
    head = model.get_output_embeddings()
    weight = head.weight if head is not None else None
    # with what a table's module adds to it, such as a norm
    tables = {id(p): p for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    tied = weight is not None and id(weight) in tables
    unread = sum(tables[key].numel() for key in tables.keys() & counted.keys() if not tied or key != id(weight))
    tops = [getattr(config, key) for key in TOP_K if isinstance(getattr(config, key, None), int)]
    routed = [m for m in model.modules() if "Experts" in type(m).__name__]
    if not routed:
        return total, total - unread, tied
    if not tops:
        return total, None, tied
    idle = 0
    for module in routed:
        own = list(module.parameters())
        experts = next((p.shape[0] for p in own if p.dim() == 3), 0)
        if not experts or any(p.shape[0] != experts for p in own):
            return total, None, tied
        idle += sum(p.numel() for p in own) // experts * (experts - min(tops[0], experts))
    return total, total - unread - idle, tied


def measure(values: dict[str, Any], tokens: tuple[int, ...] = TOKENS, encoder_tokens: int = 0, name: str = "") -> dict[str, Any]:
    """One row. `cache_bytes` is null at lengths that the model cannot run."""
    model, config = make(values)
    total, active, tied = counts(model, config)
    crossed = getattr(config, "is_encoder_decoder", False) or getattr(config, "cross_attention_layers", None)
    encoder_tokens = encoder_tokens or (64 if crossed else 0)
    held: dict[str, int | None] = {}
    for n in tokens:
        try:
            held[str(n)] = cached_bytes(model, config, n, encoder_tokens)
        except RuntimeError:  # beyond the positions of a table
            held[str(n)] = None
    if not any(held.values()):
        raise RuntimeError("no cached forward works on the meta device")
    return {
        "model": name or f"{values['model_type']} (class defaults)",
        "model_type": values["model_type"],
        "dtype": str(config.dtype).removeprefix("torch."),
        "parameters": total,
        "active_parameters": active,
        "tied": tied,
        "cache_bytes": held,
        "encoder_tokens": encoder_tokens or None,
        "config": values,
    }


def differences(row: dict[str, Any]) -> list[str]:
    """What kvcli answers otherwise. Raises KvcliError where it refuses the config."""
    spec = spec_from_config({**row["config"], "model_type": row["model_type"]}, row["model"], row["model"])
    dtype = known(row["dtype"])
    assert dtype is not None
    wrong = [f"{key} {mine:,} for {row[key]:,}" for key, mine in (("parameters", spec.parameters),) if mine != row[key]]
    if row["active_parameters"] is not None and spec.active_parameters != row["active_parameters"]:
        wrong.append(f"active_parameters {spec.active_parameters:,} for {row['active_parameters']:,}")
    for tokens, wanted in row["cache_bytes"].items():
        if wanted is None:
            continue
        workload = Workload(int(tokens), encoder_tokens=row["encoder_tokens"] or 0)
        mine = build_plan(PlanRequest(spec, workload, policy("transformers"), kv=KvTypes(dtype, dtype))).cache.stored_bytes
        if mine != wanted:
            wrong.append(f"cache at {tokens} {mine:,} for {wanted:,}")
    return wrong


def coverage(kinds: list[str]) -> bool:
    """Prints a line a type: covered, wrong, refused, or without an oracle: transformers cannot build or run its own default."""
    tally: dict[str, int] = {}
    for kind in kinds:
        verdict, detail = verdict_of(kind)
        tally[verdict] = tally.get(verdict, 0) + 1
        print(f"{verdict:10} {kind:28} {detail}"[:200].rstrip())
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.items())))
    return not tally.get("wrong")


def verdict_of(kind: str) -> tuple[str, str]:
    try:
        values = {**full_config({"model_type": kind}).to_dict(), "model_type": kind, "dtype": "bfloat16"}
    except Exception as error:
        return "no oracle", f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        spec_from_config(values, kind, kind)
    except NotModelled:
        return "refused", ""
    except KvcliError as error:
        return "refused", error.message
    try:
        row = measure(values, tokens=(1, 64, 4096))
    except Exception as error:
        return "no oracle", f"{type(error).__name__}: {error}".splitlines()[0]
    wrong = differences(row)
    return ("wrong", "; ".join(wrong)) if wrong else ("covered", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", help="config files or model types")
    parser.add_argument("--coverage", action="store_true", help="compare kvcli with every class default")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--encoder-tokens", type=int, default=0)
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if asked.coverage:
        sys.exit(0 if coverage(asked.models or sorted(CAUSAL)) else 1)
    for model in asked.models:
        path = Path(model)
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"model_type": model}
        values.pop("kvcli", None)
        name = path.stem if path.is_file() else ""
        print(json.dumps(measure(values, tuple(map(int, asked.tokens.split(","))), asked.encoder_tokens, name)))


if __name__ == "__main__":
    main()
