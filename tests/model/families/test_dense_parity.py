"""Families that keep a `decoder`: the built-in transformer gives transformers' logits with the same weights."""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the oracle")

from kvcli.model.families.table import READERS  # noqa: E402
from kvcli.runtime.transformer import Transformer  # noqa: E402
from kvcli.runtime.weights import LayerWeights, NormWeights, Weights  # noqa: E402

_spec = importlib.util.spec_from_file_location("dense_oracle", Path(__file__).with_name("dense_oracle.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)
TINY = oracle.TINY
GQA = {key: value for key, value in TINY.items() if key != "head_dim"}
BIASES = {"attention_bias": True, "mlp_bias": True}
TYPES = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]

CASES = [
    ("internlm3", {**TINY, **BIASES}),
    ("iquestcoder", TINY),
    ("seed_oss", {**TINY, "attention_out_bias": True, "mlp_bias": True}),
    ("ministral", {**TINY, "sliding_window": 5, "layer_types": TYPES}),
    ("cwm", {**TINY, "sliding_window": 5}),
    ("helium", {**TINY, "head_dim": 8}),
    ("ernie4_5", {**TINY, "use_bias": True}),
    ("glm", TINY),
    ("starcoder2", {**GQA, "sliding_window": 5}),
    ("stablelm", {**GQA, "use_qkv_bias": True}),
]


def tensor(module, *names):
    return next(getattr(module, name) for name in names if getattr(module, name, None) is not None)


def norm(module):
    return NormWeights(module.weight, getattr(module, "bias", None))


def joined(parts, what):
    found = [getattr(part, what) for part in parts]
    return None if found[0] is None else torch.cat(found)


def layer_weights(layer):
    attention, mlp = layer.self_attn, layer.mlp
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    fused = getattr(mlp, "gate_up_proj", None)
    ups = (fused,) if fused is not None else (mlp.c_fc,) if hasattr(mlp, "c_fc") else (mlp.gate_proj, mlp.up_proj)
    down = tensor(mlp, "down_proj", "c_proj")
    return LayerWeights(
        attention_norm=norm(layer.input_layernorm),
        qkv=joined(qkv, "weight"),
        qkv_bias=joined(qkv, "bias"),
        query_norm=None,
        key_norm=None,
        output=attention.o_proj.weight,
        output_bias=attention.o_proj.bias,
        mlp_norm=norm(layer.post_attention_layernorm),
        up=joined(ups, "weight"),
        up_bias=joined(ups, "bias"),
        down=down.weight,
        down_bias=down.bias,
    )


@pytest.mark.parametrize(("model_type", "config"), CASES, ids=[case[0] for case in CASES])
def test_same_logits(model_type, config):
    torch.manual_seed(3)
    model = oracle.build_model(model_type, config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start as zeros and ones
            parameter.add_(torch.randn_like(parameter) * 0.1)
    spec = oracle.tiny_spec(model_type, config)
    inner = model.model
    weights = Weights(
        embedding=inner.embed_tokens.weight,
        positions=None,
        layers=tuple(layer_weights(layer) for layer in inner.layers),
        final_norm=norm(inner.norm),
        head=model.lm_head.weight,
    )
    tokens = torch.randint(3, 60, (1, 12))
    ours = Transformer(spec, weights, 64)
    cache = ours.new_cache("dynamic", 1, 64)
    with torch.inference_mode():
        wanted = model(input_ids=tokens).logits
        first = ours.forward(tokens[:, :7], cache, all_logits=True)
        rest = ours.forward(tokens[:, 7:8], cache, all_logits=True)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), wanted[:, :8], atol=2e-5, rtol=2e-4)


def test_the_other_dense_families_cannot_run():
    """A family that computes anything else has no decoder, so that a run refuses it."""
    keep = {case[0] for case in CASES} | {"emu3_text_model"}
    modules = ("rms", "gemma", "gpt", "learned", "alibi", "modernbert", "hrm", "vision_text", "llama_kin", "layernorm")
    for model_type, (module, _) in READERS.items():
        if module in modules:
            config = {"n_head_kv": 71} if model_type.startswith("Refined") else {}
            assert (oracle.tiny_spec(model_type, config).decoder is not None) == (model_type in keep), model_type
