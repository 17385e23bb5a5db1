"""The matrices of a layer one by one: names and shapes, where the family's modules are known.

Counts by group (`LayerParameters`) suffice for types without scales. Scales by block, row or group of columns depend on each
matrix's shape, and lists of modules that stay unquantised name the modules. Names are those of Hugging Face checkpoints.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli.model.cache_records import Attention
from kvcli.model.latent_records import Latent
from kvcli.model.layers import LayerGroup, LayerParameters

#: families whose attention is self_attn.{q,k,v,o}_proj and whose dense MLP is mlp.{gate,up,down}_proj
_DENSE = ("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "granite", "gemma2", "gemma3_text", "smollm3", "olmo2", "olmo3")
GATED = frozenset((*_DENSE, "seed_oss", "qwen3_moe", "qwen2_moe", "glm4_moe", "mixtral"))
#: families whose attention is q_a/q_b or q, kv_a_proj_with_mqa, kv_b and o
LATENT = frozenset(("deepseek_v2", "deepseek_v3", "kimi_k2"))
#: where a family keeps its experts, and its shared ones
EXPERTS = {"mixtral": "block_sparse_moe.experts"}
SHARED = {"qwen2_moe": "mlp.shared_expert"}
EXPERT_MATRICES = {"mixtral": ("w1", "w3", "w2")}
GATED_MATRICES = ("gate_proj", "up_proj", "down_proj")


class Linear(NamedTuple):
    """One matrix of `rows` outputs x `columns` inputs. `module` is its path in the layer, `*` standing for each expert."""

    module: str
    rows: int
    columns: int
    expert: bool = False

    @property
    def elements(self) -> int:
        return self.rows * self.columns


def layer_linears(model_type: str, hidden_size: int, group: LayerGroup) -> tuple[Linear, ...] | None:
    """The matrices of one layer, each routed expert's once; routers are left out, since quantised files keep them.

    None where the family's modules are not known, or where they do not add up to the layer's counts.
    """
    parameters = group.parameters
    attention = _attention(model_type, hidden_size, group)
    if attention is None or parameters.mlp % (3 * hidden_size) or parameters.expert % (3 * hidden_size):
        return None
    prefix = SHARED.get(model_type, "mlp.shared_experts") if parameters.num_experts else "mlp"
    dense = _gated(prefix, GATED_MATRICES, hidden_size, parameters.mlp // (3 * hidden_size), expert=False)
    names = EXPERT_MATRICES.get(model_type, GATED_MATRICES)
    width = parameters.expert // (3 * hidden_size)
    routed = _gated(f"{EXPERTS.get(model_type, 'mlp.experts')}.*", names, hidden_size, width, expert=True)
    linears = (*attention, *dense, *routed)
    return linears if _adds_up(linears, parameters) else None


def _adds_up(linears: tuple[Linear, ...], parameters: LayerParameters) -> bool:
    outside = sum(linear.elements for linear in linears if not linear.expert)
    routed = sum(linear.elements for linear in linears if linear.expert)
    return outside == parameters.every_token_matrices - parameters.router and routed == parameters.expert


def _gated(prefix: str, names: tuple[str, ...], hidden_size: int, width: int, expert: bool) -> tuple[Linear, ...]:
    if not width:
        return ()
    gate, up, down = (f"{prefix}.{name}" for name in names)
    return Linear(gate, width, hidden_size, expert), Linear(up, width, hidden_size, expert), Linear(down, hidden_size, width, expert)


def _attention(model_type: str, hidden_size: int, group: LayerGroup) -> tuple[Linear, ...] | None:
    if len(group.records) != 1:
        return None
    (record,) = group.records
    if model_type in GATED and isinstance(record, Attention) and record.owns_cache:
        heads, kv_heads = record.num_attention_heads, record.num_key_value_heads
        return (
            Linear("self_attn.q_proj", heads * record.key_dim, hidden_size),
            Linear("self_attn.k_proj", kv_heads * record.key_dim, hidden_size),
            Linear("self_attn.v_proj", kv_heads * record.value_dim, hidden_size),
            Linear("self_attn.o_proj", hidden_size, heads * record.value_dim),
        )
    if model_type in LATENT and isinstance(record, Latent) and record.owns_cache and not record.index_topk:
        return _latent(record, hidden_size, group.parameters.query)
    return None


def _latent(record: Latent, hidden_size: int, query: int) -> tuple[Linear, ...]:
    """The rank of the queries is what their count says: H x A(nope + rope) at once, or r x (H + A(nope + rope))."""
    heads = record.num_attention_heads
    width = heads * (record.nope_dim + record.rope_dim)
    rank = query // (hidden_size + width)
    at_once = (Linear("self_attn.q_proj", width, hidden_size),)
    in_two = (Linear("self_attn.q_a_proj", rank, hidden_size), Linear("self_attn.q_b_proj", width, rank))
    return (
        *(at_once if query == hidden_size * width else in_two),
        Linear("self_attn.kv_a_proj_with_mqa", record.rank + record.rope_dim, hidden_size),
        Linear("self_attn.kv_b_proj", heads * (record.nope_dim + record.value_dim), record.rank),
        Linear("self_attn.o_proj", hidden_size, heads * record.value_dim),
    )
