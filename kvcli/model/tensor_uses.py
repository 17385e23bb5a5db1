"""What devices do with a tensor, told from its name: the uses of `ByUse`, for safetensors and GGUF files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from kvcli.model.layers import LayerGroup
from kvcli.model.state_records import Recurrent
from kvcli.model.weight_parts import ByUse, WeightParts, matrices_by_use

#: A layer's modules by the last part of their path. Fused ones hold queries, keys and values.
_KEY_VALUE = frozenset(("k_proj", "v_proj", "kv_proj", "key", "value", "k", "v", "key_proj", "value_proj", "wk", "wv"))
_FUSED = frozenset(("qkv_proj", "query_key_value", "c_attn", "W_pack", "Wqkv", "qkv"))
_WHOLE = frozenset(
    (
        *("gate", "router", "shared_expert_gate", "q_a_proj", "kv_a_proj_with_mqa", "kv_a_proj", "fused_qkv_a_proj_with_mqa"),
        *("eh_proj", "wq_a", "wkv", "ffn_gate_inp", "ffn_gate_inp_shexp", "attn_q_a", "attn_kv_a_mqa", "exp_probs_b"),
    )
)
_MLP = frozenset(("mlp", "feed_forward", "ffn", "block_sparse_moe", "moe", "shared_mlp", "shared_experts", "shared_expert", "fc1", "fc2"))
#: Their outputs are summed over devices, and the bias is added once.
_SUMMED = frozenset(
    (
        *("o_proj", "out_proj", "dense", "c_proj", "down_proj", "fc2", "fc_out", "dense_4h_to_h", "wo", "w2"),
        *("attn_output", "ffn_down"),
    )
)
_NORM = re.compile(r"norm|(?:^|\.)ln_|_ln(?:\.|$)|(?:^|\.)indexer\.")
#: Mamba-2's gated norm is as wide as its heads together, and goes with them.
_HEADS_NORM = re.compile(r"(?:^|\.)(?:mixer|mamba)\.norm\.|^ssm_norm\.")
_GGUF_MLP = re.compile(r"ffn_(?:gate|up|down)(?:_shexp)?$")


@lru_cache(maxsize=4096)
def layer_use(path: str) -> str:
    """The use of a tensor by its path in a layer (`self_attn.k_proj.weight`, `attn_k.weight`), or "fused".

    Routed experts are told apart before.
    """
    if _HEADS_NORM.search(path):
        return "heads"
    if _NORM.search(path):
        return "whole"
    segments = path.split(".")
    module = segments[-2] if len(segments) > 1 else segments[-1]
    if module in _WHOLE or segments[-1] == "e_score_correction_bias" or (segments[-1] == "bias" and module in _SUMMED):
        return "whole"
    if module in _KEY_VALUE or module in ("attn_k", "attn_v"):
        return "key_value"
    if module in _FUSED or module == "attn_qkv":
        return "fused"
    return "mlp" if not _MLP.isdisjoint(segments) or _GGUF_MLP.match(module) else "heads"


def by_use(amounts: Counter[str], group: LayerGroup | None, hidden_size: int = 0) -> ByUse:
    """Bytes of a layer by use, from those by `layer_use`: fused projections are divided as the config counts them."""
    if group and any(isinstance(record, Recurrent) and record.groups for record in group.records):
        counted = matrices_by_use(hidden_size, group)
        shared = amounts["heads"] * counted.groups // (counted.heads + counted.groups)
        amounts = amounts + Counter({"groups": shared})
        amounts["heads"] -= shared
    fused = amounts["fused"]
    if fused:
        p = group.parameters if group else None
        key_value = fused * p.key_value // (p.query + p.key_value) if p and p.query + p.key_value else 0
        amounts = amounts + Counter({"key_value": key_value, "heads": fused - key_value})
    return ByUse(*(amounts[name] for name in ByUse._fields))


#: Copies of the word tables that files keep in a prediction block.
_BLOCK_TABLES = frozenset(("embed_tokens", "nextn.embed_tokens"))
_BLOCK_HEADS = frozenset(("shared_head.head", "nextn.shared_head_head"))


def block_use(path: str) -> str:
    """As `layer_use`, of a tensor in a prediction block, which may hold tables ("table", "head") of its own."""
    module = path.removesuffix(".weight")
    return "table" if module in _BLOCK_TABLES else "head" if module in _BLOCK_HEADS else layer_use(path)


def block_parts(blocks: Mapping[int, Counter[str]], beside: Counter[str], layer: LayerGroup | None) -> WeightParts | None:
    """Bytes of prediction blocks by number, and of what stands beside them; None where there are none."""
    if not blocks:
        return None
    around = Counter(beside)
    for counted in blocks.values():
        around.update({name: counted.pop(name, 0) for name in ("table", "head")})
    layers = tuple(by_use(blocks[number], layer) for number in sorted(blocks))
    return WeightParts(layers, table=around["table"], head=around["head"], rest=around["rest"])


def layers_by_use(amounts: Iterable[Counter[str]], groups: Iterable[LayerGroup | None], hidden_size: int) -> tuple[ByUse, ...]:
    return tuple(by_use(counted, group, hidden_size) for counted, group in zip(amounts, groups, strict=True))
