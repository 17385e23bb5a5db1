"""What transformers itself builds and caches, for tiny configs of decoders with experts."""

import importlib

import torch
import transformers

from kvcli.dtypes import KvTypes, known
from kvcli.model.config import spec_from_config
from kvcli.plan.build import build as build_plan
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
FP32 = KvTypes(known("float32"), known("float32"))
BF16 = KvTypes(known("bfloat16"), known("bfloat16"))

#: decoders that AutoModelForCausalLM does not build alone: (module, class of the text model)
TEXT_MODELS = {
    "qwen3_vl_moe_text": ("qwen3_vl_moe", "Qwen3VLMoeTextModel"),
    "qwen3_omni_moe_text": ("qwen3_omni_moe", "Qwen3OmniMoeThinkerTextModel"),
    "glm4v_moe_text": ("glm4v_moe", "Glm4vMoeTextModel"),
    "muse_spark_text": ("muse_spark", "MuseSparkTextModel"),
    "muse_glimmer_text": ("muse_glimmer", "MuseGlimmerTextModel"),
    "step3p5": ("step3p7", "Step3p7TextModel"),
}


def spec(model_type, config=None, **changes):
    return spec_from_config({"model_type": model_type, "dtype": "bfloat16", **(config or {}), **changes}, model_type, model_type)


def hf_config(model_type, config):
    if model_type == "qwen3_omni_moe_text":
        return transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe.Qwen3OmniMoeTextConfig(**config)
    return transformers.AutoConfig.for_model(model_type, **config)


def build(model_type, config, device="cpu"):
    made = hf_config(model_type, config)
    made._attn_implementation = "eager"
    made._experts_implementation = "eager"
    with torch.device(device):
        if model_type in TEXT_MODELS:
            module, name = TEXT_MODELS[model_type]
            found = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
            return getattr(found, name)(made).eval()
        return transformers.AutoModelForCausalLM.from_config(made).eval()


def is_tied(model):
    return model.get_output_embeddings() is not None and model.get_input_embeddings().weight is model.get_output_embeddings().weight


def head_parameters(model, tied):
    """Of the output matrix that a text model alone lacks."""
    table = model.get_input_embeddings().weight
    return 0 if tied or model.get_output_embeddings() is not None else table.numel()


def is_routed(name, tensor):
    inside = any(part in name for part in ("experts.", "input_linear", "output_linear"))
    return inside and tensor.ndim >= 2 and "shared" not in name and "router" not in name


def is_matrix(name, tensor):
    return tensor.ndim >= 2 and not name.endswith("bias") and "embed_tokens" not in name and "lm_head" not in name and "wte" not in name


def active(model, tied, wanted=lambda name, tensor: True):
    """Read for one token: k experts of E, no input table unless tied, no per-layer table."""
    config = model.config.get_text_config()
    names = ("top_k_experts", "moe_k", "moe_topk", "moe_top_k", "num_experts_per_tok")
    chosen = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    if hasattr(config, "ffn_config"):
        chosen = config.ffn_config.moe_top_k
    total = 0
    for name, tensor in model.named_parameters():
        if not wanted(name, tensor) or "embed_tokens_per_layer" in name or (tensor is model.get_input_embeddings().weight and not tied):
            continue
        if is_routed(name, tensor):
            count = config.ffn_config.moe_num_experts if hasattr(config, "ffn_config") else tensor.shape[0]
            layer = next(int(part) for part in name.split(".") if part.isdecimal())
            total += tensor.numel() * (chosen[layer] if isinstance(chosen, list) else chosen) // count
        else:
            total += tensor.numel()
    return total


def held(cache):
    found = {id(t): t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None)) if t is not None}
    return sum(t.numel() * t.element_size() for t in found.values())


@torch.inference_mode()
def measured(model, prefill, steps):
    """{tokens: bytes held} after a prefill and after each of some single tokens."""
    cache = transformers.DynamicCache(config=model.config)
    ids = torch.ones((1, prefill + steps), dtype=torch.long)
    model(input_ids=ids[:, :prefill], past_key_values=cache, use_cache=True)
    result = {prefill: held(cache)}
    for n in range(prefill, prefill + steps):
        model(input_ids=ids[:, n : n + 1], past_key_values=cache, use_cache=True)
        result[n + 1] = held(cache)
    return result


@torch.inference_mode()
def preallocated(model, limit):
    """Bytes of a static cache for `limit` tokens."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=limit)
    model(input_ids=torch.ones((1, 2), dtype=torch.long), past_key_values=cache, use_cache=True)
    return held(cache)


def plan(made, tokens, engine="transformers", kv=FP32, static=False):
    return build_plan(PlanRequest(made, Workload(tokens), policy(engine, EngineOptions(static=static)), kv=kv)).cache


def agrees(model_type, config, prefills=(2, 13), steps=2):
    """Parameters, active parameters, tie and cached bytes of transformers' model are what the reader says."""
    made, model = spec(model_type, config), build(model_type, config)
    tied = is_tied(model) if model.get_output_embeddings() is not None else made.tied
    assert made.parameters == sum(p.numel() for p in model.parameters()) + head_parameters(model, tied)
    assert made.tied == tied
    assert made.active_parameters == active(model, tied) + head_parameters(model, tied)
    assert made.active_matrices == active(model, tied, is_matrix)
    for prefill in prefills:
        for tokens, wanted in measured(model, prefill, steps).items():
            assert plan(made, tokens).stored_bytes == wanted, tokens
    return made


def same_defaults(model_type):
    """A file with nothing but its type is the class's own default model."""
    made, model = spec(model_type), build(model_type, {}, "meta")
    tied = is_tied(model) if model.get_output_embeddings() is not None else made.tied
    assert made.parameters == sum(p.numel() for p in model.parameters()) + head_parameters(model, tied)
    assert made.active_parameters == active(model, tied) + head_parameters(model, tied)
    assert made.active_matrices == active(model, tied, is_matrix)
    assert made.tied == tied
    assert made.max_context_tokens == model.config.max_position_embeddings
