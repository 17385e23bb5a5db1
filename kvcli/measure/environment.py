"""What a record says about where it was measured. No host names, no user names, no paths."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from kvcli import __version__
from kvcli.hardware.local import driver_version
from kvcli.hardware.machine import cpu_name


def environment(device: torch.device, now: datetime | None = None) -> dict[str, Any]:
    """Device, driver, versions, threads, commit and UTC time."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else cpu_name(),
        "device_type": device.type,
        "driver": driver_version() if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "python": platform.python_version(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "kvcli": __version__,
        "commit": commit(),
        "time_utc": (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def commit() -> str | None:
    """The commit of a checkout; None in an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
