"""Partial offload: which layers llama.cpp keeps on the device.

Its rule, from `load_tensors` of 2026 (`i_gpu_start = max(n_layer + 1 - n_gpu_layers, 0)`, the output is layer n_layer, the input
is always on the host) and of 2025 (`max(n_layer - n_gpu_layers, 0)`); `--n-cpu-moe N` overrides `blk.i.ffn_*_exps` for i < N.
"""

import json

import pytest

from kvcli.errors import BadInput
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.offload import Offload, place
from kvcli.plan.sharing.split import ALONE, Split
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload


def offloaded(name, layers=None, moe=0, split=ALONE, version=None, **work):
    engine = policy("llama.cpp", EngineOptions(version=version))
    workload = Workload(**{"context_tokens": 4096, **work})
    return build(PlanRequest(resolve(name), workload, engine, split=split, offload=Offload(layers, moe)))


@pytest.mark.parametrize(
    ("ngl", "first", "output"),
    [(0, 32, False), (1, 32, True), (2, 31, True), (32, 1, True), (33, 0, True), (99, 0, True), (None, 0, True)],
)
def test_the_output_goes_first(ngl, first, output):
    assert place(resolve("llama3.1-8b"), Offload(ngl), output_last=False)[:2] == (first, output)


@pytest.mark.parametrize(("ngl", "first", "output"), [(0, 32, False), (1, 31, False), (32, 0, False), (33, 0, True), (None, 0, True)])
def test_older_builds_put_it_last(ngl, first, output):
    assert place(resolve("llama3.1-8b"), Offload(ngl), output_last=True)[:2] == (first, output)


def test_llama_by_hand():
    """Llama-3.1-8B, -ngl 11: the output and 10 of 32 layers with their 4,096 cells of 4 KiB in f16; the input table stays."""
    layer = 2 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
    table, norm, cells = 2 * 128256 * 4096, 2 * 4096, 4096 * 2 * 8 * 128 * 2
    plan = offloaded("llama3.1-8b", 11)
    (device,), host = plan.shared.on_devices, plan.shared.host
    assert (device.layers, device.weights_bytes, device.stored_bytes) == (10, 10 * layer + table + norm, 10 * cells)
    assert (host.layers, host.weights_bytes, host.stored_bytes) == (22, 22 * layer + table, 22 * cells)
    assert device.weights_bytes + host.weights_bytes == plan.weights.resident_bytes
    assert plan.device_bytes == device.weights_bytes + device.stored_bytes
    assert plan.cache.stored_bytes == 32 * cells
    # of the input table the host reads rows
    assert host.weights_read_bytes == 22 * layer


def test_a_tied_table_is_on_both_sides():
    """Qwen3-0.6B looks words up on the host and multiplies with a copy on the device."""
    table = 2 * 151936 * 1024
    plan = offloaded("qwen3-0.6b", 99)
    assert plan.shared.weight_copies == (("tied table, on the host and as the output", table),)
    assert plan.shared.host.weights_bytes == table
    assert plan.shared.on_devices[0].weights_bytes == plan.weights.resident_bytes
    none = offloaded("qwen3-0.6b", 0)
    assert none.shared.weight_copies == ()
    assert (none.shared.on_devices[0].total_bytes, none.shared.host.weights_bytes) == (0, plan.weights.resident_bytes)


def test_experts_of_the_first_layers_stay():
    """Qwen3-30B-A3B: 128 experts of 3 x 2,048 x 768 in 48 layers; the caches stay with their layers."""
    experts = 128 * 3 * 2048 * 768 * 2
    some, none = offloaded("qwen3-30b-a3b", 99, 10), offloaded("qwen3-30b-a3b", 99)
    assert none.shared.on_devices[0].weights_bytes - some.shared.on_devices[0].weights_bytes == 10 * experts
    assert some.shared.host.weights_bytes - none.shared.host.weights_bytes == 10 * experts
    assert some.shared.on_devices[0].stored_bytes == none.shared.on_devices[0].stored_bytes
    # of 8 chosen experts each layer reads 8 / 128
    assert some.shared.host.weights_read_bytes == 10 * experts // 16
    # layers that are on the host already have their experts there
    both = offloaded("qwen3-30b-a3b", 39, 10)
    assert both.shared.on_devices[0].layers == 38
    assert both.shared.on_devices[0].weights_bytes == offloaded("qwen3-30b-a3b", 39).shared.on_devices[0].weights_bytes


def test_two_devices_share_what_is_offloaded():
    """Llama-3.1-8B on two devices, -ngl 21: 20 layers and the output; layer i of the 20 is on device floor(2 i / 21)."""
    plan = offloaded("llama3.1-8b", 21, split=Split(pipeline=2))
    assert [each.layers for each in plan.shared.on_devices] == [11, 9]
    assert plan.shared.host.layers == 12
    assert sum(each.weights_bytes for each in plan.shared.places) == plan.weights.resident_bytes


def test_windows_and_slots_stay_with_their_layers():
    """Gemma-3-27B, -ngl 32: the last 31 of 62 layers, of which every sixth is full (layer 35, 41, 47, 53, 59: five)."""
    row = 2 * 16 * 128 * 2
    plan = offloaded("gemma3-27b", 32, context_tokens=131072)
    assert plan.shared.on_devices[0].stored_bytes == (5 * 131072 + 26 * 1536) * row
    assert plan.shared.host.stored_bytes == (5 * 131072 + 26 * 1536) * row


def test_a_dense_model_has_no_experts_to_keep():
    with pytest.raises(BadInput) as caught:
        offloaded("llama3.1-8b", 99, 10)
    assert "no routed experts" in caught.value.message


def test_through_the_command_line(kvcli):
    answer = kvcli("plan", "qwen3-30b-a3b", "--ngl", "99", "--n-cpu-moe", "48", "--ctx", "32k", "--device", "rtx4090", "--json")
    assert answer.code == 0, answer.err
    plan = json.loads(answer.out)
    assert plan["kv_cache"]["engine"] == "llama.cpp"
    (device,), host = plan["parallel"]["ranks"], plan["parallel"]["host"]
    lines = {line["item"]: line["bytes"] for line in plan["memory"]["lines"]}
    assert lines["weights"] + lines["kv_cache"] == device["total_bytes"] == device["weights_bytes"] + device["kv_cache_bytes"]
    assert plan["memory"]["total_bytes"] == sum(lines.values())
    assert plan["memory"]["fits"] is True
    assert host["weights_bytes"] > 50 * 2**30
    assert "host_not_in_floors" in [warning["code"] for warning in plan["warnings"]]
    human = kvcli("plan", "qwen3-30b-a3b", "--ngl", "20", "--n-cpu-moe", "40", "--ctx", "32k")
    assert "the device, 19 layers" in human.out
    assert "the host, 29 layers and tables" in human.out
    refused = kvcli("plan", "llama3.1-8b", "--ngl", "5", "--engine", "vllm", "--ctx", "4k")
    assert (refused.code, "llama.cpp" in refused.err) == (2, True)
