"""GPUs by `nvidia-smi`, where the NVML bindings are not installed. It gets one second."""

from __future__ import annotations

import re

TIMEOUT_S = 1.0
COMMAND = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv")


def query(command: tuple[str, ...] = COMMAND, timeout_s: float = TIMEOUT_S) -> list[tuple[str, int]]:
    """(name, bytes) of each GPU, bytes 0 where it does not say. Empty without the program, an answer in time, or a driver."""
    import shutil
    import subprocess

    if shutil.which(command[0]) is None:
        return []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return []
    return parse(done.stdout) if done.returncode == 0 else []


def parse(text: str) -> list[tuple[str, int]]:
    """Lines such as `NVIDIA L4, 23034 MiB`; unified-memory parts and GPUs in MIG mode print `[N/A]` for the size."""
    found = []
    for line in text.splitlines():
        name, comma, size = line.strip().rpartition(",")
        if not comma or name.strip() == "name":
            continue
        amount = re.fullmatch(r"(\d+) MiB", size.strip())
        found.append((name.strip(), int(amount[1]) * 2**20 if amount else 0))
    return found
