"""Bytes of weights as a file's quantisation stores them: every matrix with its scales, zeros and indices."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from kvcli.model.kept_modules import Matcher
from kvcli.model.linears import Linear, layer_linears
from kvcli.model.scheme import Scheme
from kvcli.model.spec import ModelSpec
from kvcli.plan.mixes.mixed import ByList, ByModule

#: Families whose matrices kvcli cannot list, but whose published fp8 files keep nothing but routers and small projections.
NOMINAL_FP8 = frozenset(("deepseek_v32", "glm_moe_dsa"))


class Amounts(NamedTuple):
    """`elements` quantised weights in `weight_bytes`, and what stands beside them (scales, zeros, indices, tables)."""

    elements: int = 0
    weight_bytes: int = 0
    scale_bytes: int = 0

    def plus(self, other: Amounts, times: int = 1) -> Amounts:
        return Amounts(*(mine + times * added for mine, added in zip(self, other, strict=True)))

    def bytes_with(self, others: int, bits: int) -> int:
        """With `others` weights of `bits` each beside them."""
        return self.weight_bytes + self.scale_bytes + others * bits // 8


class ExpertBytes(NamedTuple):
    """Layers whose routed experts have one size: what one expert of each of `layers` layers takes."""

    num_experts: int
    experts_per_token: int
    layers: int
    bytes_each: int


class Quantized(NamedTuple):
    """What stays in memory, what a step of one token reads, and the experts behind the difference. `exact`: scales included."""

    resident: Amounts
    read: Amounts
    experts: tuple[ExpertBytes, ...]
    exact: bool = True


class NoLayout(Exception):
    """Why the bytes of a file cannot be told; the caller makes it a notice."""


def matrix_amounts(scheme: Scheme, rows: int, columns: int) -> Amounts:
    """One matrix of `rows` outputs x `columns` inputs.

    weights rows x columns x bits / 8; scales ceil(rows / block rows) x ceil(columns / block columns) x their bytes; for each
    scale a zero of `zero_bits`; 4 bytes an input with an index; what a matrix has once. Raises NoLayout where groups or packed
    words do not fill the matrix.
    """
    elements = rows * columns
    width = scheme.block_columns or columns
    word = 32 // scheme.bits if scheme.packed_rows else 1
    whole = not scheme.whole_groups or (columns % width == 0 and rows % (scheme.block_rows or rows) == 0)
    if not whole or rows % word or elements * scheme.bits % 8:
        raise NoLayout(f"a matrix of {rows:,} x {columns:,} does not fill its groups of {width}")
    if scheme.flat:
        scales = -(-elements // width)
        beside = scales * scheme.scale_bytes + (4 * -(-scales // scheme.nested) if scheme.nested else 0)
    else:
        scales = -(-rows // (scheme.block_rows or rows)) * -(-columns // width)
        beside = scales * scheme.scale_bytes + scales * scheme.zero_bits // 8
    beside += 4 * columns * scheme.row_index + scheme.tensor_bytes
    return Amounts(elements, elements * scheme.bits // 8, beside)


def quantized(spec: ModelSpec, scheme: Scheme) -> Quantized:
    """All matrices of a model. Raises NoLayout where the family's matrices are not known or do not fit the scheme."""
    if scheme.experts_only:
        return _experts_only(spec, scheme)
    linears = quantised_linears(spec, scheme)
    if linears is None:
        return _nominal(spec, scheme)
    resident = read = Amounts()
    experts = []
    for (number, own), layers in Counter(zip(spec.order, linears.layers, strict=True)).items():
        p = spec.groups[number].parameters
        outside, one = _layer(own)
        resident = resident.plus(outside, layers).plus(one, layers * p.num_experts)
        outside_read, one_read = _layer(tuple((linear, each.needed()) for linear, each in own))
        read = read.plus(outside_read, layers).plus(one_read, layers * p.experts_per_token)
        if p.num_experts:
            kept = p.expert - one.elements + p.expert_vectors
            size = one_read.bytes_with(kept, int(spec.dtype.bits_per_element))
            experts.append(ExpertBytes(p.num_experts, p.experts_per_token, layers, size))
    if linears.head is not None:
        rows, columns = spec.head_matrix // spec.hidden_size, spec.hidden_size
        resident = resident.plus(matrix_amounts(linears.head, rows, columns))
        read = read.plus(matrix_amounts(linears.head.needed(), rows, columns))
    return Quantized(resident, read, tuple(experts))


#: The quantised matrices of a layer, each with its scheme.
Own = tuple[tuple[Linear, Scheme], ...]


class QuantisedLinears(NamedTuple):
    """Of each layer the matrices that the file quantises, and the scheme of the head, None where it is not."""

    layers: tuple[Own, ...]
    head: Scheme | None


def quantised_linears(spec: ModelSpec, scheme: Scheme) -> QuantisedLinears | None:
    """None where the family's matrices are not known. Raises NoLayout for lists of modules that can be read in two ways."""
    linears = [layer_linears(spec.model_type, spec.hidden_size, group) for group in spec.groups]
    if any(each is None for each in linears):
        return None
    scheme_of = ByModule(spec, scheme) if scheme.mixed else ByList(scheme)
    layers = tuple(_own_schemes(scheme_of, layer, linears[number] or ()) for layer, number in enumerate(spec.order, spec.first_layer))
    head = scheme_of(None, "lm_head")
    if head is not None and spec.tied and scheme.mixed:
        raise NoLayout("it quantises the output matrix, which its config ties to the input table")
    if unclear := scheme_of.unclear():
        raise NoLayout(unclear)
    return QuantisedLinears(layers, head if head is not None and head.head and not spec.tied else None)


def _own_schemes(scheme_of: ByList | ByModule, layer: int, linears: tuple[Linear, ...]) -> Own:
    return tuple((linear, own) for linear in linears if (own := scheme_of(layer, linear.module)) is not None)


def _layer(own: Own) -> tuple[Amounts, Amounts]:
    """Of these matrices of a layer, those outside routed experts, and those of one expert."""
    outside = one = Amounts()
    for linear, scheme in own:
        amounts = matrix_amounts(scheme, linear.rows, linear.columns)
        if linear.expert:
            one = one.plus(amounts)
        else:
            outside = outside.plus(amounts)
    return outside, one


def _experts_only(spec: ModelSpec, scheme: Scheme) -> Quantized:
    """gpt-oss: blocks run along the inputs of each expert's matrices, which are multiples of 32 x hidden size."""
    if spec.model_type != "gpt_oss":
        raise NoLayout(f"{scheme.method} is known for gpt-oss alone")
    if any(Matcher(scheme.kept).keeps(0, f"mlp.experts.{name}") for name in ("gate_up_proj", "down_proj")):
        raise NoLayout("it keeps its experts")
    resident = read = Amounts()
    experts = []
    for group in spec.groups:
        p = group.parameters
        one = gpt_oss_expert(spec, scheme, p.expert)
        resident = resident.plus(one, group.count * p.num_experts)
        read = read.plus(one, group.count * p.experts_per_token)
        size = one.bytes_with(p.expert_vectors, int(spec.dtype.bits_per_element))
        experts.append(ExpertBytes(p.num_experts, p.experts_per_token, group.count, size))
    return Quantized(resident, read, tuple(experts))


def gpt_oss_expert(spec: ModelSpec, scheme: Scheme, matrices: int) -> Amounts:
    """One routed expert of `matrices` parameters."""
    width = matrices // (3 * spec.hidden_size)
    return matrix_amounts(scheme, 2 * width, spec.hidden_size).plus(matrix_amounts(scheme, spec.hidden_size, width))


def _nominal(spec: ModelSpec, scheme: Scheme) -> Quantized:
    """All matrices of the layers but routers, without scales: at most 0.03% too little for float32 scales of 128 x 128."""
    if spec.model_type not in NOMINAL_FP8 or scheme.method != "fp8" or not scheme.block_columns:
        raise NoLayout(f"kvcli does not know the shapes of the matrices of {spec.model_type}")
    resident = read = 0
    experts = []
    for group in spec.groups:
        p = group.parameters
        outside = p.every_token_matrices - p.router
        resident += group.count * (outside + p.expert * p.num_experts)
        read += group.count * (outside + p.expert * p.experts_per_token)
        if p.num_experts:
            experts.append(ExpertBytes(p.num_experts, p.experts_per_token, group.count, p.expert))
    return Quantized(Amounts(resident, resident), Amounts(read, read), tuple(experts), exact=False)
