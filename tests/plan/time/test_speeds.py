"""Measured speeds against floors: none may be faster. tests/data/speeds.csv holds public measurements with their sources."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from kvcli.hardware.match import find
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.split import Split
from kvcli.plan.storage.policy import policy
from kvcli.plan.time.growth import sum_of_steps
from kvcli.plan.workload import Workload

with (Path(__file__).parents[2] / "data" / "speeds.csv").open(newline="", encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))
BOUNDED = [row for row in ROWS if row["peak_bw_GBps_per_dev"]]

#: rows whose part, and so whose bandwidth, the source does not name
UNBOUNDED = {
    "S134": "the CPU's bandwidth is not stated",
    **dict.fromkeys(("S150", "S152", "S154", "S155", "S156", "S157"), "what the CPU's cores reach of the memory's bandwidth is not stated"),
    **dict.fromkeys(("S161", "S162", "S163", "S164"), "the server's CPU is not named"),
    "S169": "the part is not named",
}

MODELS = {
    "Llama-3-8B": "llama3-8b",
    "Llama-3-70B": "llama3-70b",
    "Llama-2-7B": "llama2-7b",
    "Llama-2-13B": "llama2-13b",
    "Llama-2-70B": "llama2-70b",
    "Llama-3.1-8B": "llama3.1-8b",
    "Llama-3.1-70B": "llama3.1-70b",
    "CodeLlama-7B": "llama2-7b",  # the same shape but for 16 more words, which only adds bytes
    "Mixtral-8x7B (MoE, 12.9B of 46.7B active)": "mixtral-8x7b",
    "Qwen3-4B-Instruct-2507": "qwen3-4b",
    "Qwen3-4B": "qwen3-4b",
    "Qwen3-0.6B": "qwen3-0.6b",
    "Qwen3-30B-A3B-Instruct-2507 (MoE, 3.3B active)": "qwen3-30b-a3b",
    "TinyLlama-1.1B": "tinyllama-1.1b",
    "Phi-3.5-mini": "phi3.5-mini",
    "DeepSeek-R1 671B (MoE, 37B active), mixed quant 307 GiB": "deepseek-r1",
}

#: bits of the input table's elements, at least, so that no more is taken off than is unread
BITS = {"F16": 16, "bf16": 16, "int8": 8, "Q8_0": 8.5, "q8": 8.5, "q6": 6.5, "Q4_0": 4.5, "Q4_K_M": 4.5, "3.93 bit average": 3.93}

PARTS = {
    "RTX 3080 10GB": "rtx3080-10",
    "RTX 3080 Ti 12GB": "rtx3080ti",
    "RTX 3070 8GB": "rtx3070",
    "RTX 4080 16GB": "rtx4080",
    "RTX 4000 Ada 20GB": "rtx4000ada",
    "RTX 3090 24GB": "rtx3090",
    "16x RTX 3090 24GB": "rtx3090",
    "RTX 3090 Ti 24GB": "rtx3090ti",
    "RTX 4090 24GB": "rtx4090",
    "RTX 5000 Ada 32GB": "rtx5000ada",
    "RTX A6000 48GB": "rtxa6000",
    "RTX 6000 Ada 48GB": "rtx6000ada",
    "A40 48GB": "a40",
    "L40S 48GB": "l40s",
    "A100 PCIe 80GB": "a100-pcie-80",
    "A100 SXM 80GB": "a100-sxm4-80",
    "A100 80GB SXM (330 W cap)": "a100-sxm4-80",
    "H100 PCIe 80GB": "h100-pcie-80",
    "M1 7-core GPU 8GB": "m1",
    "M1 Max 32-core GPU 64GB": "m1-max",
    "Apple M1 Max 64GB": "m1-max",
    "M1 Ultra 64-core 128GB": "m1-ultra",
    "M2 Ultra 76-core GPU 192GB": "m2-ultra",
    "Apple M2 Max 30-core GPU": "m2-max",
    "M3 Max 40-core GPU 64GB": "m3-max-16c",
    "Apple M3 Ultra 256GB": "m3-ultra",
    "Apple M4 16GB": "m4",
    "Apple M4 Max 64GB": "m4-max-40g",
    "RTX 3060 12GB on Raspberry Pi CM5": "rtx3060-12",
    "RTX 4070 Laptop 8GB": "rtx4070-laptop",
    "RTX 2080 8GB": "rtx2080",
}


def contexts(row):
    """First and last context of the measured steps; where a source says less, the shortest it can have been."""
    text = row["context"]
    if "generated" in text and text.startswith("0.."):
        return 1, int(text.split()[0].split("..")[1])
    if text == "2048 prompt":
        return 2049, 2048 + 127
    if text == "5-token prompt":
        return 6, 6
    if text.startswith("100..1024 in"):
        return 101, 101
    return 1, 1


def unread_bytes(row, spec):
    """The input table, where it is not also the head. gpt-fast leaves it out of its own rates."""
    if spec.tied or row["weights_basis"].startswith("README"):
        return 0
    return int(spec.embedding * BITS.get(row["weight_format"], 4) / 8)


def steps_of(row, device):
    spec, count = resolve(MODELS[row["model"]]), int(row["n_dev"])
    split = {"none": Split(), "tensor": Split(tensor=count), "layer (sequential)": Split(pipeline=count)}[row["split"]]
    work = Workload(contexts(row)[1], int(row["batch"]))
    steps = build(PlanRequest(spec, work, policy("ideal"), device=device, split=split)).latency.steps
    share = count if row["split"] == "tensor" else 1
    return steps._replace(weights_bytes=int((float(row["weights_GB"]) * 1e9 - unread_bytes(row, spec)) / share))


def floor_s(row):
    """Of one step, in the mean over the row's contexts, at the row's bandwidth (or the table's bound, where that is higher)."""
    rate = float(row["peak_bw_GBps_per_dev"]) * 1e9
    name = PARTS.get(row["hardware"])
    part = find(name or "mi250x")
    rate = max(rate, part.bandwidth_bound_bytes_per_s) if name else rate
    device = replace(part, bandwidth_bytes_per_s=rate, bandwidth_bound_bytes_per_s=rate)
    first, last = contexts(row)
    return sum_of_steps(steps_of(row, device), first, last) / (last - first + 1)


def test_every_row_is_bounded_or_has_a_reason():
    assert len(ROWS) == 106
    assert {row["id"] for row in ROWS} - {row["id"] for row in BOUNDED} == set(UNBOUNDED)
    assert len(BOUNDED) == 94
    assert {row["model"] for row in BOUNDED} == set(MODELS)
    assert {row["hardware"] for row in BOUNDED} - set(PARTS) == {"MI250X, one GCD"}  # half of a part of the table


@pytest.mark.parametrize("row", BOUNDED, ids=[row["id"] for row in BOUNDED])
def test_no_measured_speed_beats_its_floor(row):
    measured_s = int(row["batch"]) / float(row["tokens_per_s_total"])
    assert measured_s >= floor_s(row)


def test_the_floors_are_not_empty():
    """The fastest rows come close: had a byte been counted twice, they would beat their floors."""
    shares = sorted(floor_s(row) * float(row["tokens_per_s_total"]) / int(row["batch"]) for row in BOUNDED)
    assert 0.85 < shares[-1] <= 1
    assert sum(share > 0.5 for share in shares) >= 55
