"""The device a run happens on: its torch name, its clock, its memory, and its row in the table of parts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from kvcli import dtypes
from kvcli.errors import BadInput, CannotRunHere
from kvcli.hardware.accelerators import Accelerator
from kvcli.hardware.local import match

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def pick_device(name: str) -> torch.device:
    """`auto` is the first CUDA device, else the CPU. Raises CannotRunHere for a device that is not there."""
    name = name.strip().lower()
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"--device {name[:40]!r} is not a device", hint="auto, cpu, cuda or cuda:1", code="unknown_device") from None
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"kvcli runs on cpu and cuda, not on {device.type!r}", hint="--device cpu", code="unknown_device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CannotRunHere(f"torch finds no CUDA device {name!r} here", hint="--device cpu", code="no_local_device")
    return device


def pick_dtype(name: str, device: torch.device) -> dtypes.DType:
    """`auto`: fp32 on the CPU, whose 16-bit matrix products are often slow; bf16 on CUDA parts that have it, else fp16."""
    if name == "auto":
        if device.type == "cpu":
            return dtypes.FP32
        return dtypes.BF16 if torch.cuda.is_bf16_supported() else dtypes.FP16
    found = dtypes.parse(name, "--dtype")
    if found not in dtypes.COMPUTE:
        raise BadInput(f"the built-in transformer does not compute in {found.name}", hint="fp32, fp16 or bf16", code="unknown_dtype")
    return found


def device_clock(device: torch.device) -> Callable[[], int]:
    """Nanoseconds of a monotonic clock that first waits for all work given to the device."""
    if device.type != "cuda":
        return time.perf_counter_ns

    def synchronised() -> int:
        torch.cuda.synchronize(device)
        return time.perf_counter_ns()

    return synchronised


def local_part(device: torch.device) -> Accelerator | None:
    """The row of the table with this device's exact name; None for CPUs, whose memory is not part of their name."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return match(properties.name, properties.total_memory)


def free_bytes(device: torch.device) -> int | None:
    """Bytes a new allocation could get; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def peak_memory(device: torch.device) -> dict[str, int | None]:
    """Peaks so far in four measures; on the CPU only the process's resident set is known."""
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        free, total = torch.cuda.mem_get_info(device)
        return {
            "requested_bytes": stats["requested_bytes.all.peak"],
            "allocated_bytes": stats["allocated_bytes.all.peak"],
            "reserved_bytes": stats["reserved_bytes.all.peak"],
            "device_bytes": total - free,
        }
    return {"requested_bytes": None, "allocated_bytes": None, "reserved_bytes": None, "device_bytes": _peak_resident_bytes()}


def _peak_resident_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


#: How torch and the libraries below it say on the CPU that an allocation failed.
_MEMORY_WORDS = ("allocate memory", "not enough memory", "could not create a primitive", "bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """torch raises a type of its own on CUDA and a plain RuntimeError on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_WORDS)
