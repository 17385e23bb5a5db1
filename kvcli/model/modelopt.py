"""NVIDIA ModelOpt's checkpoints: one algorithm for all matrices, or MIXED_PRECISION, which names each module's.

Scales are those that its exporter writes beside each matrix: `weight_scale`, for 4-bit floats `weight_scale_2`, and
`input_scale` where inputs are quantised with a fixed scale. Its AWQ algorithms are not read: whether a matrix also has a
`pre_quant_scale` depends on what the exporter could fold into the norm before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kvcli.model.fields import Fields
from kvcli.model.kept_modules import MAX_LENGTH, Kept, read_kept
from kvcli.model.scheme import Mixed, NotUnderstood, Scheme, must, only

#: Real lists name each matrix, also of each expert.
MAX_MODULES = 2**18
_EXPERT = re.compile(r"(?<=experts\.)\d{1,6}(?=\.)")


def _float8(kept: Kept) -> Scheme:
    return Scheme("modelopt", "fp8", 8, "fp8", kept, tensor_bytes=8, head=True)


def _float8_rows(kept: Kept) -> Scheme:
    return Scheme("modelopt", "fp8", 8, "fp8", kept, 4, head=True)


def _float8_blocks(kept: Kept) -> Scheme:
    """Named weight-only, but engines quantise the inputs as well."""
    return Scheme("modelopt", "fp8", 8, "fp8", kept, 4, block_rows=128, block_columns=128, whole_groups=True, head=True)


def _mxfp8(kept: Kept) -> Scheme:
    return Scheme("modelopt", "mxfp8", 8, "fp8", kept, 1, block_columns=32, whole_groups=True, head=True)


def _nvfp4(kept: Kept) -> Scheme:
    return Scheme("modelopt", "nvfp4", 4, "nvfp4", kept, 1, block_columns=16, whole_groups=True, tensor_bytes=8, head=True)


def _nvfp4_weights(kept: Kept) -> Scheme:
    return Scheme("modelopt", "nvfp4", 4, "int4", kept, 1, block_columns=16, whole_groups=True, tensor_bytes=4, head=True)


#: Algorithm -> its scheme and the group sizes that mean it; the last is the name of the same blocks in another tool.
ALGORITHMS: dict[str, tuple[Callable[[Kept], Scheme], tuple[int | None, ...]]] = {
    "FP8": (_float8, ()),
    "FP8_PER_CHANNEL_PER_TOKEN": (_float8_rows, ()),
    "FP8_PB_WO": (_float8_blocks, (128, None)),
    "MXFP8": (_mxfp8, (32, None)),
    "NVFP4": (_nvfp4, (16, None)),
    "W4A16_NVFP4": (_nvfp4_weights, (16, None)),
    "FP8_BLOCK_SCALES": (_float8_blocks, (128, None)),
}


def read_modelopt(config: Fields) -> Scheme:
    """The scheme of a ModelOpt `quantization_config`. Raises NotUnderstood, BadInput for values of the wrong type."""
    kept = read_kept(config, ("exclude_modules", "ignore"), "wildcard")
    known = ("quant_algo", "kv_cache_quant_algo", "kv_cache_scheme", "group_size", "config_groups", *kept.keys)
    mixed = config.text("quant_algo", "").upper() == "MIXED_PRECISION"
    only(config, *known, *(("quantized_layers",) if mixed else ()), ignored=("producer",))
    if mixed:
        return _mixed(config, kept)
    scheme = _of_algorithm(config, kept)
    if not kept.keys:
        # ModelOpt always keeps at least the head; a file without the list has lost it
        raise NotUnderstood("it does not say which modules stay unquantised")
    return scheme


def _of_algorithm(config: Fields, kept: Kept) -> Scheme:
    algorithm = config.text("quant_algo", "").upper()
    if algorithm not in ALGORITHMS:
        raise NotUnderstood(f"kvcli has no rule for quant_algo {algorithm[:30]!r}")
    make, groups = ALGORITHMS[algorithm]
    if groups:
        must(config, "group_size", *groups)
    return make(kept)


def _mixed(config: Fields, kept: Kept) -> Scheme:
    """`quantized_layers` names every quantised module, or each expert's matrices, or all experts of a layer at once."""
    layers = config.mapping("quantized_layers")
    if not layers.values:
        raise NotUnderstood("its MIXED_PRECISION names no quantized_layers")
    if len(layers.values) > MAX_MODULES:
        raise layers.bad("quantized_layers", f"it has more than {MAX_MODULES:,} entries")
    nothing = Kept((), (), "wildcard")
    found: dict[str, Scheme] = {}
    numbers: dict[str, set[str]] = {}
    for name in layers.values:
        if not isinstance(name, str) or len(name) > MAX_LENGTH:
            raise layers.bad("quantized_layers", "it must name modules")
        entry = layers.mapping(name)
        algorithm = entry.text("quant_algo", "").upper()
        if algorithm in ("", "NONE", "UNQUANTIZED"):
            continue
        only(entry, "quant_algo", "group_size")
        scheme = _of_algorithm(entry, nothing)
        number = _EXPERT.search(name)
        module = _EXPERT.sub("*", name, count=1)
        if found.setdefault(module, scheme) != scheme:
            raise NotUnderstood(f"it quantises the experts of {module[:60]!r} in different ways")
        numbers.setdefault(module, set()).update((number[0],) if number else ())
    if not found:
        raise NotUnderstood("its MIXED_PRECISION quantises nothing")
    schemes = tuple(dict.fromkeys(found.values()))
    mixed = tuple(Mixed(module, scheme, len(numbers[module])) for module, scheme in found.items())
    labels = list(dict.fromkeys(scheme.label for scheme in schemes))
    units = min((scheme.units for scheme in schemes), key=("nvfp4", "fp8", "int4").index)
    return Scheme("modelopt", "+".join(labels), 0, units, kept, mixed=mixed)
