"""The GPUs of this machine, by the exact names their driver reports.

NVML is asked through its bindings, or else `nvidia-smi`. In MIG mode the slices are the GPUs. Parts that share their memory with
the host do not report it; what the system has available is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kvcli.errors import BadInput, CannotRunHere
from kvcli.hardware import machine, smi
from kvcli.hardware.accelerators import Accelerator, by_driver_name
from kvcli.hardware.match import candidates
from kvcli.hardware.mig import instance_of


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
    """The machine's NVIDIA GPUs, or their MIG slices; empty without a GPU or a driver. Never raises."""
    with _nvml() as nvml:
        if nvml is None:
            return [LocalGpu(name, total, _here(name, total)) for name, total in smi.query()] if not _has_bindings() else []
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return [_gpu(nvml, each) for handle in handles for each in _slices(nvml, handle) or [handle]]
        except nvml.NVMLError:
            return []


def _has_bindings() -> bool:
    try:
        import pynvml  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


def _slices(nvml: Any, handle: object) -> list[object]:
    """The MIG devices of a GPU in MIG mode: the whole one would report an aggregate that no program can use."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != 1:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except (nvml.NVMLError, AttributeError):  # a part or a binding without MIG
        return []
    found = []
    for index in range(count):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:  # a place without an instance
            continue
    return found


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
    total = _memory_bytes(nvml, handle)
    return LocalGpu(name, total, _here(name, total))


def _memory_bytes(nvml: Any, handle: object) -> int:
    """The total of memory information version 2, whose used bytes do not contain the driver's own; 0 where none is given."""
    for arguments in ([getattr(nvml, "nvmlMemory_v2", None)], []):
        if arguments == [None]:
            continue
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(handle, *arguments).total)
        except (nvml.NVMLError, TypeError, AttributeError):  # an older driver or binding; unified-memory parts answer neither
            continue
    return 0


def match(name: str, memory_bytes: int) -> Accelerator | None:
    """The one part of that driver name; where several share it, the one whose memory agrees within 2%."""
    if sliced := _sliced(name):
        return sliced
    named = by_driver_name(name)
    if not named:
        named = candidates(name, memory_bytes)
    if len(named) > 1 and memory_bytes:
        named = [part for part in named if part.memory_bytes and abs(part.memory_bytes - memory_bytes) <= 0.02 * part.memory_bytes]
    return named[0] if len(named) == 1 else None


def _sliced(name: str) -> Accelerator | None:
    try:
        return instance_of(name)
    except BadInput:  # a profile that the table lacks
        return None


def _here(name: str, total: int) -> Accelerator | None:
    """The part, with this machine's memory where it is shared with the host and the driver does not say."""
    part = match(name, total)
    if part is None and not total:  # several parts of one name, told apart by the machine's memory
        part = match(name, machine.memory_bytes() or 0) if by_driver_name(name) else None
    return _shared_with_host(part) if part is not None and part.unified and not total else part


def _shared_with_host(part: Accelerator) -> Accelerator:
    available = machine.memory_bytes("MemAvailable")
    if available is None:
        return part
    return replace(
        part,
        memory_bytes=machine.memory_bytes(),
        memory_basis="the system's total",
        usable_bytes=available,
        usable_basis="memory available now, shared with the host",
    )


def local_part() -> Accelerator:
    """The part of the first GPU here, else this machine's processor where its read rate was measured.

    Raises CannotRunHere with neither, BadInput for a GPU that the table does not know.
    """
    gpus = local_gpus()
    if gpus:
        if gpus[0].part is None:
            raise BadInput(
                f"this machine's GPU reports {gpus[0].driver_name!r}, which the table of parts does not know or has several of",
                hint="name the nearest part with --device",
                code="unknown_device",
            )
        return gpus[0].part
    if part := match(machine.cpu_name(), 0):  # parts whose processor and GPU are one: Apple, Strix Halo
        return _shared_with_host(part)
    cpu = machine.cpu_part()
    if cpu.measured_on:
        return cpu
    raise CannotRunHere(
        "no GPU was found on this machine, and its processor's read rate has not been measured",
        hint="kvcli devices --measure, or name a part, as in --device h100-sxm5-80",
        code="no_local_device",
    )
