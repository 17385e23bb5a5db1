"""Storage types: how many bytes hold how many elements.

A type is a block of `block_elements` elements in `block_bytes` bytes, scales inside the block included; plain types are
blocks of one. Block sizes are those of ggml (`ggml-common.h`) and of the OCP microscaling formats (mxfp4: 32 values and
one scale byte; nvfp4: 16 values and one scale byte).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcli.errors import BadInput


class DType(NamedTuple):
    """A storage type. `name` is the spelling that kvcli prints."""

    name: str
    block_elements: int
    block_bytes: int

    def bytes_for(self, elements: int) -> int:
        """Bytes of a contiguous row of `elements` elements.

        Raises BadInput where the row does not fill whole blocks: no engine can store such a row.
        """
        blocks, rest = divmod(elements, self.block_elements)
        if rest:
            raise BadInput(
                f"{self.name} stores blocks of {self.block_elements} elements, and a row of {elements} does not fill them",
                hint="choose fp16, bf16, fp8 or int8",
                code="row_not_in_blocks",
            )
        return blocks * self.block_bytes

    @property
    def bits_per_element(self) -> float:
        return 8 * self.block_bytes / self.block_elements


def _table(*rows: tuple[str, int, int]) -> dict[str, DType]:
    return {name: DType(name, elements, size) for name, elements, size in rows}


#: Types a KV cache or a plain weight can be stored in.
PLAIN = _table(
    ("fp32", 1, 4),
    ("fp16", 1, 2),
    ("bf16", 1, 2),
    ("fp8", 1, 1),
    ("int8", 1, 1),
    ("int4", 2, 1),
    ("nvfp4", 16, 9),
    ("mxfp4", 32, 17),
    ("q8_0", 32, 34),
    ("q5_1", 32, 24),
    ("q5_0", 32, 22),
    ("q4_1", 32, 20),
    ("q4_0", 32, 18),
    ("iq4_nl", 32, 18),
)

#: Types that only tensors in files have.
FILE_ONLY = _table(
    ("fp64", 1, 8),
    ("int16", 1, 2),
    ("int32", 1, 4),
    ("int64", 1, 8),
    ("q8_1", 32, 36),
    ("q2_k", 256, 84),
    ("q3_k", 256, 110),
    ("q4_k", 256, 144),
    ("q5_k", 256, 176),
    ("q6_k", 256, 210),
    ("q8_k", 256, 292),
    ("iq2_xxs", 256, 66),
    ("iq2_xs", 256, 74),
    ("iq2_s", 256, 82),
    ("iq3_xxs", 256, 98),
    ("iq3_s", 256, 110),
    ("iq1_s", 256, 50),
    ("iq1_m", 256, 56),
    ("iq4_xs", 256, 136),
    ("tq1_0", 256, 54),
    ("tq2_0", 256, 66),
    # ggml's own nvfp4 block: four groups of 16, so 64 elements
    ("nvfp4_ggml", 64, 36),
)

_ALIASES = {
    "f32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "f16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}

FP32, FP16, BF16 = (PLAIN[name] for name in ("fp32", "fp16", "bf16"))

#: Types that hold floating-point numbers without scales: what a model can compute in.
COMPUTE = (FP32, FP16, BF16)


def known(text: str) -> DType | None:
    """The plain type of that name or alias, or None."""
    name = text.strip().lower().removeprefix("torch.")
    return PLAIN.get(_ALIASES.get(name, name))


def parse(text: str, option: str) -> DType:
    """The type a user named. Raises BadInput that lists the names."""
    found = known(text)
    if found is None:
        raise BadInput(
            f"{option} {text!r} is not a type that kvcli knows",
            hint="one of " + ", ".join(PLAIN),
            code="unknown_dtype",
        )
    return found


class KvTypes(NamedTuple):
    """The types of K and of V, which engines let differ."""

    key: DType
    value: DType

    @property
    def label(self) -> str:
        return self.key.name if self.key == self.value else f"{self.key.name}:{self.value.name}"


def parse_kv(text: str, option: str = "--kv-dtype") -> KvTypes:
    """`T` for both, or `K:V`."""
    key, colon, value = text.partition(":")
    first = parse(key, option)
    return KvTypes(first, parse(value, option) if colon else first)
