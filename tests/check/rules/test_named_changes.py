"""What is named as passing passes: for all users at once, for engines without stages, and in a pool that nothing helps."""

import datetime
import re

import pytest

from kvcli.check.run import check

DAY = datetime.date(2026, 11, 29)
LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
TGI = "text-generation-launcher --model-id meta-llama/Llama-3.3-70B-Instruct --max-total-tokens 8192"


@pytest.fixture
def gate(tmp_path):
    def run(command, on="l4s", devices=8, more=""):
        path = tmp_path / "kvcli.yaml"
        fleet = f"fleet: {{ l4s: {{ device: l4, devices: {devices} }} }}"
        path.write_text(f"version: 1\n{fleet}\ntargets:\n  - name: chat\n    command: {command}\n    on: [{on}]\n{more}")
        cell = check([path], DAY)[0].cells[0]
        return {each.rule: each for each in cell.outcomes}

    return run


def load(users, tokens):
    return f"    load: {{ users: {users}, ctx_p99: {tokens} }}\n"


def test_no_shorter_length_helps_users_of_that_length(gate):
    """One L4 holds no request of 32,768 tokens for sure: 16.06e9 B + 4.29e9 B of 23.65e9, and overheads. Two hold at least three, each
    half: 21.3e9 - 8.03e9 B over 2.15e9 is six without overheads. 40 users want 14 of such instances."""
    found = gate(f"{LLAMA} --max-model-len 65536", more=load(40, 32768))["KV007"]
    assert found.fix == "--tensor-parallel-size 2 on 2 x l4 each and 14 replicas in a pool with devices: 28"
    passes = "--max-model-len 65536 --tensor-parallel-size 2"
    applied = gate(f"{LLAMA} {passes}", devices=28, more=load(3, 32768))  # a fourteenth of 40, rounded up
    assert applied["KV007"].level == applied["KV001"].level == applied["KV003"].level == "passed"
    assert gate(f"{LLAMA} --max-model-len 65536", on="l4", more=load(40, 32768))["KV007"].fix.endswith("each and 14 replicas")


def test_ranks_alone_where_they_hold_all(gate):
    found = gate(f"{LLAMA} --max-model-len 65536", more=load(3, 32768))["KV007"]
    assert found.fix == "--tensor-parallel-size 2 on 2 x l4"
    applied = gate(f"{LLAMA} --max-model-len 65536 --tensor-parallel-size 2", more=load(3, 32768))
    assert applied["KV007"].level == "passed"


def test_replicas_say_the_devices_that_the_pool_lacks(gate):
    """An L4 holds at least two of 4,096 tokens, so that 40 users want 20."""
    assert gate(f"{LLAMA} --max-model-len 8192", more=load(40, 4096))["KV007"].fix == "20 replicas in a pool with devices: 20"
    assert gate(f"{LLAMA} --max-model-len 8192", devices=20, more=load(40, 4096))["KV007"].fix == "20 replicas"


def test_tgi_deals_no_layers(gate):
    """141.1e9 B of weights on eight L4 of 23.65e9: 17.6e9 B each, and no more than eight ranks. It has no option for stages."""
    found = gate(TGI, on="l4")["KV001"]
    assert found.level == "error"
    assert re.fullmatch(r"--num-shard 8 on 8 x l4( \(with a warning, if overheads stay low\))?", found.fix)


def test_a_pool_in_which_nothing_passes_is_said_to_be_one(gate):
    found = gate(TGI, devices=2)["KV001"]
    assert (found.level, found.fix) == ("error", "")
    assert found.message.endswith("GiB too little; no change that kvcli tries passes in the pool l4s, which has 2 devices")


def test_ranks_that_hold_the_users_and_not_the_longest_request_are_passed_over(gate):
    """400,000 tokens are 52.4e9 B: half of them beside 8.03e9 B do not fit 23.65e9 B, and a quarter beside 4.02e9 B does. Users of 4,096
    tokens would be held by two cards too."""
    found = gate(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {LLAMA} --max-model-len 400000", more=load(12, 4096))
    assert found["KV001"].level == "error"
    assert found["KV007"].fix == "--tensor-parallel-size 4 on 4 x l4"
