"""Bytes of the weights: what stays in memory, and what one decode step reads."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.dtypes import COMPUTE, PLAIN, DType
from kvcli.errors import Notice, NotModelled
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
        raise NotModelled(
            f"weights in {matrix.name} are mixed by tensor in real files, so their bytes cannot be told from a config",
            hint="pass the .gguf file itself as the model",
            code="weights_not_modelled",
        )
    other = matrix if matrix in COMPUTE else spec.dtype
    matrix_bytes = matrix.bytes_for(spec.block_matrices)
    unread = spec.parameters - spec.active_parameters
    return WeightBytes(
        dtype=matrix.name,
        resident_bytes=matrix_bytes + other.bytes_for(spec.parameters - spec.block_matrices),
        read_bytes_per_step=matrix_bytes + other.bytes_for(spec.parameters - spec.block_matrices - unread),
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
