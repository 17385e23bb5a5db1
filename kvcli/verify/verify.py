"""All checks of one model: built once with random fp32 weights of its shape, cut where the shape is only an example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from kvcli.dtypes import FP32, DType
from kvcli.measure.devices import TORCH_DTYPES, is_out_of_memory
from kvcli.measure.run import check_memory, out_of_memory, run_plan
from kvcli.model.cut import cut_layers
from kvcli.model.layers import group_layers
from kvcli.model.resolve import resolve
from kvcli.model.spec import ModelSpec
from kvcli.runtime.source import open_source
from kvcli.runtime.transformer import Transformer
from kvcli.verify.checks import Check, Skipped, Verification
from kvcli.verify.growth import allocator_skipped, growth_checks
from kvcli.verify.parity import DECODE_TOKENS, PREFILL_TOKENS, parity_checks
from kvcli.verify.rope import rope_checks

#: Layers of the example models for positions and windows, where depth proves nothing more.
EXAMPLE_LAYERS = 4
#: A window shorter than the 48 tokens of the parity check, so that it slides.
EXAMPLE_WINDOW = 24

#: Called with each check as it is done.
OnCheck = Callable[[Check], None]


def verify_model(
    spec: ModelSpec, contexts: Sequence[int], device: torch.device, dtype: DType = FP32, on_check: OnCheck | None = None
) -> Verification:
    """Growth, parity and RoPE of a model's shape. Raises CannotRunHere where weights and cache do not fit."""
    checks: list[Check] = []
    skipped = [item for item in (allocator_skipped(device),) if item]

    def done(check: Check) -> None:
        checks.append(check)
        if on_check is not None:
            on_check(check)

    longest = max(contexts)
    plan = run_plan(spec, dtype, "static", longest, longest, None)
    check_memory(plan, device)
    try:
        model = _random_model(spec, dtype, device, max(longest, PREFILL_TOKENS + DECODE_TOKENS))
        for check in growth_checks(model, dtype, contexts):
            done(check)
        if dtype != FP32:
            skipped.append(Skipped("parity.*", f"logits are compared in fp32, and this run computes in {dtype.name}"))
        else:
            for label, example in (("model", model), *_examples(device)):
                for check in parity_checks(example, label):
                    done(check)
    except (RuntimeError, MemoryError) as failure:
        if is_out_of_memory(failure):
            raise out_of_memory(plan, None) from None
        raise
    for check in rope_checks():
        done(check)
    return Verification(tuple(checks), tuple(skipped))


def _random_model(spec: ModelSpec, dtype: DType, device: torch.device, positions: int) -> Transformer:
    return open_source(spec, None, random=True).load(TORCH_DTYPES[dtype.name], device, positions)


def _examples(device: torch.device) -> list[tuple[str, Transformer]]:
    """Small models for what the verified one may lack: learned positions, and a window that slides."""
    total = PREFILL_TOKENS + DECODE_TOKENS
    learned = cut_layers(resolve("gpt2"), EXAMPLE_LAYERS)
    windowed = with_window(cut_layers(resolve("smollm2-135m"), EXAMPLE_LAYERS), EXAMPLE_WINDOW)
    return [
        ("learned_positions", _random_model(learned, FP32, device, total)),
        ("window", _random_model(windowed, FP32, device, total)),
    ]


def with_window(spec: ModelSpec, window: int) -> ModelSpec:
    """The model with a window on every second layer, from the first on."""
    windows = tuple(window if index % 2 == 0 else None for index in range(spec.num_hidden_layers))
    group = spec.groups[0]
    groups, order = group_layers(((group.attention._replace(window_tokens=each),), group.parameters) for each in windows)
    return replace(spec, name=f"{spec.name} with windows", groups=groups, order=order)


def failure(verification: Verification) -> str | None:
    """The first line that differs, as a sentence; None where all match."""
    for check in verification.checks:
        if not check.matches:
            note = f": {check.note}" if check.note else ""
            return f"{check.name} differs: predicted {check.predicted:,} {check.unit}, observed {check.observed:,} {check.unit}{note}"
    return None
