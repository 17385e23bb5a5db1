"""Bytes of the weights by layer and by use, for devices that hold a part of them.

They sum to what `plan.weights` says, to the byte where each part fills whole bytes.
"""

from __future__ import annotations

from collections import Counter

from kvcli.dtypes import DType
from kvcli.model.scheme import Scheme
from kvcli.model.spec import ModelSpec
from kvcli.model.tensor_uses import layer_use, layers_by_use
from kvcli.model.weight_parts import ByUse, WeightParts, matrices_by_use, vectors_by_use
from kvcli.plan.mixes.mix import MixedTensor
from kvcli.plan.quantization import Own, gpt_oss_expert, matrix_amounts, quantised_linears
from kvcli.plan.weights import WeightBytes


def resident_parts(spec: ModelSpec, weights: WeightBytes) -> WeightParts:
    """What stays in memory."""
    if weights.quantized is not None and spec.quantization is not None and spec.quantization.scheme is not None:
        return _of_scheme(spec, spec.quantization.scheme, read=False)
    if weights.mixed is not None:
        return _of_mix(spec, weights.mixed.high)
    if weights.matrix_dtype is None or weights.other_dtype is None:
        if spec.tensors is None or spec.tensors.parts is None:
            raise ValueError("these weights have neither a type nor a file")
        return spec.tensors.parts
    return _of_types(spec, weights.matrix_dtype, weights.other_dtype)


def read_parts(spec: ModelSpec, weights: WeightBytes) -> WeightParts:
    """What a step of one token reads: k experts of E, of looked-up tables nothing."""
    if weights.quantized is not None and spec.quantization is not None and spec.quantization.scheme is not None:
        parts = _of_scheme(spec, spec.quantization.scheme, read=True)
    elif weights.mixed is not None:
        parts = _of_mix(spec, weights.mixed.low)
    else:
        parts = resident_parts(spec, weights)
    layers = tuple(_read(use, spec, number) for use, number in zip(parts.layers, spec.order, strict=True))
    return parts._replace(layers=layers, table=parts.table if spec.tied else 0, word_tables=0, lookups=0, encoder=0)


def _read(use: ByUse, spec: ModelSpec, number: int) -> ByUse:
    p = spec.groups[number].parameters
    return use._replace(experts=use.experts * p.experts_per_token // p.num_experts) if p.num_experts else use


def _size(elements: int, dtype: DType) -> int:
    """Bytes, rounded up where a part does not fill whole blocks: matrices are stored together."""
    return -(-elements * dtype.block_bytes // dtype.block_elements)


def _around(spec: ModelSpec, dtype: DType) -> WeightParts:
    by_word = spec.lookups if spec.lookups % spec.vocab_size == 0 else 0
    counts = (spec.embedding, spec.head, by_word, spec.lookups - by_word, spec.shared + spec.final, spec.encoder_parameters)
    return WeightParts((), *(_size(count, dtype) for count in counts))


def _of_types(spec: ModelSpec, matrix: DType, other: DType) -> WeightParts:
    groups = []
    for group in spec.groups:
        matrices = ByUse(*(_size(count, matrix) for count in matrices_by_use(spec.hidden_size, group)))
        groups.append(matrices.plus(ByUse(*(_size(count, other) for count in vectors_by_use(group)))))
    return _around(spec, other)._replace(layers=tuple(groups[number] for number in spec.order))


def _of_scheme(spec: ModelSpec, scheme: Scheme, read: bool) -> WeightParts:
    """All in the compute dtype, and for each quantised matrix the difference that its type makes. `read`: what a step needs of it."""
    plain = _of_types(spec, spec.dtype, spec.dtype)
    if scheme.experts_only:
        own = scheme.needed() if read else scheme
        changes = [_experts_change(spec, own, number) for number in range(len(spec.groups))]
        return plain._replace(layers=tuple(use.plus(changes[number]) for use, number in zip(plain.layers, spec.order, strict=True)))
    linears = quantised_linears(spec, scheme)
    if linears is None:
        return plain._replace(layers=tuple(_nominal(spec, use, number) for use, number in zip(plain.layers, spec.order, strict=True)))
    known: dict[object, ByUse] = {}
    layers = []
    for use, number, listed in zip(plain.layers, spec.order, linears.layers, strict=True):
        key = (number, listed)
        if key not in known:
            change = _changes(spec, number, listed, read)
            known[key] = use.plus(ByUse(*(change[name] for name in ByUse._fields)))
        layers.append(known[key])
    head = plain.head
    if linears.head is not None:
        own = linears.head.needed() if read else linears.head
        head = matrix_amounts(own, spec.head_matrix // spec.hidden_size, spec.hidden_size).bytes_with(0, 0)
    return plain._replace(layers=tuple(layers), head=head)


def _changes(spec: ModelSpec, number: int, listed: Own, read: bool) -> Counter[str]:
    """Bytes that quantising these matrices adds to each use; fewer than none."""
    found: Counter[str] = Counter()
    experts = spec.groups[number].parameters.num_experts
    for linear, scheme in listed:
        amounts = matrix_amounts(scheme.needed() if read else scheme, linear.rows, linear.columns)
        change = amounts.bytes_with(0, 0) - _size(linear.elements, spec.dtype)
        found["experts" if linear.expert else layer_use(f"{linear.module}.weight")] += change * (experts if linear.expert else 1)
    return found


#: classes of a mix whose tensors are not known, by use; "attention" is divided as its parameters are
_CLASSES = {"attention": "fused", "mixer": "heads", "mlp": "mlp", "router_vectors": "whole", "norms": "whole"}
_AROUND = {"token_embd": "table", "output": "head", "encoder": "encoder", "other_tables": "lookups"}


def _of_mix(spec: ModelSpec, tensors: tuple[MixedTensor, ...]) -> WeightParts:
    layers: list[Counter[str]] = [Counter() for _ in spec.order]
    around: Counter[str] = Counter()
    for tensor in tensors:
        name = tensor.name.partition(f"blk.{tensor.layer}.")[2] or tensor.name
        if tensor.layer is None:
            around[_AROUND.get(name.removesuffix(".weight"), "lookups" if tensor.lookup else "rest")] += tensor.resident_bytes
        else:
            use = "experts" if tensor.num_experts else _CLASSES.get(name) or layer_use(name)
            layers[tensor.layer][use] += tensor.resident_bytes
    return WeightParts(layers_by_use(layers, (spec.groups[number] for number in spec.order), spec.hidden_size), **around)


def _experts_change(spec: ModelSpec, scheme: Scheme, number: int) -> ByUse:
    p = spec.groups[number].parameters
    one = gpt_oss_expert(spec, scheme, p.expert).bytes_with(0, 0) if p.num_experts else 0
    return ByUse(experts=p.num_experts * (one - _size(p.expert, spec.dtype)))


def _nominal(spec: ModelSpec, use: ByUse, number: int) -> ByUse:
    """All matrices but the router in one byte, as `plan.quantization` counts files whose matrices it cannot list."""
    group = spec.groups[number]
    matrices = matrices_by_use(spec.hidden_size, group)
    matrices = matrices._replace(whole=matrices.whole - group.parameters.router)
    return ByUse(*(size - _size(count, spec.dtype) + count for size, count in zip(use, matrices, strict=True)))
