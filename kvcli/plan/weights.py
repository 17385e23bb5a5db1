"""Bytes of the weights: what stays in memory, and what one decode step reads."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kvcli.dtypes import COMPUTE, PLAIN, DType, known
from kvcli.errors import BadInput, Notice
from kvcli.ledger import Basis, Formula
from kvcli.model.spec import ModelSpec
from kvcli.plan.mixes.names import MIXES, RULE, Mix, parse_mix

if TYPE_CHECKING:
    from kvcli.model.quantization import Quantization
    from kvcli.model.scheme import Scheme
    from kvcli.plan.quantization import Quantized

if TYPE_CHECKING:
    from kvcli.plan.mixes.mix import Mixed

#: Types of linear layers only; the tables, the head, norms and biases stay in the compute dtype.
LINEAR_ONLY = tuple(PLAIN[name] for name in ("fp8", "int8", "int4", "nvfp4", "mxfp4"))

#: AWQ's and GPTQ's rule: N weights of 4 bits share a scale of 16 bits and a zero of 4, so 4 + 20/N bits a weight.
#: A block of 2 N weights is N + 5 bytes.
INT4_GROUPS = {name: DType(name, 2 * size, size + 5) for size in (32, 64, 128) for name in (f"int4-g{size}",)}

#: Multiply units that could carry the products, by weight type; the fastest one bounds the time from below.
_UNITS = {
    # 4-bit weights are also multiplied with activations of 8 bits (W4A8), and of 4 where there are units for that (W4A4)
    **dict.fromkeys(("int4", "int4-g32", "int4-g64", "int4-g128"), ("int4", "int8", "fp8", "bf16", "fp16")),
    "fp8": ("fp8", "bf16", "fp16"),
    "int8": ("int8", "bf16", "fp16"),
    "nvfp4": ("fp4", "fp8", "bf16", "fp16"),
    "mxfp4": ("fp4", "fp8", "bf16", "fp16"),
}
_FLOAT_UNITS = ("bf16", "fp16")
#: Engines multiply block-quantised weights with 8-bit activations on the integer units.
_FILE_UNITS = ("int8", "bf16", "fp16")


class WeightBytes(NamedTuple):
    """Bytes of all weights. `matrix_dtype` and `other_dtype` are None when the bytes were read from a header or follow the
    file's own quantisation, which is then in `quantized`, or a mix of GGUF types, which is in `mixed`.

    `resident_low_bytes`: the low end where the bytes are a range; then `resident_bytes` is the high end, which must fit, and
    `read_bytes_per_step` follows the low one, since it bounds a step from below.
    """

    dtype: str
    resident_bytes: int
    read_bytes_per_step: int
    basis: Basis
    multiply_units: tuple[str, ...]
    matrix_dtype: DType | None = None
    other_dtype: DType | None = None
    notices: tuple[Notice, ...] = ()
    quantized: Quantized | None = None
    resident_low_bytes: int | None = None
    mixed: Mixed | None = None

    def mixed_formula(self, read: bool) -> Formula:
        """Elements by type, of the resident bytes (of a range, its high end) or of those that a step reads (its low end)."""
        if self.mixed is None:
            raise ValueError("these weights are not a mix")
        return Formula("weights_mixed_read", self.mixed.read_elements) if read else Formula("weights_mixed", self.mixed.resident_elements)

    def quantized_formula(self, spec: ModelSpec, read: bool) -> Formula:
        """The equation of a file's own quantisation, of the resident bytes or of those that a step reads."""
        if self.quantized is None:
            raise ValueError("these weights do not follow a file's quantisation")
        amounts = self.quantized.read if read else self.quantized.resident
        terms = (
            ("quantized_parameters", amounts.elements),
            ("bits_each", 8 * amounts.weight_bytes / amounts.elements if amounts.elements else 0),
            ("scale_bytes", amounts.scale_bytes),
            ("other_parameters", (spec.step_parameters if read else spec.parameters) - amounts.elements),
            ("other_bits_each", spec.dtype.bits_per_element),
        )
        return Formula("weights_quantized_read" if read else "weights_quantized", terms)


def parse_weights(text: str) -> DType | Mix:
    """The weight type, or mix of GGUF types, that a user named in any case. Raises BadInput that lists the names."""
    found = parse_mix(text) or INT4_GROUPS.get(text.strip().lower()) or known(text)
    if found is None:
        hint = "one of " + ", ".join(type_names())
        raise BadInput(f"--weights {text[:40]!r} is not a type that kvcli knows", hint=hint, code="unknown_dtype")
    return found


def type_names() -> tuple[str, ...]:
    """What `--weights` takes."""
    return (*(kind.name for kind in (*COMPUTE, *LINEAR_ONLY, *INT4_GROUPS.values())), *MIXES)


@lru_cache(maxsize=64)  # the same at every point of a sweep and every step of a search
def weight_bytes(spec: ModelSpec, asked: DType | Mix | None) -> WeightBytes:
    """The file's own tensors where the model came from one and no type was asked for; a mix by llama.cpp's rule; else parameters x type.

    Raises BadInput where a mix's blocks do not fit the model's rows.
    """
    if isinstance(asked, DType) and asked.name in MIXES:
        asked = Mix(asked.name)
    if isinstance(asked, Mix):
        return _mixed_bytes(spec, asked)
    if asked is None and spec.tensors is not None:
        file = spec.tensors
        # fp8 and fp4 files may also be multiplied on units of their own type: the fastest of all bounds the time
        units = _FLOAT_UNITS if PLAIN.get(file.dtype) in COMPUTE else tuple(dict.fromkeys((*_UNITS.get(file.dtype, ()), *_FILE_UNITS)))
        return WeightBytes(file.dtype, file.resident_bytes, file.read_bytes_per_step, Basis.HEADER, units)
    notices: tuple[Notice, ...] = ()
    if asked is None and spec.quantization is not None:
        own = _file_bytes(spec, spec.quantization)
        if isinstance(own, WeightBytes):
            return own
        notices = (own,)
    matrix = asked or spec.dtype
    other = matrix if matrix in COMPUTE else spec.dtype
    read_matrices = spec.active_matrices - spec.shared
    return WeightBytes(
        dtype=matrix.name,
        resident_bytes=matrix.bytes_for(spec.block_matrices) + other.bytes_for(spec.parameters - spec.block_matrices),
        read_bytes_per_step=matrix.bytes_for(read_matrices) + other.bytes_for(spec.step_parameters - read_matrices),
        basis=Basis.FORMULA,
        multiply_units=_UNITS.get(matrix.name, _FLOAT_UNITS),
        matrix_dtype=matrix,
        other_dtype=other,
        notices=(*notices, *_scale_notice(matrix, other)),
    )


def _file_bytes(spec: ModelSpec, quantization: Quantization) -> WeightBytes | Notice:
    """The weights as the file stores them, or the notice that says why they are planned in the compute dtype."""
    from kvcli.plan.quantization import NoLayout, quantized  # only quantised files pay for it

    scheme, why = quantization.scheme, quantization.why
    if scheme is not None:
        try:
            amounts = quantized(spec, scheme)
        except NoLayout as error:
            why = str(error)
        else:
            bits = int(spec.dtype.bits_per_element)
            return WeightBytes(
                dtype=scheme.label,
                resident_bytes=amounts.resident.bytes_with(spec.parameters - amounts.resident.elements, bits),
                read_bytes_per_step=amounts.read.bytes_with(spec.step_parameters - amounts.read.elements, bits),
                basis=Basis.FORMULA,
                multiply_units=_UNITS.get(scheme.units, _FLOAT_UNITS),
                notices=(_own_notice(spec, scheme, amounts),),
                quantized=amounts,
            )
    method = f" ({quantization.method})" if quantization.method else ""
    text = f"{spec.source} is quantised{method}, but {why}: weights are planned in {spec.dtype.name} unless --weights says otherwise"
    return Notice("quantized_weights", text)


def _mixed_bytes(spec: ModelSpec, mix: Mix) -> WeightBytes:
    """Of a range the high end is resident, the low end read."""
    # only a plan that asks for a mix loads its rule
    from kvcli.plan.mixes.mix import mixed_tensors

    mixed = mixed_tensors(spec, mix)
    shares = mixed.resident_elements
    total = sum(elements for _, elements in shares)
    types = ", ".join(f"{name} {100 * elements / total:.3g}%" for name, elements in shares)
    if mixed.why:
        notice = Notice("weights_range", f"weights {mix.name} are a range, because {mixed.why}: the high end must fit, the low end is read")
    else:
        notice = Notice("weights_mixed", f"weights {mix.name} as {RULE} mixes types by tensor: {types}; other recipes of that name differ")
    return WeightBytes(
        dtype=mix.name,
        resident_bytes=mixed.resident_bytes,
        read_bytes_per_step=mixed.read_bytes_per_step,
        basis=Basis.ENGINE_RULE,
        multiply_units=_FILE_UNITS if mix.name != "mxfp4_moe" else (*_UNITS["mxfp4"], "int8"),
        notices=(notice,),
        resident_low_bytes=mixed.resident_low_bytes if mixed.why else None,
        mixed=mixed,
    )


def _own_notice(spec: ModelSpec, scheme: Scheme, amounts: Quantized) -> Notice:
    if not amounts.exact:
        text = f"weights {scheme.label} as {spec.source} says, scales not counted: the shapes of its matrices are not known"
        return Notice("scales_not_counted", text)
    what = "routed experts" if scheme.experts_only else "matrices"
    text = (
        f"weights {scheme.label} as {spec.source} says ({scheme.method}), with scales: {amounts.resident.elements:,} parameters in {what}"
    )
    return Notice("weights_of_file", f"{text}; routers, tables, norms and biases stay {spec.dtype.name}")


def _scale_notice(matrix: DType, other: DType) -> tuple[Notice, ...]:
    if matrix in COMPUTE:
        return ()
    scales = "" if matrix.block_elements >= 16 else ", one scale a matrix at most, which is not counted"
    text = f"weights {matrix.name}: the matrices of the layers{scales}; tables, head, norms and biases stay {other.name}"
    return (Notice("weights_linear_only", text),)


def expected_read_bytes(spec: ModelSpec, weights: WeightBytes, batch_size: int) -> int | None:
    """An estimate, not a bound: bytes a step reads when the sequences choose experts independently and evenly.

    Of E experts, k for each of B sequences, E (1 - (1 - k/E)^B) distinct ones are expected; real routing is skewed and reads
    fewer. None for models without routed experts, and where bytes come from a file's header.
    """
    if weights.quantized is not None:
        return _expected_of_file(weights.quantized, weights.read_bytes_per_step, batch_size)
    if weights.mixed is not None:
        stacked = [tensor for tensor in weights.mixed.low if tensor.num_experts]
        more = [tensor.expert_bytes * _extra_experts(tensor.num_experts, tensor.experts_per_token, batch_size) for tensor in stacked]
        return round(weights.read_bytes_per_step + sum(more)) if more else None
    matrix, other = weights.matrix_dtype, weights.other_dtype
    if matrix is None or other is None or not any(group.parameters.num_experts for group in spec.groups):
        return None
    total = float(weights.read_bytes_per_step)
    for group in spec.groups:
        p = group.parameters
        if p.num_experts:
            extra = _extra_experts(p.num_experts, p.experts_per_token, batch_size) * group.count
            total += extra * (p.expert * matrix.bits_per_element + p.expert_vectors * other.bits_per_element) / 8
    return round(total)


def _extra_experts(num_experts: int, experts_per_token: int, batch_size: int) -> float:
    """Distinct experts beyond the k of one token."""
    distinct = num_experts * (1 - (1 - experts_per_token / num_experts) ** batch_size)
    return max(0.0, distinct - experts_per_token)


def _expected_of_file(amounts: Quantized, read_bytes: int, batch_size: int) -> int | None:
    extra = [e.layers * e.bytes_each * _extra_experts(e.num_experts, e.experts_per_token, batch_size) for e in amounts.experts]
    return round(read_bytes + sum(extra)) if extra else None
