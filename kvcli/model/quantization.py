"""How a file's weights are quantised: the `quantization_config` of a config.json, read into one `Scheme`.

Layouts are those the formats define: DeepSeek's fp8 blocks (README_WEIGHTS of DeepSeek-V3), AutoAWQ's and GPTQ's qweight,
qzeros, scales and g_idx, bitsandbytes' absmax, compressed-tensors' packed and float formats, NVIDIA ModelOpt's FP8 and NVFP4,
and the MXFP4 experts of gpt-oss. What is not understood is not guessed: the reader says why, and weights are then planned in
the compute dtype.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from kvcli.dtypes import PLAIN, DType
from kvcli.model.fields import Fields
from kvcli.model.kept_modules import read_kept
from kvcli.model.modelopt import read_modelopt
from kvcli.model.scheme import NotUnderstood, Scheme, must, only

#: keys that say how a file was made or is run, not what it holds
GPTQ_IGNORED = (
    *("damp_percent", "damp_auto_increment", "desc_act", "static_groups", "sym", "true_sequential", "model_name_or_path"),
    *("model_file_base_name", "meta", "dataset", "tokenizer", "batch_size", "use_exllama", "exllama_config", "backend"),
    *("use_cuda_fp16", "model_seqlen", "block_name_to_quantize", "module_name_preceding_first_block", "pad_token_id"),
    *("cache_block_outputs", "max_input_length", "disable_exllama", "is_marlin_format"),
)
BITSANDBYTES_IGNORED = (
    *("_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "llm_int8_threshold", "llm_int8_has_fp16_weight"),
    *("llm_int8_enable_fp32_cpu_offload", "bnb_4bit_quant_storage"),
)


class Quantization(NamedTuple):
    """What a file says: `scheme` None where it was not understood, `why` then says what; `kv_dtype` of the cache, if named."""

    method: str
    scheme: Scheme | None
    why: str = ""
    kv_dtype: DType | None = None
    kv_key: str = ""
    kv_why: str = ""


def read_quantization(config: Fields) -> Quantization:
    """The scheme of a `quantization_config`. Raises BadInput for values of the wrong type."""
    method = config.text("quant_method", "") or ("modelopt" if config.has("quant_algo") else "")
    scheme, why = None, ""
    try:
        if method not in _READERS:
            raise NotUnderstood(f"kvcli has no rule for the method {method[:30]!r}" if method else "it names no quant_method")
        found = _READERS[method](config)
        if any(re.search(r"experts\.\d", entry) for entry in found.kept.entries):
            raise NotUnderstood("it keeps single experts unquantised")
        scheme = found
    except NotUnderstood as error:
        why = error.message
    kv_dtype, key, kv_why = _kv(config) if method in ("compressed-tensors", "modelopt") else (None, "", "")
    return Quantization(method[:30], scheme, why, kv_dtype, key, kv_why)


def _kv(config: Fields) -> tuple[DType | None, str, str]:
    """The cache's type where the file fixes it: `kv_cache_scheme`, or ModelOpt's `kv_cache_quant_algo`."""
    if config.has("kv_cache_scheme"):
        scheme = config.mapping("kv_cache_scheme")
        bits, kind = scheme.integer("num_bits", default=0, minimum=0), scheme.text("type", "")
        found = PLAIN["fp8"] if (bits, kind) == (8, "float") else None
        return found, "kv_cache_scheme", "" if found else f"{bits} bits of type {kind[:20]!r}"
    algorithm = config.text("kv_cache_quant_algo", "")
    if not algorithm:
        return None, "", ""
    # values of 4 bits with an fp8 scale for 16 of them, as in weights
    found = {"FP8": PLAIN["fp8"], "NVFP4": PLAIN["nvfp4"]}.get(algorithm.upper())
    return found, "kv_cache_quant_algo", "" if found else repr(algorithm[:20])


def _fp8(config: Fields) -> Scheme:
    """One float32 `weight_scale_inv` a block of 128 x 128, or one scale a matrix where no block size is given."""
    kept = read_kept(config, ("modules_to_not_convert", "ignored_layers"), "prefix")
    only(config, "activation_scheme", "fmt", "weight_block_size", *kept.keys, ignored=("scale_fmt", "dequantize"))
    must(config, "fmt", "e4m3", None)
    must(config, "activation_scheme", "dynamic", "static")
    block = config.integers("weight_block_size", 2, minimum=1)
    if block is None:
        inputs = 4 * (config.values.get("activation_scheme") == "static")
        return Scheme("fp8", "fp8", 8, "fp8", kept, tensor_bytes=4 + inputs)
    return Scheme("fp8", "fp8", 8, "fp8", kept, scale_bytes=4, block_rows=block[0], block_columns=block[1])


def _group(config: Fields) -> int:
    """Columns that share a scale; -1 means all of them."""
    size = config.integer("group_size", default=128, minimum=-1)
    if size == 0:
        raise NotUnderstood("a group_size of 0 means nothing")
    return max(size, 0)


def _named(bits: int, group: int) -> str:
    return f"int{bits}" + (f"-g{group}" if group else "")


def _awq(config: Fields) -> Scheme:
    """qweight and qzeros in 32-bit words of 8 outputs, scales in 16 bits, one a group of inputs."""
    kept = read_kept(config, ("modules_to_not_convert",), "part")
    ignored = ("do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config", "backend")
    only(config, "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", *kept.keys, ignored=ignored)
    must(config, "bits", 4)
    must(config, "zero_point", True)
    if config.text("version", "gemm").lower() != "gemm":
        raise NotUnderstood("kvcli knows the gemm version of AWQ alone")
    if config.has("w_bit") or config.has("q_group_size"):
        raise NotUnderstood("its keys are those of an older AWQ")
    group = _group(config)
    return Scheme("awq", _named(4, group), 4, "int4", kept, 2, block_columns=group, zero_bits=4, packed_rows=True, whole_groups=True)


def _gptq(config: Fields) -> Scheme:
    """qweight packs inputs, qzeros outputs; zeros are stored for symmetric files too. g_idx names each input's group."""
    kept = read_kept(config, ("modules_to_not_convert",), "part")
    only(config, "bits", "group_size", "lm_head", "checkpoint_format", "pack_dtype", *kept.keys, ignored=GPTQ_IGNORED)
    must(config, "bits", 4, 8, 2)
    must(config, "checkpoint_format", "gptq", "gptq_v2", None)
    must(config, "pack_dtype", "int32", None)
    must(config, "is_marlin_format", False, None)
    bits, group = config.integer("bits", default=4), _group(config)
    return Scheme(
        "gptq",
        _named(bits, group),
        bits,
        "int8" if bits == 8 else "int4",
        kept,
        scale_bytes=2,
        block_columns=group,
        zero_bits=bits,
        row_index=True,
        packed_rows=True,
        head=config.boolean("lm_head", False),
        zeros_read=not config.boolean("sym", False),
        index_read=config.boolean("desc_act", True),
    )


def _bitsandbytes(config: Fields) -> Scheme:
    """nf4 or fp4: an absmax for 64 weights, float32, or one byte with a float32 for 256 of them; int8: a float32 a row."""
    kept = read_kept(config, ("llm_int8_skip_modules",), "prefix")
    known = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
    only(config, *known, *kept.keys, ignored=BITSANDBYTES_IGNORED)
    must(config, "llm_int8_has_fp16_weight", False, None)
    four = config.boolean("load_in_4bit", config.boolean("_load_in_4bit", False))
    if four == config.boolean("load_in_8bit", config.boolean("_load_in_8bit", False)):
        raise NotUnderstood("it names neither or both of 4 and 8 bits")
    if not four:
        return Scheme("bitsandbytes", "int8", 8, "int8", kept, scale_bytes=4)
    must(config, "bnb_4bit_quant_type", "fp4", "nf4")
    kind = config.text("bnb_4bit_quant_type", "fp4")
    # a table of 16 float32 for each matrix; nested ones have a table of 256 more and a float32 of offset
    if config.boolean("bnb_4bit_use_double_quant", False):
        return Scheme("bitsandbytes", kind, 4, "int4", kept, 1, block_columns=64, flat=True, nested=256, tensor_bytes=4 * (16 + 256 + 1))
    return Scheme("bitsandbytes", kind, 4, "int4", kept, 4, block_columns=64, flat=True, tensor_bytes=4 * 16)


def _compressed(config: Fields) -> Scheme:
    """One group for all Linear modules; scales are 16-bit, those of 4-bit floats one byte and a float32 a matrix."""
    kept = read_kept(config, ("ignore",), "compressed")
    known = ("config_groups", "format", "quantization_status", "kv_cache_scheme", *kept.keys)
    only(config, *known, ignored=("global_compression_ratio", "version"))
    must(config, "quantization_status", "compressed", "frozen", None)
    groups = config.mapping("config_groups")
    if len(groups.values) != 1:
        raise NotUnderstood(f"it has {len(groups.values)} config_groups, and kvcli has a rule for one")
    group = groups.mapping(next(iter(groups.values)))
    only(group, "targets", "weights", "format", ignored=("input_activations", "output_activations"))
    must(group, "targets", ["Linear"])
    weights = group.mapping("weights")
    ignored = ("observer", "observer_kwargs", "dynamic")
    only(weights, "num_bits", "type", "strategy", "group_size", "symmetric", "actorder", "block_structure", ignored=ignored)
    must(weights, "actorder", None, "static", "weight")
    must(weights, "symmetric", True)
    layout = config.text("format", group.text("format", ""))
    kind = (layout, weights.integer("num_bits", default=8), weights.text("type", "int"), weights.text("strategy", "tensor"))
    inputs = group.has("input_activations")
    if kind[1:] == (4, "int", "group") and layout == "pack-quantized" and not inputs:
        size = weights.integer("group_size")
        return Scheme("compressed-tensors", _named(4, size), 4, "int4", kept, 2, block_columns=size, whole_groups=True, head=True)
    if kind[1:] == (4, "int", "channel") and layout == "pack-quantized" and not inputs:
        return Scheme("compressed-tensors", "int4", 4, "int4", kept, 2, head=True)
    eight = {("float-quantized", "float"): "fp8", ("int-quantized", "int"): "int8", ("naive-quantized", "float"): "fp8"}
    name = eight.get((layout, kind[2]))
    if kind[1] == 8 and name and kind[3] == "channel":
        return Scheme("compressed-tensors", name, 8, name, kept, 2, head=True)
    if kind[1] == 8 and name and kind[3] == "tensor":
        return Scheme("compressed-tensors", name, 8, name, kept, tensor_bytes=2, head=True)
    if kind[1:] == (4, "float", "tensor_group") and layout == "nvfp4-pack-quantized":
        must(weights, "group_size", 16)
        return Scheme("compressed-tensors", "nvfp4", 4, "nvfp4", kept, 1, block_columns=16, whole_groups=True, tensor_bytes=8, head=True)
    raise NotUnderstood(f"kvcli has no rule for {kind[1]} bits of type {kind[2][:20]!r} by {kind[3][:20]} in format {layout[:30]!r}")


def _mxfp4(config: Fields) -> Scheme:
    """gpt-oss: routed experts alone, one byte of scale for 32 weights of 4 bits."""
    kept = read_kept(config, ("modules_to_not_convert",), "prefix")
    only(config, *kept.keys, ignored=("dequantize",))
    return Scheme("mxfp4", "mxfp4", 4, "mxfp4", kept, 1, block_columns=32, whole_groups=True, experts_only=True)


_READERS: dict[str, Callable[[Fields], Scheme]] = {
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "modelopt": read_modelopt,
    "mxfp4": _mxfp4,
}
