"""Exact weight bytes from a GGUF file's tensor list, and the tensors held against the layers that its metadata describes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from kvcli.errors import Notice, NotModelled
from kvcli.model.cache_records import Attention
from kvcli.model.gguf.header import TensorInfo
from kvcli.model.gguf.meta import Meta
from kvcli.model.layers import LayerGroup
from kvcli.model.spec import ModelSpec, TensorFile
from kvcli.model.tensor_uses import block_parts, block_use, layer_use, layers_by_use
from kvcli.model.weight_parts import WeightParts

#: Tensors that hold rotary factors: positions, not weights of the model.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
#: Tables beside the input table of which a step reads rows.
_LOOKUPS = ("position_embd.weight", "per_layer_token_embd.weight", "token_types.weight")
_AROUND = {
    "token_embd.weight": "table",
    "per_layer_token_embd.weight": "word_tables",
    "position_embd.weight": "lookups",
    "token_types.weight": "lookups",
    "output.weight": "head",
}
_BLOCK = re.compile(r"blk\.(\d{1,6})\.")
#: Stacked by expert; the oldest files have one tensor an expert.
_EXPERTS = re.compile(r"(?:_exps\.(?:weight|bias|scale)|ffn_(?:gate|up|down)\.\d+\.(?:weight|bias))$")
_TOWERS = ("v.", "mm.", "a.", "resampler.", "model.image_newline")


def sum_tensors(spec: ModelSpec, meta: Meta, tensors: Iterable[TensorInfo]) -> tuple[TensorFile, int]:
    """Bytes by use, and the elements of the decoder's tensors without rotary factors and the routers' correction biases.

    Read in a step: all but the tables of which it reads rows, of routed experts k of E. Blocks behind the decoder's layers
    predict further tokens and are apart, as are towers.
    """
    stored: Counter[str] = Counter()
    layers: list[Counter[str]] = [Counter() for _ in spec.order]
    around: Counter[str] = Counter()
    blocks: dict[int, Counter[str]] = {}
    unread_bytes = mtp_bytes = tower_bytes = elements = 0
    for tensor in tensors:
        name, size_bytes = tensor.name, tensor.size_bytes
        found = _BLOCK.match(name)
        if name.startswith(_TOWERS):
            tower_bytes += size_bytes
            continue
        block = int(found[1]) if found else -1
        if meta.layers <= block < meta.layers + meta.mtp_layers:
            mtp_bytes += size_bytes
            use = "experts" if _EXPERTS.search(name) else block_use(name[found.end() if found else 0 :])
            blocks.setdefault(block, Counter())[use] += size_bytes
            continue
        stored[tensor.dtype.name] += size_bytes
        if name not in ROPE_FACTORS and not name.endswith("exp_probs_b.bias"):
            elements += tensor.elements
        if name in _LOOKUPS or (name == "token_embd.weight" and not spec.tied):
            unread_bytes += size_bytes
        if found and block < len(spec.order):
            if _EXPERTS.search(name):
                parameters = spec.groups[spec.order[block]].parameters
                if parameters.num_experts:
                    unread_bytes += size_bytes - size_bytes * parameters.experts_per_token // parameters.num_experts
                layers[block]["experts"] += size_bytes
            else:
                layers[block][layer_use(name[found.end() :])] += size_bytes
        else:
            around[_AROUND.get(name, "rest")] += size_bytes
    resident_bytes = sum(stored.values())
    dtype = stored.most_common(1)[0][0]
    parts = WeightParts(layers_by_use(layers, (spec.groups[number] for number in spec.order), spec.hidden_size), **around)
    mtp_parts = block_parts(blocks, Counter(), LayerGroup(0, 1, *spec.mtp.layer) if spec.mtp else None)
    file = TensorFile(dtype, resident_bytes, resident_bytes - unread_bytes, mtp_bytes, tower_bytes, parts, mtp_parts)
    return file, elements


def check_widths(spec: ModelSpec, meta: Meta) -> None:
    """Raises NotModelled where the keys or values of a layer are not as wide as its cache record says.

    The metadata of a file may use a key in a way that its reader does not know; the tensors cannot.
    """
    for layer, number in enumerate(spec.order):
        records = [record for record in spec.groups[number].records if isinstance(record, Attention)]
        key, value, fused = (meta.tensors.get(f"blk.{layer}.attn_{name}.weight") for name in ("k", "v", "qkv"))
        if not records:
            # the DeltaNet's projections are fused under the attention's name
            if key is not None and spec.order and not any(record.kind == "latent" for record in spec.groups[number].records):
                raise _differs(meta, layer, "has keys", "none")
            continue
        (record,) = records
        heads, kv_heads = record.num_attention_heads, record.num_key_value_heads
        wanted = {"k": (key, kv_heads * record.key_dim), "v": (value, kv_heads * record.value_dim)}
        wanted["qkv"] = (fused, heads * record.key_dim + kv_heads * (record.key_dim + record.value_dim))
        for name, (tensor, width) in wanted.items():
            if tensor is not None and (len(tensor.shape) != 2 or tensor.shape[1] != width):
                raise _differs(meta, layer, f"has attn_{name} of shape {list(tensor.shape)}", f"{width:,} rows")


def _differs(meta: Meta, layer: int, has: str, wanted: str) -> NotModelled:
    return NotModelled(
        f"{meta.where}: layer {layer} {has} where its metadata, as kvcli reads it, makes {wanted}",
        hint="pass the model's config.json instead",
        code="variant_not_modelled",
    )


def count_notice(spec: ModelSpec, elements: int) -> tuple[Notice, ...]:
    """The tensor list is the truth about weights; a metadata block that disagrees with it deserves a word."""
    if elements == spec.parameters:
        return ()
    text = f"{spec.source} holds {elements:,} weights, its metadata describes {spec.parameters:,}: bytes are those of its tensors"
    return (Notice("tensor_count_differs", text),)
