"""The GPUs and the processor of this machine, with a driver, a program and a system that the tests write themselves."""

import json
import stat
import sys
import types

import pytest

from kvcli.errors import BadInput, CannotRunHere
from kvcli.hardware import local, machine, smi

NO_KERNEL = '{"bytes_per_s": 1e9, "time_utc": "2026-11-29T10:00:00Z"}'
MIB, GIB = 2**20, 2**30


class FakeNvml(types.ModuleType):
    """NVML with GPUs given as (name, total of version 2 or None, MIG slices or None)."""

    nvmlMemory_v2 = 0x2000028

    class NVMLError(Exception):
        pass

    def __init__(self, gpus, v2=True):
        super().__init__("pynvml")
        self.gpus = gpus
        self.v2 = v2
        self.asked = []

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetName(self, handle):
        return handle[0].encode()

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        self.asked.append(version)
        if version is not None and not self.v2:
            raise TypeError
        if handle[1] is None:
            raise self.NVMLError("Not Supported")
        return types.SimpleNamespace(total=handle[1])

    def nvmlDeviceGetMigMode(self, handle):
        if handle[2] is None:
            raise self.NVMLError("Not Supported")
        return (1 if handle[2] else 0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(handle[2]):
            raise self.NVMLError("Not Found")
        return handle[2][index]


def gpus(monkeypatch, *found, v2=True):
    fake = FakeNvml(found, v2)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake, local.local_gpus()


@pytest.mark.parametrize("v2", [True, False])
def test_memory_information_is_of_version_2_where_there_is_one(monkeypatch, v2):
    fake, (gpu,) = gpus(monkeypatch, ("NVIDIA H100 80GB HBM3", 81559 * MIB, None), v2=v2)
    assert (gpu.part.id, gpu.memory_bytes) == ("h100-sxm5-80", 81559 * MIB)
    assert fake.asked == [fake.nvmlMemory_v2] + ([] if v2 else [None])


def test_in_mig_mode_the_slices_are_the_gpus(monkeypatch):
    whole = "NVIDIA A100-SXM4-40GB"
    slices = [(f"{whole} MIG 3g.20gb", 20096 * MIB, None), (f"{whole} MIG 1g.5gb", 4864 * MIB, None)]
    _, found = gpus(monkeypatch, (whole, 40960 * MIB, slices), (whole, 40960 * MIB, []))
    assert [gpu.part.id for gpu in found] == ["a100-sxm4-40 3/7 (3g.20gb)", "a100-sxm4-40 1/7 (1g.5gb)", "a100-sxm4-40"]
    assert local.match(f"{whole} MIG 5g.17gb", 0) is None


def test_unified_memory_is_what_the_system_has_available(monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda field="MemTotal": {"MemTotal": 121 * GIB, "MemAvailable": 100 * GIB}[field])
    _, (gpu,) = gpus(monkeypatch, ("NVIDIA GB10", None, None))
    assert (gpu.part.id, gpu.part.memory_bytes, gpu.part.usable_bytes) == ("gb10", 121 * GIB, 100 * GIB)
    assert "shared with the host" in gpu.part.usable_basis
    # several parts report this name; the machine's memory tells which
    _, (thor,) = gpus(monkeypatch, ("NVIDIA Thor", None, None))
    assert thor.part.id == "thor-t5000"


def test_a_discrete_gpu_keeps_its_own_memory(monkeypatch):
    _, (gpu,) = gpus(monkeypatch, ("NVIDIA L4", None, None))
    assert "shared" not in gpu.part.usable_basis


def test_nvidia_smi_in_place_of_the_bindings(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'name, memory.total [MiB]'\necho 'NVIDIA L4, 23034 MiB'\necho 'NVIDIA GB10, [N/A]'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert [(gpu.part.id, gpu.memory_bytes) for gpu in local.local_gpus()] == [("l4", 23034 * MIB), ("gb10", 0)]


@pytest.mark.parametrize("script", ["sleep 30", "exit 9", "echo NVIDIA-SMI has failed because it could not talk; exit 0"])
def test_nvidia_smi_that_hangs_or_fails_is_no_gpu(monkeypatch, tmp_path, script):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nexec {script}\n" if script.startswith("sleep") else f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert smi.query(timeout_s=0.3) == []
    assert smi.TIMEOUT_S == 1.0


def test_a_driver_that_does_not_answer_is_no_gpu(monkeypatch):
    fake = FakeNvml([])
    monkeypatch.setattr(fake, "nvmlInit", lambda: (_ for _ in ()).throw(fake.NVMLError()))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert local.local_gpus() == []


def test_the_processor_where_its_rate_was_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("KVCLI_HOME", str(tmp_path))
    monkeypatch.setattr(local, "local_gpus", list)
    with pytest.raises(CannotRunHere) as caught:
        local.local_part()
    assert "--measure" in caught.value.hint
    path = machine.keep_rate({"bytes_per_s": 2e10, "kernel": "sum", "read_bytes": 1}, 2, "2026-11-29T10:00:00Z")
    part = local.local_part()
    assert (part.id, part.bandwidth_bytes_per_s, part.measured_on) == ("cpu", 2e10, "2026-11-29")
    assert part.bandwidth_bound_bytes_per_s == 0  # a rate that was reached is no bound
    assert part.basis.startswith("measured 2026-11-29")
    kept = json.loads(path.read_text())
    assert set(kept) == {"schema_version", "cpu", "threads", "time_utc", "bytes_per_s", "kernel", "read_bytes"}  # nothing of whose it is
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"bytes_per_s": -1, "time_utc": "2026-11-29T"}', '{"bytes_per_s": 1e9, "time_utc": 5}', "1", NO_KERNEL]
)
def test_a_damaged_record_of_a_rate_is_none(monkeypatch, tmp_path, text):
    monkeypatch.setenv("KVCLI_HOME", str(tmp_path))
    path = machine.keep_rate({"bytes_per_s": 2e10, "kernel": "sum"}, 2, "2026-11-29T10:00:00Z")
    assert machine.measured_rate()
    path.write_text(text)
    assert machine.measured_rate() is None
    assert machine.cpu_part().bandwidth_bytes_per_s == 0


def test_a_record_that_cannot_be_kept(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVCLI_HOME", str(tmp_path / "file"))
    with pytest.raises(CannotRunHere, match="cannot write"):
        machine.keep_rate({"bytes_per_s": 2e10}, 2, "2026-11-29T10:00:00Z")


def test_a_processor_that_is_a_part_of_the_table(monkeypatch):
    monkeypatch.setattr(local, "local_gpus", list)
    monkeypatch.setattr(machine, "cpu_name", lambda: "Apple M4 Pro")
    assert local.local_part().id == "m4-pro"


def test_a_gpu_without_a_row_is_named(monkeypatch):
    gpus(monkeypatch, ("NVIDIA Unheard Of", GIB, None))
    with pytest.raises(BadInput, match="Unheard Of"):
        local.local_part()


def test_caches_are_summed_once_each(tmp_path):
    for core in range(4):
        for index, (level, size, shared) in enumerate([("1", "32K", f"{core}"), ("2", "1024K", f"{core}"), ("3", "32M", "0-3")]):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(value + "\n")
    assert machine.cache_bytes(tmp_path) == 36 * MIB
    assert machine.cache_bytes(tmp_path / "none") == 0


def test_the_systems_memory(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       24684092 kB\nMemFree:  1 kB\nMemAvailable:   23700000 kB\n")
    assert machine.memory_bytes(meminfo=file) == 24684092 * 1024
    assert machine.memory_bytes("MemAvailable", file) == 23700000 * 1024
    assert machine.memory_bytes("SwapTotal", file) is None
