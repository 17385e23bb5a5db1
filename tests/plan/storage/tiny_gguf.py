"""Tiny models in GGUF files of several architectures, all weights equal, with the configs they would have had.

They exist to be loaded by llama.cpp: which buffers it then allocates depends on the architecture and the shapes alone.
"""

from __future__ import annotations

import numpy as np
from gguf import GGUFWriter

HIDDEN, FF, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 4, 2, 32, 320
BASE = {
    "hidden_size": HIDDEN,
    "intermediate_size": FF,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}


def _attention(qkv=False, qk_norm=False, heads=HEADS):
    q, kv = heads * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {"attn_output": (HIDDEN, q)}
    shapes |= {"attn_qkv": (q + 2 * kv, HIDDEN)} if qkv else {"attn_q": (q, HIDDEN), "attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN)}
    return shapes | ({"attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,)} if qk_norm else {})


MLP = {"ffn_gate": (FF, HIDDEN), "ffn_up": (FF, HIDDEN), "ffn_down": (HIDDEN, FF), "ffn_norm": (HIDDEN,), "attn_norm": (HIDDEN,)}
NORMS = {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
MAMBA = {  # 128 channels, 16 states, 4 columns, rank 4
    "attn_norm": (HIDDEN,),
    "ssm_in": (256, HIDDEN),
    "ssm_conv1d": (128, 4),
    "ssm_conv1d.bias": (128,),
    "ssm_x": (4 + 2 * 16, 128),
    "ssm_dt": (128, 4),
    "ssm_dt.bias": (128,),
    "ssm_a": (128, 16),
    "ssm_d": (128,),
    "ssm_out": (HIDDEN, 128),
}
MLA = {  # rank 64, rope 32, nope 32, value 32
    "attn_q_a": (32, HIDDEN),
    "attn_q_a_norm": (32,),
    "attn_q_b": (HEADS * 64, 32),
    "attn_kv_a_mqa": (64 + 32, HIDDEN),
    "attn_kv_a_norm": (64,),
    "attn_k_b": (HEADS, 64, 32),
    "attn_v_b": (HEADS, 32, 64),
    "attn_output": (HIDDEN, HEADS * 32),
}
CONV = {"shortconv.conv": (HIDDEN, 3), "shortconv.in_proj": (3 * HIDDEN, HIDDEN), "shortconv.out_proj": (HIDDEN, HIDDEN)}

#: name -> (config of the same model, GGUF keys beside the common ones, tensors of each layer)
MODELS = {
    "llama": ({"model_type": "llama", "num_hidden_layers": 3} | BASE, {}, [_attention() | MLP] * 3),
    # a window that the architecture does not read
    "mistral": (
        {"model_type": "mistral", "num_hidden_layers": 3, "sliding_window": 128} | BASE,
        {"attention.sliding_window": 128},
        [_attention() | MLP] * 3,
    ),
    "gemma2": (
        {"model_type": "gemma2", "num_hidden_layers": 4, "sliding_window": 128} | BASE,
        {"attention.sliding_window": 128},
        [_attention() | MLP | NORMS] * 4,
    ),
    "gemma3": (
        {"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 128} | BASE,
        {"attention.sliding_window": 128},
        [_attention(qk_norm=True) | MLP | NORMS] * 6,
    ),
    "phi3": (
        BASE | {"model_type": "phi3", "num_hidden_layers": 2, "sliding_window": 128, "num_attention_heads": 2},
        {"attention.sliding_window": 128, "attention.head_count": 2},
        [_attention(qkv=True, heads=2) | MLP | {"ffn_up": (2 * FF, HIDDEN), "ffn_gate": None}] * 2,
    ),
    "mamba": (
        {"model_type": "mamba", "hidden_size": HIDDEN, "intermediate_size": 128, "state_size": 16, "conv_kernel": 4, "time_step_rank": 4}
        | {"num_hidden_layers": 3, "vocab_size": VOCAB, "torch_dtype": "bfloat16"},
        {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.time_step_rank": 4},
        [MAMBA] * 3,
    ),
    "deepseek2": (
        {
            "model_type": "deepseek_v2",
            "num_hidden_layers": 2,
            "first_k_dense_replace": 2,
            "n_routed_experts": 4,
            "moe_intermediate_size": 32,
        }
        | {"n_shared_experts": 1, "num_experts_per_tok": 2, "q_lora_rank": 32, "kv_lora_rank": 64, "qk_rope_head_dim": 32}
        | {"qk_nope_head_dim": 32, "v_head_dim": 32}
        | BASE,
        {
            "attention.q_lora_rank": 32,
            "attention.kv_lora_rank": 64,
            "attention.key_length": 96,
            "attention.value_length": 64,
            "attention.head_count_kv": 1,
        }
        | {"attention.key_length_mla": 64, "attention.value_length_mla": 32, "rope.dimension_count": 32}
        | {"leading_dense_block_count": 2, "expert_count": 4, "expert_used_count": 2, "expert_shared_count": 1}
        | {"expert_feed_forward_length": 32, "expert_weights_scale": 1.0},
        [MLA | MLP] * 2,
    ),
    "lfm2": (
        {"model_type": "lfm2", "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
        | {"block_auto_adjust_ff_dim": False, "block_ff_dim": FF}
        | BASE
        | {"head_dim": None, "num_attention_heads": 2},
        {"attention.head_count_kv": [0, KV_HEADS, 0], "attention.head_count": 2, "shortconv.l_cache": 3},
        [CONV | MLP, _attention(qk_norm=True, heads=2) | MLP, CONV | MLP],
    ),
}


def write(path, name):
    """The file of that model. Raises KeyError for one that is not in MODELS."""
    _, keys, layers = MODELS[name]
    architecture = "llama" if name == "mistral" else name
    writer = GGUFWriter(path, architecture)
    common = {
        "context_length": 32768,
        "embedding_length": HIDDEN,
        "feed_forward_length": FF,
        "block_count": len(layers),
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD_DIM,
        "vocab_size": VOCAB,
    }
    for key, value in (common | keys).items():
        add = {list: writer.add_array, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(f"{architecture}.{key}", value)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"t{index}" for index in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCAB)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCAB - 259)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,), "output": (VOCAB, HIDDEN)}
    if architecture == "lfm2":
        shapes = {"token_embd": (VOCAB, HIDDEN), "token_embd_norm": (HIDDEN,)}
    if architecture.startswith("gemma"):
        del shapes["output"]
    for index, layer in enumerate(layers):
        shapes |= {f"blk.{index}.{part}": shape for part, shape in layer.items() if shape}
    for tensor, shape in shapes.items():
        whole = tensor if tensor.endswith((".bias", "ssm_a", "ssm_d")) else f"{tensor}.weight"
        writer.add_tensor(whole, np.full(shape, 0.01, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
