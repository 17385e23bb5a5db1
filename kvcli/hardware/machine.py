"""This machine's processor: its name, memory and caches, and its read rate where one was measured and kept.

A measured rate is what reads reached on that day. It is no bound: floors are refused with it, and estimates carry its date.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from kvcli.errors import CannotRunHere
from kvcli.files import replace_text
from kvcli.hardware.accelerators import Accelerator
from kvcli.model.store import home

CACHES = Path("/sys/devices/system/cpu")
MEMINFO = Path("/proc/meminfo")


def cpu_name() -> str:
    """The processor's name as the system has it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string") or platform.processor()
    return platform.processor() or platform.machine()


def sysctl(name: str) -> str:
    """A value of macOS's kernel; empty where there is none within a second."""
    import subprocess

    try:
        done = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=1, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def memory_bytes(field: str = "MemTotal", meminfo: Path = MEMINFO) -> int | None:
    """The machine's memory: `MemTotal`, or what new programs can have of it: `MemAvailable`. None where the system does not say."""
    try:
        text = meminfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        size = sysctl("hw.memsize") if sys.platform == "darwin" and field == "MemTotal" else ""
        return int(size) if size.isdigit() else None
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def cache_bytes(root: Path = CACHES) -> int:
    """Level 2 and 3 caches of all cores together, each shared one once; 0 where the system does not say."""
    seen: dict[tuple[str, str], int] = {}
    for index in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, size, shared = ((index / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
        except OSError:
            continue
        if level in ("2", "3", "4") and (found := re.fullmatch(r"(\d+)([KMG]?)", size)):
            seen[level, shared] = int(found[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found[2]]
    return sum(seen.values())


def _file() -> Path:
    """Where this processor's rate is kept; the key is of what it is, not of whose it is."""
    import hashlib

    key = f"{cpu_name()}|{os.cpu_count()}|{round((memory_bytes() or 0) / 2**30)}"
    return home() / "measured" / f"cpu-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def measured_rate() -> dict[str, Any] | None:
    """The rate that was measured here and kept: `bytes_per_s`, `kernel`, `read_bytes`, `threads`, `time_utc`; None without one."""
    try:
        document = json.loads(_file().read_text(encoding="utf-8"))
        rate, when = float(document["bytes_per_s"]), str(document["time_utc"])
        how = f"{document['kernel']}, {document['threads']} threads"
    except (OSError, ValueError, TypeError, KeyError, CannotRunHere):  # also: this user has no home folder
        return None
    usable = 0 < rate < 1e15 and re.match(r"\d{4}-\d\d-\d\dT", when) and len(how) < 80 and how.isprintable()
    return document if usable else None


def keep_rate(rate: dict[str, Any], threads: int, time_utc: str) -> Path:
    """Keeps a rate for later plans. Raises CannotRunHere where the cache folder cannot be written."""
    path = _file()
    document = {"schema_version": 1, "cpu": cpu_name(), "threads": threads, "time_utc": time_utc, **rate}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(str(path), json.dumps(document) + "\n")
    except OSError as error:
        raise CannotRunHere(
            f"cannot write in the folder {path.parent}: {error.strerror or error}",
            hint="set KVCLI_HOME to a folder that can be written",
            code="folder_not_writable",
        ) from None
    return path


def cpu_part() -> Accelerator:
    """This machine's processor as a part. Its bandwidth is the measured one or 0, and what bounds it is not known (0)."""
    rate = measured_rate()
    day = str(rate["time_utc"])[:10] if rate else ""
    speed = float(rate["bytes_per_s"]) if rate else 0.0
    total, available = memory_bytes(), memory_bytes("MemAvailable")
    return Accelerator(
        id="cpu",
        name=f"this machine's {cpu_name()}",
        driver_name=cpu_name(),
        memory_bytes=total,
        memory_basis="the system's total",
        usable_bytes=total if available is None else available,
        usable_basis="memory available now, shared with the host" if available is not None else "the system's total, shared with the host",
        bandwidth_bytes_per_s=speed,
        bandwidth_bound_bytes_per_s=0.0,
        peak_flops=(),
        last_level_cache_bytes=cache_bytes(),
        source="this machine",
        confidence="measured" if rate else "unknown",
        notes="",
        kind="cpu",
        bandwidth_measured_bytes_per_s=speed,
        origin=f"measured {day} ({rate['kernel']}, {rate['threads']} threads)" if rate else "this machine; bandwidth not measured",
        measured_on=day,
    )
