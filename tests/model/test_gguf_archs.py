"""GGUF architectures against transformers: its models' parameters under the names of the `gguf` package, and configs read both ways."""

import numpy as np
import pytest

from kvcli.errors import BadInput, NotModelled
from kvcli.model.config import spec_from_config
from kvcli.model.gguf.config import read_gguf_file
from kvcli.model.weight_parts import ByUse, WeightParts

gguf = pytest.importorskip("gguf", reason="the gguf package writes the test files")
torch = pytest.importorskip("torch", reason="transformers builds the models")
transformers = pytest.importorskip("transformers", reason="transformers builds the models")

LAYERS = 4
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: what every converter writes, in the numbers of SMALL
BASE = {
    "block_count": LAYERS,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
WIDE = {"attention.key_length": 16, "attention.value_length": 16}
MHA = {"attention.head_count_kv": 4}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
EXPERT_KEYS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 24}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
LOCAL_KEYS = {"expert_count": 4, "expert_used_count": 2}
SSM2 = {"ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 1, "ssm.inner_size": 64, "ssm.time_step_rank": 8}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_d_conv": 4}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
DELTA_KEYS = {"ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 32}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "num_key_value_heads": 4}
LATENT_KEYS = {"attention.q_lora_rank": 24, "attention.kv_lora_rank": 16, "rope.dimension_count": 8, "attention.head_count_kv": 1}
MLA_KEYS = {"attention.key_length": 24, "attention.value_length": 16, "attention.key_length_mla": 24, "attention.value_length_mla": 12}

#: architecture -> (model_type, config beside SMALL, metadata beside BASE)
CASES = {
    "llama": ("llama", {}, {}),
    "llama-mixtral": ("mixtral", {**LOCAL, "sliding_window": None}, LOCAL_KEYS),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"head_dim": 16}, WIDE),
    "phi3": ("phi3", {"sliding_window": 16}, {"attention.sliding_window": 16}),
    "gemma": ("gemma", {"head_dim": 16}, WIDE),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 16}, {**WIDE, "attention.sliding_window": 16}),
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 16}, {**WIDE, "attention.sliding_window": 16}),
    "gemma3-list": (
        "gemma3_text",
        {"head_dim": 16, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2},
        {**WIDE, "attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False] * 2},
    ),
    "gemma3-period": (
        "gemma3_text",
        {
            "head_dim": 16,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        },
        {**WIDE, "attention.sliding_window": 16, "attention.sliding_window_pattern": 3},
    ),
    "qwen2moe": (
        "qwen2_moe",
        {**EXPERTS, "shared_expert_intermediate_size": 40},
        {**EXPERT_KEYS, "expert_shared_feed_forward_length": 40},
    ),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, "head_dim": 16}, {**EXPERT_KEYS, **WIDE}),
    "qwen3next": (
        "qwen3_next",
        {**EXPERTS, **DELTA, "head_dim": 16, "shared_expert_intermediate_size": 40},
        {**EXPERT_KEYS, **DELTA_KEYS, **WIDE, "expert_shared_feed_forward_length": 40},
    ),
    "qwen35": ("qwen3_5_text", {**DELTA, "head_dim": 16}, {**DELTA_KEYS, **WIDE, "full_attention_interval": 4}),
    "qwen35moe": (
        "qwen3_5_moe_text",
        {**EXPERTS, **DELTA, "head_dim": 16, "shared_expert_intermediate_size": 40},
        {**EXPERT_KEYS, **DELTA_KEYS, **WIDE, "expert_shared_feed_forward_length": 40},
    ),
    "phi2": ("phi", {"num_key_value_heads": 4}, MHA),
    "starcoder2": ("starcoder2", {"sliding_window": None}, {}),
    "stablelm": ("stablelm", {}, {}),
    "stablelm-parallel": ("stablelm", {"use_qkv_bias": True, "use_parallel_residual": True}, {"use_parallel_residual": True}),
    "command-r": ("cohere", {}, {}),
    "cohere2": ("cohere2", {"sliding_window": 16}, {"attention.sliding_window": 16}),
    "olmo2": ("olmo2", {}, {}),
    "olmo2-windows": ("olmo3", {"sliding_window": 16}, {"attention.sliding_window": 16}),
    "gpt-oss": (
        "gpt_oss",
        {**LOCAL, "head_dim": 16, "sliding_window": 16},
        {**LOCAL_KEYS, **WIDE, "expert_feed_forward_length": 48, "attention.sliding_window": 16},
    ),
    "glm4": ("glm4", {"head_dim": 16, "attention_bias": True}, WIDE),
    "glm4moe": (
        "glm4_moe",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "head_dim": 16,
        },
        {**EXPERT_KEYS, **WIDE, "expert_shared_count": 1, "leading_dense_block_count": 1},
    ),
    "deepseek2": (
        "deepseek_v3",
        {**LATENT, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1},
        {**LATENT_KEYS, **MLA_KEYS, **EXPERT_KEYS, "expert_shared_count": 1, "leading_dense_block_count": 1},
    ),
    "deepseek2-old": (
        "deepseek_v2",
        {
            **LATENT,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
            "n_shared_experts": 2,
        },
        {
            **LATENT_KEYS,
            **MHA,
            "attention.key_length": 24,
            "attention.value_length": 12,
            **EXPERT_KEYS,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
        },
    ),
    "granite": ("granite", {}, {}),
    "granitemoe": ("granitemoe", LOCAL, LOCAL_KEYS),
    "granitemoe-shared": (
        "granitemoeshared",
        {**LOCAL, "shared_intermediate_size": 40},
        {**LOCAL_KEYS, "expert_shared_feed_forward_length": 40},
    ),
    "granitehybrid": (
        "granitemoehybrid",
        {**MAMBA2, **LOCAL, "shared_intermediate_size": 40, "layer_types": ["mamba", "attention", "mamba", "attention"]},
        {**SSM2, **LOCAL_KEYS, "expert_shared_feed_forward_length": 40, "attention.head_count_kv": [0, 2, 0, 2]},
    ),
    "falcon": (
        "falcon",
        {"num_kv_heads": 2, "new_decoder_architecture": True, "bias": False, "alibi": False, "ffn_hidden_size": 48},
        {},
    ),
    "falcon-old": (
        "falcon",
        {"multi_query": True, "new_decoder_architecture": False, "ffn_hidden_size": 48},
        {"attention.head_count_kv": 1},
    ),
    "falcon-h1": ("falcon_h1", {**MAMBA2, "mamba_d_ssm": 64}, SSM2),
    "mamba": (
        "mamba",
        {"state_size": 8, "conv_kernel": 4, "intermediate_size": 64, "time_step_rank": 2},
        {
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.inner_size": 64,
            "ssm.time_step_rank": 2,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.head_count_kv": None,
        },
    ),
    "mamba2": (
        "mamba2",
        {"state_size": 8, "conv_kernel": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1, "expand": 2},
        {**SSM2, "feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": None},
    ),
    "nemotron": ("nemotron", {"head_dim": 8}, {}),
    "exaone4": (
        "exaone4",
        {"head_dim": 8, "sliding_window": 16},
        {"attention.sliding_window": 16, "attention.sliding_window_pattern": [True, True, True, False]},
    ),
    "exaone4-full": ("exaone4", {"head_dim": 8, "sliding_window": None, "layer_types": ["full_attention"] * LAYERS}, {}),
    "smollm3": ("smollm3", {}, {}),
    "ernie4_5": ("ernie4_5", {"head_dim": 8}, {}),
    "hunyuan-dense": ("hunyuan_v1_dense", {"head_dim": 16}, WIDE),
    "lfm2": (
        "lfm2",
        {"conv_L_cache": 3, "layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
        {"attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 3},
    ),
    "bloom": ("bloom", {"n_layer": LAYERS, "n_head": 4, "seq_length": 64}, {**MHA, "feed_forward_length": 128}),
    "gptneox": ("gpt_neox", {}, MHA),
    "llama4": (
        "llama4_text",
        {
            **LOCAL,
            "head_dim": 16,
            "intermediate_size": 24,
            "intermediate_size_mlp": 48,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8192,
        },
        {**LOCAL_KEYS, **WIDE, "expert_feed_forward_length": 24, "interleave_moe_layer_step": 2},
    ),
    "jamba": (
        "jamba",
        {
            "mamba_d_state": 8,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": 2,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "use_mamba_kernels": False,
        },
        {
            **LOCAL_KEYS,
            "attention.head_count_kv": [0, 2, 0, 2],
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.inner_size": 64,
            "ssm.time_step_rank": 2,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {
            "head_dim": 16,
            "layers_block_type": ["mamba", "mlp", "attention", "mlp"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
            "conv_kernel": 4,
            "tie_word_embeddings": False,
        },
        {**SSM2, **WIDE, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 48, 0, 48]},
    ),
    "minicpm3": ("minicpm3", {**LATENT, "v_head_dim": 8}, {**LATENT_KEYS, **MHA, "attention.key_length": 24}),
    "gpt2": ("gpt2", {"n_layer": LAYERS, "n_embd": 32, "n_head": 4, "n_positions": 64}, {**MHA, "feed_forward_length": 128}),
    "qwen2vl": ("qwen2", {}, {}),
    "qwen3vl": ("qwen3", {"head_dim": 16}, WIDE),
    "qwen3vlmoe": ("qwen3_moe", {**EXPERTS, "head_dim": 16}, {**EXPERT_KEYS, **WIDE}),
    "olmo": ("olmo", {}, {}),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 2}, {"expert_count": 8, "expert_used_count": 2}),
    "arcee": ("arcee", {}, {}),
    "seed_oss": ("seed_oss", {"head_dim": 16, "attention_bias": True, "attention_out_bias": False}, WIDE),
    "gemma3n": (
        "gemma3n_text",
        {
            "head_dim": 16,
            "sliding_window": 16,
            "vocab_size_per_layer_input": 80,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 2,
            "laurel_rank": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.0] * LAYERS,
        },
        {
            **WIDE,
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": [True, False] * 2,
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 8,
            "altup.num_inputs": 4,
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": 16,
            "vocab_size_per_layer_input": 80,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        {
            "attention.key_length": 32,
            "attention.value_length": 32,
            "attention.key_length_swa": 16,
            "attention.value_length_swa": 16,
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": [True, False] * 2,
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 8,
            "feed_forward_length": [48, 48, 96, 96],
        },
    ),
    "gemma4-one": (
        "gemma4_text",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": 16,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        {
            "attention.key_length": 32,
            "attention.value_length": 32,
            "attention.key_length_swa": 16,
            "attention.value_length_swa": 16,
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": [True, False] * 2,
            "attention.head_count_kv": [2, 1, 2, 1],
        },
    ),
    "mpt": (
        "mpt",
        {"d_model": 32, "n_heads": 4, "n_layers": LAYERS, "max_seq_len": 64},
        {"attention.head_count_kv": None, "feed_forward_length": 128},
    ),
}
#: tensors that the name map of the package does not have, because the converter splits, merges or renames them first
SPLIT = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.down_proj": ("ffn_down_exps.weight",),
    "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "mlp.experts.down_proj_bias": ("ffn_down_exps.bias",),
    "mlp.router.weight": ("ffn_gate_inp.weight",),
    "mlp.router.bias": ("ffn_gate_inp.bias",),
    "self_attn.sinks": ("attn_sinks.weight",),
    "block_sparse_moe.input_linear.weight": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "block_sparse_moe.output_linear.weight": ("ffn_down_exps.weight",),
    "block_sparse_moe.router.weight": ("ffn_gate_inp.weight",),
    "block_sparse_moe.router.layer.weight": ("ffn_gate_inp.weight",),
    "block_sparse_moe.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "block_sparse_moe.experts.down_proj": ("ffn_down_exps.weight",),
    "feed_forward.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "feed_forward.experts.down_proj": ("ffn_down_exps.weight",),
    "feed_forward.router.weight": ("ffn_gate_inp.weight",),
    "shared_mlp.input_linear.weight": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
    "shared_mlp.output_linear.weight": ("ffn_down_shexp.weight",),
    "linear_attn.dt_bias": ("ssm_dt.bias",),
    "linear_attn.A_log": ("ssm_a",),
    "mamba.A_log": ("ssm_a",),
    "mamba.D": ("ssm_d",),
    "mamba.dt_bias": ("ssm_dt.bias",),
    "mixer.A_log": ("ssm_a",),
    "mixer.D": ("ssm_d",),
    "mixer.dt_bias": ("ssm_dt.bias",),
}


def gguf_names(names, name):
    """The GGUF names of a parameter."""
    suffixes = (".weight", ".bias")
    found = names.get_name(name, suffixes) or names.get_name(name.removeprefix("transformer."), suffixes)
    found = found or names.get_name(name.replace("model.", "backbone.", 1), suffixes)
    _, _, rest = name.partition(".layers.")
    layer, _, inner = rest.partition(".")
    if "altup_projections" in name or "altup_unembed" in name:
        return [f"{'altup_unembd_proj' if 'unembed' in name else 'altup_proj'}.weight.{name.split('.')[-2]}"]  # the converter stacks them
    if inner in SPLIT:
        return [f"blk.{layer}.{new}" for new in SPLIT[inner]]
    assert found, f"the package has no name for {name}"
    return [found]


def arch_of(case):
    return case if case in ("gpt-oss", "command-r", "falcon-h1", "hunyuan-dense") else case.partition("-")[0]


def make(case, folder):
    """The file, its spec by config, and the parameters by name."""
    arch = arch_of(case)
    model_type, config, metadata = CASES[case]
    config = {**SMALL, **config}
    hf_config = transformers.AutoConfig.for_model(model_type, **config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(hf_config)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, LAYERS)
    path = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**BASE, **metadata}.items():
        if value is None:
            continue
        add = writer.add_array if isinstance(value, list) else writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"{arch}.{key}", value)
    written = {}
    for name, parameter in model.named_parameters():
        new = gguf_names(names, name)
        shape = list(parameter.shape)
        if ".c_" in name:
            shape.reverse()  # GPT-2 multiplies from the other side, which the converter turns
        if len(new) == 2:
            axis = 1 if "exps" in new[0] and len(shape) > 1 else 0
            shape[axis] //= 2
        for one in new:
            written[one] = shape
            writer.add_tensor(one, np.zeros([n for n in shape if n != 1 or len(shape) < 3] or [1], dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, spec_from_config({"model_type": model_type, **config}, "tiny", "tiny"), model, written


@pytest.mark.parametrize("case", CASES)
def test_a_file_says_what_its_config_says(case, tmp_path):
    path, wanted, model, _ = make(case, tmp_path)
    spec = read_gguf_file(path)
    assert spec.groups == wanted.groups and spec.order == wanted.order
    assert spec.parameters == wanted.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert spec.max_context_tokens == wanted.max_context_tokens == 64 or case in ("mamba", "mamba2")
    assert spec.tensors.resident_bytes == 2 * spec.parameters
    assert spec.tensors.read_bytes_per_step == 2 * wanted.step_parameters
    codes = [notice.code for notice in spec.notices]
    assert "tensor_count_differs" not in codes
    assert ("expanded_heads" in codes) == (case in ("deepseek2-old", "minicpm3"))
    assert (spec.decoder is not None) == (case in ("llama", "qwen2", "qwen3", "phi3", "gpt2"))


def test_what_kvcli_does_not_read_is_refused(tmp_path):
    """An expanded head of another width, layers with other numbers of KV heads, no heads that any tensor has."""
    path, *_ = make("llama", tmp_path)
    assert read_gguf_file(path).groups
    for change in ({"attention.value_length": 12}, {"attention.head_count_kv": [2, 2, 1, 2]}, {"attention.head_count_kv": 4}):
        with pytest.raises(NotModelled):
            read_gguf_file(rewrite(path, "llama", change, tmp_path))
    for change in ({"block_count": 0}, {"block_count": 2**31}, {"nextn_predict_layers": 4}, {"block_count": None}, {"block_count": 5}):
        with pytest.raises(BadInput):
            read_gguf_file(rewrite(path, "llama", change, tmp_path))


def rewrite(path, arch, change, folder, extra=(), tensors=None, **more):
    """The same file with other metadata, more tensors, or some of its tensors only."""
    reader = gguf.GGUFReader(path)
    out = folder / more.pop("name", "other.gguf")
    writer = gguf.GGUFWriter(out, arch)
    for key, value in {**keys_of(reader, arch), **change}.items():
        if value is not None:
            add = writer.add_array if isinstance(value, list) else writer.add_uint32
            add(f"{arch}.{key}", value)
    for key, value in more.items():
        writer.add_uint16(key.replace("__", "."), value)
    for tensor in reader.tensors if tensors is None else tensors:
        writer.add_tensor(tensor.name, tensor.data)
    for name, shape in extra:
        writer.add_tensor(name, np.zeros(shape, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def keys_of(reader, arch):
    found = {}
    for key, field in reader.fields.items():
        if key.startswith(f"{arch}."):
            found[key.removeprefix(f"{arch}.")] = field.contents()
    return found


def test_blocks_that_predict_further_tokens_and_towers_are_apart(tmp_path):
    path, wanted, *_ = make("glm4moe", tmp_path)
    before = read_gguf_file(path)
    extra = [(f"blk.{LAYERS}.nextn.eh_proj.weight", (32, 64)), (f"blk.{LAYERS}.attn_k.weight", (32, 32)), ("v.patch_embd.weight", (8, 8))]
    more = rewrite(path, "glm4moe", {"block_count": LAYERS + 1, "nextn_predict_layers": 1}, tmp_path, extra)
    spec = read_gguf_file(more)
    assert spec.groups == wanted.groups
    block = WeightParts((ByUse(whole=2 * 32 * 64, key_value=2 * 32 * 32),))
    assert spec.tensors == before.tensors._replace(mtp_bytes=2 * (32 * 64 + 32 * 32), tower_bytes=2 * 64, mtp_parts=block)
    assert "tensor_count_differs" not in [notice.code for notice in spec.notices]


def test_correction_biases_of_routers_are_bytes_but_no_parameters(tmp_path):
    path, *_ = make("glm4moe", tmp_path)
    before = read_gguf_file(path)
    spec = read_gguf_file(rewrite(path, "glm4moe", {}, tmp_path, [(f"blk.{layer}.exp_probs_b.bias", (8,)) for layer in range(1, LAYERS)]))
    assert spec.tensors.resident_bytes == before.tensors.resident_bytes + 2 * 8 * 3
    assert "tensor_count_differs" not in [notice.code for notice in spec.notices]


def test_split_files(tmp_path):
    """Any part stands for all of them; a part that is missing, of another model, or held twice is named."""
    path, *_ = make("qwen3", tmp_path)
    whole = read_gguf_file(path)
    tensors = list(gguf.GGUFReader(path).tensors)
    count, parts = len(tensors), []
    for number, some in enumerate((tensors[:5], tensors[5:20], tensors[20:])):
        parts.append(
            rewrite(
                path,
                "qwen3",
                {} if number == 0 else dict.fromkeys(keys_of(gguf.GGUFReader(path), "qwen3")),
                tmp_path,
                tensors=some,
                name=f"m-{number + 1:05d}-of-00003.gguf",
                split__no=number,
                split__count=3,
                split__tensors__count=count,
            )
        )
    for part in parts:
        spec = read_gguf_file(part)
        assert (spec.tensors, spec.groups, spec.notices) == (whole.tensors, whole.groups, ())
    content = parts[1].read_bytes()
    parts[1].unlink()
    for part in (parts[0], parts[2]):
        with pytest.raises(BadInput, match=r"m-00002-of-00003\.gguf is missing"):
            read_gguf_file(part)
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(BadInput, match="twice"):
        read_gguf_file(parts[0])
    parts[1].write_bytes(content)
    parts[2].write_bytes(rewrite(path, "qwen3", {}, tmp_path, tensors=tensors[20:], split__no=1, split__count=3).read_bytes())
    with pytest.raises(BadInput, match=r"m-00003-of-00003\.gguf says split\.no 1"):
        read_gguf_file(parts[0])
    with pytest.raises(BadInput, match="cannot be"):
        read_gguf_file(tmp_path / "m-00004-of-00003.gguf")
    alone = tmp_path / "renamed.gguf"
    alone.write_bytes(parts[0].read_bytes())
    with pytest.raises(NotModelled, match="one of 3 parts"):
        read_gguf_file(alone)


def test_damaged_metadata_of_every_architecture(tmp_path):
    """4,000 files with keys removed or replaced: an answer or a refusal, soon, and nothing else."""
    import random
    import time
    from dataclasses import replace

    from kvcli.errors import KvcliError
    from kvcli.model.gguf.config import spec_from_header
    from kvcli.model.gguf.header import ArrayRef, read_header

    source = random.Random(4)
    headers = [
        read_header(make(case, tmp_path)[0])
        for case in ("llama", "qwen3next", "granitehybrid", "deepseek2", "gemma3-list", "mamba2", "jamba", "lfm2")
    ]
    values = [
        0,
        1,
        -1,
        3,
        7,
        2**31,
        2**63,
        0.5,
        float("nan"),
        float("inf"),
        True,
        "x",
        "",
        (),
        (0,),
        (1, 2),
        (0,) * 4,
        (True,) * 4,
        ("a",) * 4,
        ((1,),),
    ]
    values += [ArrayRef(4, 9000, 0), (2,) * 5000, (0, 2, 0, 2), 100_000]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(4000):
        header = source.choice(headers)
        metadata = dict(header.metadata)
        for key in source.sample(sorted(metadata), source.choice((1, 1, 2, 4))):
            if source.random() < 0.3:
                del metadata[key]
            else:
                metadata[key] = source.choice(values)
        tensors = list(header.tensors)
        if source.random() < 0.3:
            at = source.randrange(len(tensors))
            shape = source.choice(((), (1,), (4, 4), (2, 2, 2), (2**30, 2**30)))
            tensors[at : at + 1] = (
                [] if source.random() < 0.3 else [tensors[at].__class__(tensors[at].name, shape, tensors[at].dtype, 1, 0, 64)]
            )
        start_s = time.process_time()
        try:
            spec_from_header(replace(header, metadata=metadata, tensors=tuple(tensors)))
            outcomes["read"] += 1
        except KvcliError as error:
            assert error.message and len(error.message) < 1000
            outcomes["refused"] += 1
        assert time.process_time() - start_s < 1.0
    assert min(outcomes.values()) > 300, outcomes


def test_every_architecture_has_a_case():
    from kvcli.model.gguf.archs import ARCHITECTURES

    assert {arch_of(case) for case in CASES} == set(ARCHITECTURES)
