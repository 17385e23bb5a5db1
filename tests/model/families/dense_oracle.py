"""What transformers itself builds and caches, for tiny configs of dense decoders."""

from functools import cache

import torch

from kvcli.dtypes import KvTypes, known
from kvcli.model.config import spec_from_config
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload

FP32 = KvTypes(known("float32"), known("float32"))

#: the usual keys, small; `head_dim` is not H / A
TINY = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_spec(model_type, config):
    return spec_from_config({"model_type": model_type, **config}, "tiny", "tiny")


def build_model(model_type, config, device="cpu"):
    import transformers

    transformers.logging.set_verbosity_error()
    hf_config = transformers.AutoConfig.for_model(model_type, **config)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(hf_config, attn_implementation="eager").eval()


def unique_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def cached_bytes(model, prompt, steps=0):
    """Bytes of the cache's tensors after a prompt and then single tokens."""
    past, tokens = None, torch.ones((1, prompt), dtype=torch.long)
    with torch.inference_mode():
        for _ in range(steps + 1):
            past = model(input_ids=tokens, past_key_values=past, use_cache=True).past_key_values
            tokens = tokens[:, :1]
    return sum(t.numel() * t.element_size() for layer in past.layers for t in (layer.keys, layer.values) if t is not None)


def stored_bytes(spec, tokens):
    return build(PlanRequest(spec, Workload(tokens), policy("transformers"), kv=FP32)).cache.stored_bytes


@cache
def default_parameters(model_type):
    """Of the model that the class builds from no key at all."""
    return unique_parameters(build_model(model_type, {}, "meta"))


def check(model_type, config):
    """Parameters, the tie flag, and cache bytes below and above the windows."""
    model, spec = build_model(model_type, config), tiny_spec(model_type, config)
    assert spec.parameters == unique_parameters(model)
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert spec.tied == (table is head)
    for prompt, steps in ((1, 0), (3, 1), (13, 2)):
        assert stored_bytes(spec, prompt + steps) == cached_bytes(model, prompt, steps), (prompt, steps)
    return model, spec
