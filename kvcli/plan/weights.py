"""Bytes of the weights: what stays in memory, and what one decode step reads."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.dtypes import COMPUTE, PLAIN, DType, known
from kvcli.errors import BadInput, Notice, NotModelled
from kvcli.ledger import Basis
from kvcli.model.spec import ModelSpec

#: Types of linear layers only; the tables, the head, norms and biases stay in the compute dtype.
LINEAR_ONLY = tuple(PLAIN[name] for name in ("fp8", "int8", "int4", "nvfp4", "mxfp4"))

#: Multiply units that could carry the products, by weight type; the fastest one bounds the time from below.
_UNITS = {
    "fp8": ("fp8", "bf16", "fp16"),
    "int8": ("int8", "bf16", "fp16"),
    "nvfp4": ("fp4", "fp8", "bf16", "fp16"),
    "mxfp4": ("fp4", "fp8", "bf16", "fp16"),
}
_FLOAT_UNITS = ("bf16", "fp16")
#: Engines multiply block-quantised weights with 8-bit activations on the integer units.
_FILE_UNITS = ("int8", "bf16", "fp16")


class WeightBytes(NamedTuple):
    """Bytes of all weights. `matrix_dtype` and `other_dtype` are None when the bytes were read from a header."""

    dtype: str
    resident_bytes: int
    read_bytes_per_step: int
    basis: Basis
    multiply_units: tuple[str, ...]
    matrix_dtype: DType | None = None
    other_dtype: DType | None = None
    notices: tuple[Notice, ...] = ()


def parse_weights(text: str) -> DType:
    """The weight type a user named. Raises NotModelled for the types that GGUF files mix, BadInput for unknown names."""
    found = known(text)
    if found is None and text.strip().lower().startswith(("q", "iq", "tq")):
        raise _mixed(text[:40])
    if found is None:
        names = ", ".join(kind.name for kind in (*COMPUTE, *LINEAR_ONLY))
        raise BadInput(f"--weights {text[:40]!r} is not a type that kvcli knows", hint=f"one of {names}", code="unknown_dtype")
    return found


def _mixed(name: str) -> NotModelled:
    return NotModelled(
        f"weights in {name} are mixed by tensor in real files, so their bytes cannot be told from a config",
        hint="pass the .gguf file itself as the model",
        code="weights_not_modelled",
    )


def weight_bytes(spec: ModelSpec, asked: DType | None) -> WeightBytes:
    """The file's own tensors where the model came from one and no type was asked for, else parameters x type.

    Raises NotModelled for GGUF block types, which files mix by tensor.
    """
    if asked is None and spec.tensors is not None:
        file = spec.tensors
        units = _FLOAT_UNITS if PLAIN.get(file.dtype) in COMPUTE else _FILE_UNITS
        return WeightBytes(file.dtype, file.resident_bytes, file.read_bytes_per_step, Basis.HEADER, units)
    matrix = asked or spec.dtype
    if matrix not in COMPUTE and matrix not in LINEAR_ONLY:
        raise _mixed(matrix.name)
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
        notices=_scale_notice(matrix, other),
    )


def _scale_notice(matrix: DType, other: DType) -> tuple[Notice, ...]:
    if matrix in COMPUTE:
        return ()
    scales = "" if matrix.block_elements >= 16 else ", scales not counted"
    text = f"weights {matrix.name}: the matrices of the layers{scales}; tables, head, norms and biases stay {other.name}"
    return (Notice("weights_linear_only", text),)


def expected_read_bytes(spec: ModelSpec, weights: WeightBytes, batch_size: int) -> int | None:
    """An estimate, not a bound: bytes a step reads when the sequences choose experts independently and evenly.

    Of E experts, k for each of B sequences, E (1 - (1 - k/E)^B) distinct ones are expected; real routing is skewed and reads
    fewer. None for models without routed experts, and where bytes come from a file's header.
    """
    matrix, other = weights.matrix_dtype, weights.other_dtype
    if matrix is None or other is None or not any(group.parameters.num_experts for group in spec.groups):
        return None
    total = float(weights.read_bytes_per_step)
    for group in spec.groups:
        p = group.parameters
        if p.num_experts:
            distinct = p.num_experts * (1 - (1 - p.experts_per_token / p.num_experts) ** batch_size)
            extra = max(0.0, distinct - p.experts_per_token) * group.count
            total += extra * (p.expert * matrix.bits_per_element + p.expert_vectors * other.bits_per_element) / 8
    return round(total)
