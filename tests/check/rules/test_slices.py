"""Slices and shares of cards: MIG of both strategies, time slicing, and several engines on one device."""

import datetime

import pytest

from kvcli.check.cards import devices_of, part_of_card
from kvcli.check.run import check

DAY = datetime.date(2026, 11, 29)
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: chat}
spec:
  nodeSelector: {%s}
  containers:
    - name: engine
      image: vllm/vllm-openai:v0.9.2
      args: [--model=meta-llama/Llama-3.1-8B-Instruct, --max-model-len=4096%s]
      resources: {limits: {%s: %d}}
"""


@pytest.fixture
def cell(tmp_path):
    def run(product="", options="", resource="nvidia.com/gpu", amount=1, devices=()):
        path = tmp_path / "pod.yaml"
        path.write_text(POD % (f"nvidia.com/gpu.product: {product}" if product else "", options, resource, amount))
        return check([path], DAY, devices=devices)[0].cells[0]

    return run


def said(cell, rule):
    return next(each for each in cell.outcomes if each.rule == rule)


@pytest.mark.parametrize(
    ("product", "level", "gib"),
    [
        # 16.06e9 B of weights are 15 GiB; slices as nvidia-smi mig -lgip prints them
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "error", "9.750 GiB"),
        ("NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", "passed", ""),
        ("NVIDIA-A100-SXM4-40GB-MIG-2g.10gb", "error", "9.750 GiB"),
        ("NVIDIA-A100-SXM4-80GB-MIG-3g.40gb-SHARED", "passed", ""),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me", "error", "9.500 GiB"),
    ],
)
def test_a_label_of_the_single_strategy(cell, product, level, gib):
    found = said(cell(product), "KV001")
    assert (found.level, gib in found.message) == (level, True)


def test_the_whole_card_of_a_label():
    assert part_of_card("NVIDIA-A100-SXM4-80GB-MIG-3g.40gb").id == "a100-sxm4-80"
    assert part_of_card("NVIDIA-A100-SXM4-80GB").id == "a100-sxm4-80"
    assert part_of_card("NVIDIA-A100-MIG-80GB") is None


def test_a_larger_slice_is_named_not_more_of_them(cell):
    label = said(cell("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"), "KV001").fix
    assert "a slice of 3g.40gb" in label
    assert "tensor-parallel" not in label
    assert said(cell("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"), "KV001").level == "passed"
    resource = said(cell(resource="nvidia.com/mig-1g.10gb", devices=("a100-sxm4-80",)), "KV001").fix
    assert "nvidia.com/mig-3g.40gb: 1" in resource


def test_ranks_do_not_spread_over_slices(cell):
    found = said(cell(resource="nvidia.com/mig-3g.40gb", amount=2, options=", -tp=2", devices=("a100-sxm4-80",)), "KV014")
    assert (found.level, found.fix) == ("error", "--tensor-parallel-size 1")
    assert "a process sees one MIG slice" in found.message
    # 16.06e9 B of weights, 0.54e9 of cache and up to 3 GiB of overheads are too much for the 19.5 GiB of one
    found = said(cell(resource="nvidia.com/mig-2g.20gb", amount=2, options=", -tp=2", devices=("a100-sxm4-80",)), "KV014")
    assert found.fix == "--tensor-parallel-size 1 on nvidia.com/mig-3g.40gb: 1"
    assert said(cell(options=", -tp=2", amount=2, devices=("a100-sxm4-80",)), "KV014").level == "passed"


def test_devices_of_machine_types():
    assert [devices_of(name) for name in ("Standard_ND96isr_H100_v5", "Standard_NC48ads_A100_v4", "g5.12xlarge", "g5.xlarge")] == [
        8,
        2,
        4,
        1,
    ]
    assert devices_of("NVIDIA-L4") is None


TWO = """\
apiVersion: v1
kind: Pod
metadata: {name: chat}
spec:
  containers:
    - name: engine
      image: vllm/vllm-openai:v0.9.2
      command: [bash, -c]
      args: ["%s"]
      resources: {limits: {nvidia.com/gpu: 1}}
"""
FIRST = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096 --port 1"
SECOND = "vllm serve Qwen/Qwen3-8B --max-model-len 4096 --port 2"


def levels(tmp_path, script, rule, device="h100-sxm5-80"):
    path = tmp_path / "pod.yaml"
    path.write_text(TWO % script)
    return [said(each, rule) for each in check([path], DAY, devices=(device,))[0].cells]


@pytest.mark.parametrize(
    ("first", "second", "formula"),
    [
        ("", "", "0.9 + 0.9 = 1.8 > 1"),
        (" --gpu-memory-utilization 0.8", " --gpu-memory-utilization 0.6", "0.8 + 0.6 = 1.4 > 1"),
        (" --gpu-memory-utilization 0.45", " --gpu-memory-utilization 0.45", ""),
    ],
)
def test_two_engines_on_one_device(tmp_path, first, second, formula):
    found = levels(tmp_path, f"{FIRST}{first} & {SECOND}{second} & wait", "KV011")
    assert [each.level for each in found] == ["warning" if formula else "passed"] * 2
    assert found[0].formula == formula
    assert not formula or "engine#2" in found[0].message
    assert "containers" not in found[0].message
    if formula:
        assert found[0].fix == "--gpu-memory-utilization 0.47"  # 2 x 0.47 = 0.94


@pytest.mark.parametrize(
    ("script", "level"),
    [
        (f"{FIRST} & {SECOND} & wait", "error"),  # 16.06e9 + 16.38e9 B of weights on 23.65e9
        (f"{FIRST} & {SECOND}", "error"),
        (f"{FIRST} | tee log & {SECOND}", "error"),
        (f"{FIRST} & {SECOND} --cpu-offload-gb 10", "warning"),
        (f"{FIRST} --enable-sleep-mode & curl -X POST localhost:1/sleep; {SECOND}", "warning"),
        (f"{FIRST} & {SECOND} $MORE", "warning"),
        (f"CUDA_VISIBLE_DEVICES=0 {FIRST} & CUDA_VISIBLE_DEVICES=1 {SECOND}", "passed"),
        (f"CUDA_VISIBLE_DEVICES=$A {FIRST} & CUDA_VISIBLE_DEVICES=$B {SECOND}", "passed"),
        (f"{FIRST} ; {SECOND}", "passed"),  # the second starts when the first has ended
        (f"{FIRST} & sleep 9; kill $!; {SECOND}", "passed"),
    ],
)
def test_two_models_that_one_device_cannot_hold(tmp_path, script, level):
    found = levels(tmp_path, script, "KV001", "l4")
    assert [each.level for each in found] == [level] * 2
    assert level != "error" or "beside engine#2 on the same device" in found[0].message


def test_shared_devices_with_the_share_that_is_the_default(cell):
    for found in (
        cell(resource="nvidia.com/gpu.shared", devices=("l4",)),
        cell("NVIDIA-L4-SHARED"),
        cell("NVIDIA-A100-SXM4-80GB-MIG-3g.40gb-SHARED"),
    ):
        assert said(found, "KV011").level == "warning"
        assert "0.9" in said(found, "KV011").message
    assert said(cell("NVIDIA-L4"), "KV011").level == "passed"
