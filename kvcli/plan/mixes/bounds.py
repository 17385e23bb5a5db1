"""Bounds on the weights of a model whose GGUF tensors kvcli cannot list: each class of matrices in the least and most bits a mix can use.

What a mix can use for a class is asked of the rule itself, with rows that fill blocks of 256 and rows that fill only blocks of 32.
Rows that do not even fill those are not foreseen: llama.cpp stores them in fp16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvcli.dtypes import FP32, PLAIN, DType
from kvcli.model.gguf.mixer_layout import Stored
from kvcli.model.spec import ModelSpec
from kvcli.plan.mixes.facts import readings
from kvcli.plan.mixes.rule import Rule

MXFP4 = PLAIN["mxfp4"]
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_kv_b", "attn_output", "other")
_MLP = ("ffn_up", "ffn_gate", "ffn_down", "other")


class Bounds(NamedTuple):
    low: DType
    high: DType


class Class(NamedTuple):
    """The matrices of one class, of one layer or outside the layers; `num_experts` 0 where they are not routed experts."""

    layer: int | None
    name: str
    elements: int
    types: Bounds
    num_experts: int = 0
    experts_per_token: int = 0
    lookup: bool = False


def classes(spec: ModelSpec, mix: str) -> tuple[Class, ...]:
    """Everything the model has, by class, so that elements sum to its parameters."""
    return tuple(found for found in (*_outside(spec, mix), *_layers(spec, mix)) if found.elements)


def _outside(spec: ModelSpec, mix: str) -> Iterator[Class]:
    anything = _bounds(spec, mix, (*_ATTENTION, *_MLP))
    yield Class(None, "token_embd", spec.embedding, _bounds(spec, mix, ("token_embd.weight",)), lookup=not spec.tied)
    yield Class(None, "output", spec.head, _bounds(spec, mix, ("output.weight",)))
    yield Class(None, "other_tables", spec.lookups, Bounds(anything.low, FP32), lookup=True)
    yield Class(None, "shared_matrices", spec.shared, anything)
    yield Class(None, "encoder", spec.encoder_parameters, Bounds(anything.low, FP32), lookup=True)  # runs once a source
    yield Class(None, "final_norm", spec.final, Bounds(FP32, FP32))


def _layers(spec: ModelSpec, mix: str) -> Iterator[Class]:
    """Routers and vectors may be of any type: files keep most of them in fp32, but not all."""
    attention, mlp, anything = (_bounds(spec, mix, names) for names in (_ATTENTION, _MLP, (*_ATTENTION, *_MLP)))
    stacked = _bounds(spec, mix, _MLP, depths=(2,))
    loose = Bounds(anything.low, FP32)
    if spec.model_type == "gpt_oss" and stacked.low.bits_per_element > MXFP4.bits_per_element:
        # its experts come in mxfp4, and stay so in most files whatever their name
        stacked = Bounds(MXFP4, stacked.high)
    for layer, number in enumerate(spec.order):
        p = spec.groups[number].parameters
        experts = p.num_experts, p.experts_per_token
        yield Class(layer, "attention", p.attention, attention)
        yield Class(layer, "mixer", p.mixer, anything)
        # beside experts one row of it may be a gate, which stays single
        gate = min(spec.hidden_size, p.mlp) if p.num_experts else 0
        yield Class(layer, "mlp", p.mlp - gate, mlp)
        yield Class(layer, "router_vectors", p.router + p.vectors + gate, loose)
        yield Class(layer, "norms", p.norms, Bounds(FP32, FP32))
        yield Class(layer, "experts", p.expert * p.num_experts, stacked, *experts)
        yield Class(layer, "expert_vectors", p.expert_vectors * p.num_experts, loose, *experts)


def _bounds(spec: ModelSpec, mix: str, names: tuple[str, ...], depths: tuple[int, ...] = (1, 2)) -> Bounds:
    """The types of least and most bits that the rule gives tensors of these names in any layer, under any reading.

    One mix alone asks whether a tensor is stacked, which experts always are and matrices of heads may be.
    """
    found: set[DType] = set()
    for facts in readings(spec, mix, fused=True)[0]:
        # how many query heads share a KV head may be another matter in an unknown file's first layer
        for reading in (facts._replace(gqa=1), facts._replace(gqa=8)):
            for columns in (256, 32):
                for depth in depths if mix == "mxfp4_moe" else depths[:1]:
                    for name in names:
                        probes = tuple(_probe(name, layer, columns, depth) for layer in range(facts.layers))
                        rule = Rule(mix, reading, probes)
                        found.update(rule.type_of(probe) for probe in probes)
    ordered = sorted(found, key=lambda dtype: dtype.bits_per_element)
    return Bounds(ordered[0], ordered[-1])


def _probe(name: str, layer: int, columns: int, depth: int) -> Stored:
    whole = name if name.endswith(".weight") else f"blk.{layer}.{name}.weight"
    return Stored(layer, whole, 1, columns, depth)
