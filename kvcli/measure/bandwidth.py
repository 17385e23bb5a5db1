"""The read rate of this machine: the best of three kernels that only read, over much more memory than caches hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvcli.measure.devices import device_clock, free_bytes, is_out_of_memory

#: CPUs: at least this much; GPUs: four times as much, since their caches are larger
MIN_BYTES = 512 * 2**20
GPU_FACTOR = 4
REPETITIONS = 3


@dataclass(frozen=True, slots=True)
class ReadRate:
    """The best rate seen, in bytes/s, the kernel that reached it, and the bytes each pass read."""

    bytes_per_s: float
    kernel: str
    read_bytes: int

    def document(self) -> dict[str, str | float | int]:
        return {"bytes_per_s": self.bytes_per_s, "kernel": self.kernel, "read_bytes": self.read_bytes}


def read_rate(device: torch.device, clock: Callable[[], int] | None = None) -> ReadRate | None:
    """Measures it now; None where that much memory is not free."""
    size = MIN_BYTES * (GPU_FACTOR if device.type == "cuda" else 1)
    free = free_bytes(device)
    if free is not None and free < 2 * size:
        return None
    columns = 2048
    try:
        matrix = torch.ones((size // 4 // columns, columns), device=device)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):  # a limit that free_bytes does not see
            return None
        raise
    vector = torch.ones(columns, device=device)
    flat = matrix.view(-1)
    kernels: tuple[tuple[str, Callable[[], object]], ...] = (
        ("sum", flat.sum),
        ("matrix-vector product", lambda: torch.mv(matrix, vector)),
        ("maximum", flat.max),
    )
    now = clock or device_clock(device)
    best: ReadRate | None = None
    for name, kernel in kernels:
        kernel()  # the first pass faults pages in and loads the kernel
        for _ in range(REPETITIONS):
            began = now()
            kernel()
            rate = size / max(now() - began, 1) * 1e9
            if best is None or rate > best.bytes_per_s:
                best = ReadRate(rate, name, size)
    return best


def cpu_read_rate() -> tuple[ReadRate, int] | None:
    """The read rate of this machine's processor and the threads that read; None where too little memory is free."""
    rate = read_rate(torch.device("cpu"))
    return None if rate is None else (rate, torch.get_num_threads())
