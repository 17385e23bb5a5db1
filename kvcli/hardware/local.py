"""The GPUs of this machine, by the exact names their driver reports."""

from __future__ import annotations

from dataclasses import dataclass

from kvcli.errors import BadInput, CannotRunHere
from kvcli.hardware.accelerators import Accelerator, by_driver_name


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """What the driver says. `part` is None where the table has no row, or several, of that name."""

    driver_name: str
    memory_bytes: int
    part: Accelerator | None


def local_gpus() -> list[LocalGpu]:
    """The machine's NVIDIA GPUs; empty without a GPU, a driver or the NVML bindings. Never raises."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _gpu(handle: object) -> LocalGpu:
    import pynvml

    name = pynvml.nvmlDeviceGetName(handle)
    text = name.decode() if isinstance(name, bytes) else str(name)
    try:
        total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:  # unified-memory parts do not answer
        total = 0
    return LocalGpu(text, total, match(text, total))


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
