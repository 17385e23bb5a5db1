"""What transformers itself builds and caches, for comparison with the readers."""

import logging

import pytest

from kvcli.dtypes import KvTypes, known
from kvcli.model.config import spec_from_config
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)


def spec(config):
    return spec_from_config(config, "tiny", "tiny")


def stored(model, tokens, engine="transformers"):
    request = PlanRequest(model, Workload(tokens), policy(engine), kv=KvTypes(known("bf16"), known("bf16")))
    return build(request).cache.stored_bytes


def built(config, device="cpu", auto="AutoModelForCausalLM"):
    """Transformers' own model of a config, its weights in bfloat16."""
    values = {key: value for key, value in config.items() if key != "model_type"}
    settings = transformers.AutoConfig.for_model(config["model_type"], **values)
    with torch.device(device):
        model = getattr(transformers, auto).from_config(
            settings, attn_implementation="eager", experts_implementation="eager", dtype=torch.bfloat16
        )
    for module in model.modules():
        if type(module).__name__ == "Inkling2TopKRouter":
            module.float()  # as loading a checkpoint would leave it
    return model.eval()


def parameters(model):
    return sum(tensor.numel() for tensor in model.parameters())


def active(model, experts=1, taken=1):
    """Parameters that one token reads: no input table unless tied, `taken` of `experts` routed experts."""
    table = model.get_input_embeddings()
    tied = model.get_output_embeddings().weight is table.weight
    left_out = {} if tied else {id(tensor) for tensor in table.parameters()}
    total = 0
    for name, tensor in model.named_parameters():
        if id(tensor) in left_out:
            continue
        routed = ".experts." in name
        total += tensor.numel() * taken // experts if routed else tensor.numel()
    return total


def tensors(thing, seen):
    """All distinct tensors that an object holds, however it nests them; a window's size is not cache."""
    if isinstance(thing, torch.Tensor):
        seen[id(thing)] = thing
    elif isinstance(thing, dict):
        for value in thing.values():
            tensors(value, seen)
    elif isinstance(thing, list | tuple):
        for value in thing:
            tensors(value, seen)
    elif type(thing).__module__.startswith("transformers") and not hasattr(thing, "to_dict"):
        tensors({key: value for key, value in vars(thing).items() if key != "_sliding_window_tensor"}, seen)
    return seen


def cached(model, tokens, states=()):
    """Bytes that the model's cache holds after a prefill, and of the named attributes that modules keep for themselves."""
    # such a class makes a cache unless given one, but does not hand it back
    given = {"past_key_values": transformers.DynamicCache(config=model.config)} if states else {}
    with torch.no_grad():
        out = model(input_ids=torch.ones(1, tokens, dtype=torch.long), use_cache=True, **given)
    seen = tensors(given, {})
    for key in ("past_key_values", "cache_params", "state"):
        tensors(getattr(out, key, None), seen)
    for module in model.modules():
        for name in states:
            tensors(getattr(module, name, None), seen)
    return sum(tensor.numel() * tensor.element_size() for tensor in seen.values())
