"""Names and shapes of matrices, against the modules that transformers builds."""

import pytest

from kvcli.model import presets
from kvcli.model.config import spec_from_config
from kvcli.model.linears import GATED, LATENT, layer_linears

#: no two widths equal, so that a transposed or swapped matrix shows
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 128,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: what its config says beside the widths
OWN = ("layer_types", "mlp_layer_types", "sliding_window", "tie_word_embeddings", "rope_parameters")


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "mixtral", "qwen2_moe", "glm4_moe", "deepseek_v2", "deepseek_v3"])
def test_matrices_are_those_of_transformers(model_type):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model(model_type, **SMALL)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    spec = spec_from_config({k: v for k, v in config.to_dict().items() if k in SMALL or k in OWN} | {"model_type": model_type}, "t", "t")
    theirs = {name: tuple(module.weight.shape) for name, module in built.named_modules() if isinstance(module, torch.nn.Linear)}
    # the head and routers, of which a shared expert's gate is a row, are not the layers' matrices; experts are fused there
    theirs = {name: shape for name, shape in theirs.items() if ".layers." in name and not name.endswith("shared_expert_gate")}
    mine = {}
    for layer, number in enumerate(spec.order):
        for linear in layer_linears(spec.model_type, spec.hidden_size, spec.groups[number]):
            if not linear.expert:
                mine[f"model.layers.{layer}.{linear.module}"] = (linear.rows, linear.columns)
    assert mine == theirs


def test_experts_have_three_matrices():
    spec = presets.load("mixtral-8x7b").spec()
    linears = layer_linears(spec.model_type, spec.hidden_size, spec.groups[0])
    experts = {linear.module: (linear.rows, linear.columns) for linear in linears if linear.expert}
    assert experts == {f"block_sparse_moe.experts.*.{name}": (14336, 4096) for name in ("w1", "w3")} | {
        "block_sparse_moe.experts.*.w2": (4096, 14336)
    }


def test_every_preset_of_these_families_has_its_matrices():
    for name in presets.names():
        spec = presets.load(name).spec()
        if spec.model_type in GATED | LATENT:
            assert all(layer_linears(spec.model_type, spec.hidden_size, group) for group in spec.groups), name
