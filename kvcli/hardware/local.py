"""The GPUs of this machine, by the exact names their driver reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvcli.errors import BadInput, CannotRunHere
from kvcli.hardware.accelerators import Accelerator, by_driver_name


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """What the driver says. `part` is None where the table has no row, or several, of that name."""

    driver_name: str
    memory_bytes: int
    part: Accelerator | None


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML while it is open, or None where there is no GPU, driver or binding."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def local_gpus() -> list[LocalGpu]:
    """The machine's NVIDIA GPUs; empty without a GPU, a driver or the NVML bindings. Never raises."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        try:
            return [_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError:
            return []


def driver_version() -> str | None:
    """The NVIDIA driver's version, None where it is not known."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        try:
            return _text(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError:
            return None


def _text(value: object) -> str:
    """Older bindings answer in bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _gpu(nvml: Any, handle: object) -> LocalGpu:
    name = _text(nvml.nvmlDeviceGetName(handle))
    try:
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:  # unified-memory parts do not answer
        total = 0
    return LocalGpu(name, total, match(name, total))


def match(name: str, memory_bytes: int) -> Accelerator | None:
    """The one part of that driver name; where several share it, the one whose memory agrees within 2%."""
    named = by_driver_name(name)
    if len(named) > 1 and memory_bytes:
        named = [part for part in named if part.memory_bytes and abs(part.memory_bytes - memory_bytes) <= 0.02 * part.memory_bytes]
    return named[0] if len(named) == 1 else None


def local_part() -> Accelerator:
    """The part of the first GPU here. Raises CannotRunHere without a GPU, BadInput where the table does not know it."""
    gpus = local_gpus()
    if not gpus:
        raise CannotRunHere("no GPU was found on this machine", hint="name a part, as in --device h100-sxm5-80", code="no_local_device")
    if gpus[0].part is None:
        raise BadInput(
            f"this machine's GPU reports {gpus[0].driver_name!r}, which the table of parts does not know",
            hint="name the nearest part with --device",
            code="unknown_device",
        )
    return gpus[0].part
