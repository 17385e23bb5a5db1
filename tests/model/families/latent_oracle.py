"""What the transformers library itself builds and caches, for tests of latent-attention readers with tiny configs."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, Mistral4ForCausalLM

from kvcli.dtypes import PLAIN, KvTypes
from kvcli.model.config import spec_from_config
from kvcli.plan.build import build as build_plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload

BF16 = KvTypes(PLAIN["bf16"], PLAIN["bf16"])


def spec(model_type, config=None, **changes):
    return spec_from_config({"model_type": model_type, "dtype": "bfloat16", **(config or {}), **changes}, model_type, model_type)


def build(model_type, config, device="cpu"):
    """The library's own model, in bfloat16."""
    with torch.device(device):
        made = AutoConfig.for_model(model_type, **config)
        if model_type == "mistral4":  # the library's automatic classes know it only inside a multimodal model
            made._attn_implementation = "eager"
            return Mistral4ForCausalLM(made).to(torch.bfloat16).eval()
        return AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16, attn_implementation="eager").eval()


def unique_parameters(*modules):
    return sum(tensor.numel() for tensor in {id(p): p for module in modules for p in module.parameters()}.values())


def tensors(value, found):
    if isinstance(value, torch.Tensor):
        found[id(value)] = value
    elif isinstance(value, dict):
        for one in value.values():
            tensors(one, found)
    return found


def held_bytes(cache):
    found = {}
    for layer in cache.layers:
        for name, value in vars(layer).items():
            if name != "_sliding_window_tensor":  # a number, not a part of the cache
                tensors(value, found)
    return sum(tensor.numel() * tensor.element_size() for tensor in found.values())


@torch.no_grad()
def measured(model, prefill, steps):
    """{tokens: bytes held} after a prefill and after each of some single-token steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models this small only lose time to the others
    try:
        return _measured(model, prefill, steps)
    finally:
        torch.set_num_threads(threads)


def _measured(model, prefill, steps):
    cache = DynamicCache(config=model.config)
    ids = torch.arange(prefill + steps).remainder(model.config.get_text_config().vocab_size)[None]
    model(input_ids=ids[:, :prefill], past_key_values=cache, use_cache=True)
    held = {prefill: held_bytes(cache)}
    for n in range(prefill, prefill + steps):
        model(input_ids=ids[:, n : n + 1], past_key_values=cache, use_cache=True)
        held[n + 1] = held_bytes(cache)
    return held


def plan(made, tokens, engine="transformers", kv=BF16):
    return build_plan(PlanRequest(made, Workload(tokens), policy(engine), kv=kv)).cache


def agrees(model_type, config, prefills, steps=2):
    """Parameters, tie and cached bytes of the library's model are what the reader says."""
    made, model = spec(model_type, config), build(model_type, config)
    assert made.parameters == unique_parameters(model)
    assert made.tied == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)
    for prefill in prefills:
        for tokens, held in measured(model, prefill, steps).items():
            assert plan(made, tokens).stored_bytes == held, tokens
    return made


def same_defaults(model_type):
    """A file with nothing but its type has the parameters of the default configuration class."""
    assert spec(model_type).parameters == unique_parameters(build(model_type, {}, "meta"))
