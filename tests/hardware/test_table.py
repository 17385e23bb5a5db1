"""Invariants of the table of parts, and the errors that other tables were found to have."""

import csv
import re
from pathlib import Path

import pytest

from kvcli.hardware.accelerators import table
from kvcli.hardware.match import find

FILE = Path(__file__).resolve().parents[2] / "presets" / "accelerators.csv"
ROWS = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))
#: Names that do not tell parts apart, on purpose: the driver says no more.
SHARED_NAMES = {
    "NVIDIA Thor",
    "Orin",
    "Apple M3 Max",
    "Apple M4 Max",
    "Apple M5 Max",
    "NVIDIA GeForce RTX 2060",
    "NVIDIA GeForce RTX 3080",
    "NVIDIA GeForce RTX 4060 Ti",
    "NVIDIA GeForce RTX 5060 Ti",
}


def number(row, column):
    return float(row[column]) if row[column] else None


def test_there_are_enough_parts_and_each_row_is_a_part():
    assert len(ROWS) >= 170
    assert len(table()) == len(ROWS)
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", row["id"]), row["id"]
        assert row["source"].strip(), row["id"]
        assert row["confidence"] in ("high", "medium", "low"), row["id"]
        assert row["class"] in ("datacenter", "superchip", "consumer", "workstation", "edge", "soc", "cpu"), row["id"]
        assert row["vendor"] in ("NVIDIA", "AMD", "Intel", "Google", "AWS", "Apple", "CPU"), row["id"]


def test_names_that_drivers_report_are_shared_on_purpose_only():
    seen = {}
    for part in table():
        for name in part.driver_names:
            seen.setdefault(name, []).append(part.id)
    assert {name for name, ids in seen.items() if len(ids) > 1} == SHARED_NAMES


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_units_and_order_of_a_row(row):
    nominal, bound, seen = (number(row, column) for column in ("mem_bw_gbs", "bw_bound_gbs", "bw_measured_gbs"))
    assert 40 <= nominal <= 30_000  # GB/s: neither TB/s nor bytes
    assert bound is None or nominal <= bound <= 1.1 * nominal
    assert seen is None or seen <= nominal
    overclocked = number(row, "bw_overclock_gbs")
    assert overclocked is None or nominal < overclocked < 1.5 * nominal
    cache = number(row, "last_level_cache_mb")
    assert cache is None or 1 <= cache <= 1300
    assert number(row, "max_clock_ratio") is None or 1 < number(row, "max_clock_ratio") < 2
    assert row["fp16_acc_ratio"] in ("", "2")
    peaks = {unit: number(row, f"{unit}_dense_tflops") for unit in ("bf16", "fp16", "fp8", "fp4")}
    for peak in peaks.values():
        assert peak is None or 4 <= peak <= 60_000  # a 16-bit rate below what fp32 reaches would be no floor
    sixteen = max(filter(None, (peaks["bf16"], peaks["fp16"])), default=None)
    if peaks["fp8"] and sixteen:
        assert sixteen <= peaks["fp8"] <= 4.1 * sixteen
    if peaks["fp4"] and peaks["fp8"]:
        assert peaks["fp8"] <= peaks["fp4"] <= 4.1 * peaks["fp8"]


@pytest.mark.parametrize("row", [row for row in ROWS if row["mem_bytes_plan"]], ids=lambda row: row["id"])
def test_memory_against_the_label(row):
    """The planned bytes are the driver's total where one is known, and within a tenth of what is printed on the box."""
    planned = int(row["mem_bytes_plan"])
    if row["mem_total_mib_reported"]:
        assert planned == int(row["mem_total_mib_reported"]) * 2**20
    sizes = [float(text) for text in re.findall(r"(\d+(?:\.\d+)?)\s*G", row["mem_vendor_label"])]
    per_unit = max(sizes, default=planned / 2**30)
    assert any(0.88 * size * 1e9 <= planned <= 1.01 * size * 2**30 for size in sizes) or planned / 2**30 == pytest.approx(per_unit)


#: What vendors print with 2:4 sparsity: bf16 or fp16 TFLOPS. A dense peak is at most half of it.
SPARSE_16_BIT = {
    "a100-sxm4-80": 624,
    "a10": 250,
    "a40": 299.4,
    "l4": 242,
    "l40s": 733,
    "h100-sxm5-80": 1979,
    "h100-pcie-80": 1513,
    "h100-nvl-94": 1671,
    "h200-sxm": 1979,
    "h200-nvl": 1671,
    "b200": 4500,
    "mi300x": 2614.9,
    "orin-agx-64": 170,  # int8 sparse TOPS of its GPU; 275 counts the DLA too
}


@pytest.mark.parametrize(("part_id", "sparse_tflops"), SPARSE_16_BIT.items())
def test_peaks_are_dense(part_id, sparse_tflops):
    assert find(part_id).peak("bf16", "fp16") <= sparse_tflops / 2 * 1.005e12


# ---- errors found in other tables, each of which ours must not have ----


def test_errors_of_peers_bandwidth():
    gb = {part.id: part.bandwidth_bytes_per_s / 1e9 for part in table()}
    assert gb["l4"] == 300  # not 3350
    assert find("NVIDIA H100 80GB HBM3").bandwidth_bytes_per_s == 3.35e12  # neither the PCIe card's 2039 nor 3072
    assert find("NVIDIA H100 PCIe").bandwidth_bytes_per_s == 2e12
    assert find("NVIDIA A100-SXM4-80GB").bandwidth_bytes_per_s == 2.039e12  # not 1555
    assert find("NVIDIA A100-SXM4-40GB").bandwidth_bytes_per_s == 1.555e12
    assert gb["rtx5060"] == 448  # not 256
    assert gb["b200"] == 7700  # 7680 bit x 3996 MHz, where 8192 bit were assumed
    assert gb["mi300x"] == 5300 and gb["mi325x"] == 6000  # not 10.3 TB/s
    assert gb["v100-sxm2-16"] == 900  # not 1130
    assert gb["arc-a770-16"] == 560  # not 512
    assert gb["rx9070xt"] == 644.6  # not 512
    assert gb["inf2"] == 880  # 820 GiB/s
    assert gb["rtx5090"] == 1792  # not 1.792e15 bytes


def test_errors_of_peers_peaks():
    assert find("h100-sxm5-80").peak("bf16") == 989.5e12  # 1979 is sparse
    assert find("h100-nvl-94").peak("bf16") == 835.5e12
    assert find("h200-sxm").peak("bf16") == 989.5e12
    assert find("gb300").peak("bf16") == 2500e12  # not 0.644
    assert find("mi210").peak("int8") == 181e12  # not doubled
    assert find("a100-sxm4-80").peak("fp16") == 312e12  # not the vector units' 77.97
    assert find("h100-sxm5-80").peak("fp16") == 989.5e12  # not 267.6
    assert find("orin-agx-64").peak("fp16") == 42.5e12  # not 137
    assert find("NVIDIA A10G").peak("fp16") == 70e12 and find("NVIDIA A10").peak("fp16") == 125e12
    assert find("l40s").peak("bf16") == 362e12 and find("l40s").peak("fp8") == 733e12
    assert find("b300").peak("int8") == 153.5e12  # not what fp8 would suggest
    assert find("trn2").peak("fp8") == 1299e12  # 2563 is four-fold sparse
    assert find("p40").peak("bf16", "fp16") == 0  # its fp16 is slower than its fp32, so it is no floor


def test_errors_of_peers_memory():
    gib = {part.id: (part.memory_bytes or 0) / 2**30 for part in table()}
    assert gib["a10"] == pytest.approx(22.49, abs=0.01)  # there is no 28 GB one
    assert gib["v100-sxm2-16"] == 16
    assert gib["mi325x"] == 256  # announced, not shipped, with 288
    assert gib["b200"] == pytest.approx(179.06, abs=0.01)  # 90 GB is one die
    assert gib["h100-sxm5-80"] == pytest.approx(79.65, abs=0.01)
    assert gib["h200-sxm"] == pytest.approx(140.40, abs=0.01)
    assert find("h100-sxm5-80").usable_bytes / 2**30 == pytest.approx(79.14)
    assert 139.7 <= find("h200-sxm").usable_bytes / 2**30 <= 139.81
    assert gib["gh200-96"] == pytest.approx(95.58, abs=0.01)  # 480GB in its name is the processor's memory
    for part_id in ("b200", "gb200", "a40", "mi325x", "mi355x", "gb300"):  # missing elsewhere
        assert find(part_id).memory_bytes


def test_a_bound_on_peaks_counts_clock_and_accumulation():
    """An RTX 4090 was seen at 2.655 GHz (its boost clock is 2.52) and adds up in fp16 at twice the rate."""
    part = find("rtx4090")
    assert part.peak_bound("bf16") >= part.peak("bf16") * 2655 / 2520
    assert part.peak_bound("fp16") == pytest.approx(2 * part.peak_bound("bf16"))
    assert part.peak_bound("int8") == pytest.approx(part.peak("int8") * part.max_clock_ratio)
    assert find("h100-sxm5-80").peak_bound("bf16") == pytest.approx(989.5e12 * 1.082)
    assert find("m1").peak_bound("bf16") == 0
    for each in table():
        for unit, rate in each.peak_flops:
            assert each.peak_bound(unit) >= rate


def test_links_are_one_direction():
    assert find("h100-sxm5-80").link_bytes_per_s == 450e9
    assert find("l4").link_bytes_per_s == 0
