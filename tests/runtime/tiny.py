"""Tiny models for tests: a transformers model with random weights, and the same weights as a GGUF file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 96}


def build(model_type: str, **changes: object) -> transformers.PreTrainedModel:
    """A model in eval mode whose weights are large enough that mistakes show."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type, vocab_size=128, pad_token_id=0, initializer_range=0.2, **{**(GPT2 if model_type == "gpt2" else SIZES), **changes}
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases start at one and zero, which would hide a mix-up
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif model_type == "gpt2" and "wpe" in name:
                parameter.mul_(5)
    return model


def _permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head reordered so that neighbours pair: llama files store q and k like this."""
    rows, columns = weight.shape[0], weight.shape[1:]
    return weight.reshape(heads, 2, rows // heads // 2, *columns).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(model: transformers.PreTrainedModel, path: Path, kind: GGMLQuantizationType = GGMLQuantizationType.F32) -> Path:
    """The model as the converter of llama.cpp writes it: names, permutation and transposition."""
    config, state = model.config, dict(model.state_dict())
    arch = {"mistral": "llama"}.get(config.model_type, config.model_type)
    gpt2 = arch == "gpt2"
    writer = GGUFWriter(path, arch)
    heads = config.num_attention_heads
    kv_heads = heads if gpt2 else config.num_key_value_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(4 * config.hidden_size if gpt2 else config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    if gpt2:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    for name, tensor in state.items():
        new = _name(name, gpt2)
        if new is None or (new == "output.weight" and config.tie_word_embeddings):
            continue
        if gpt2 and tensor.ndim == 2 and "token_embd" not in new and "position_embd" not in new:
            tensor = tensor.T
        if arch == "llama" and (".attn_q." in new or ".attn_k." in new):
            tensor = _permuted(tensor, heads if ".attn_q." in new else kv_heads)
        values = tensor.detach().float().contiguous().numpy()
        if kind != GGMLQuantizationType.F32 and values.ndim == 2 and "position" not in new:
            writer.add_tensor(new, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(new, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def _name(name: str, gpt2: bool) -> str | None:
    stem, _, end = name.rpartition(".")
    plain = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
    }
    if stem in plain:
        return f"{plain[stem]}.{end}"
    prefix = "transformer.h." if gpt2 else "model.layers."
    if not stem.startswith(prefix):
        return None
    index, _, part = stem.removeprefix(prefix).partition(".")
    return f"blk.{index}.{_PARTS[part]}.{end}"
