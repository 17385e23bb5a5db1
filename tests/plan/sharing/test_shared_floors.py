"""Floors over several devices: a token passes all stages, of each the busiest device; FLOPs are everyone's."""

import json

import pytest

from kvcli.hardware.match import find
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.checks import read_split
from kvcli.plan.sharing.split import Split
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload

H100 = find("h100-sxm5-80")
RATE = H100.bandwidth_bound_bytes_per_s


def plan(name, split, **work):
    return build(PlanRequest(resolve(name), Workload(**{"context_tokens": 32768, **work}), policy("ideal"), device=H100, split=split))


def test_ranks_read_side_by_side():
    """Llama-3.1-8B at tp 4: a quarter of all matrices and of the cache, and the norms whole."""
    both = plan("llama3.1-8b", Split(tensor=4))
    read = (15009849344 - 65 * 4096 * 2) // 4 + 65 * 4096 * 2
    assert both.latency.decode.seconds == pytest.approx((read + 2**30 - H100.last_level_cache_bytes) / RATE, rel=1e-12)
    # prefill binds on FLOPs, and four devices have four times as many
    assert plan("llama3.1-8b", Split()).latency.prefill.seconds == pytest.approx(4 * both.latency.prefill.seconds, rel=1e-12)


def test_stages_take_turns():
    """Two stages halve neither weights nor, for one sequence, its cache; two sequences each read their own."""
    caches = 2 * H100.last_level_cache_bytes
    one = plan("llama3.1-8b", Split(pipeline=2))
    assert one.latency.decode.seconds == pytest.approx((15009849344 + 4 * 2**30 - caches) / RATE, rel=1e-12)
    two = plan("llama3.1-8b", Split(pipeline=2), batch_size=2)
    assert two.latency.decode.seconds == pytest.approx((15009849344 + 8 * 2**30 // 2 - caches) / RATE, rel=1e-12)


def test_replicas_share_the_sequences():
    """Three sequences over two replicas: the busier one has two."""
    both = plan("llama3.1-8b", Split(data=2), batch_size=3)
    read = 15009849344 + 2 * 4 * 2**30
    assert both.latency.decode.seconds == pytest.approx((read - H100.last_level_cache_bytes) / RATE, rel=1e-12)
    assert both.cache.stored_bytes == 12 * 2**30


def test_no_split_beats_the_sum_of_its_devices():
    """A floor over n devices is at least an n-th of the floor on one, since nothing is computed or read by fewer."""
    for name in ("llama3.1-8b", "qwen3-30b-a3b", "gemma3-27b"):
        for split in (Split(tensor=2), Split(tensor=4, pipeline=2), Split(pipeline=4), Split(tensor=2, data=2)):
            one, many = plan(name, Split(), batch_size=8), plan(name, split, batch_size=8)
            spared = split.devices * H100.last_level_cache_bytes / RATE
            assert (many.latency.decode.seconds * split.devices + spared) >= one.latency.decode.seconds
            assert many.latency.prefill.seconds * split.devices * (1 + 1e-12) >= one.latency.prefill.seconds


def test_devices_alone_are_tensor_ranks(kvcli):
    def parallel(*options):
        answer = kvcli("plan", "deepseek-v3", "--ctx", "4k", "--json", *options)
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    alone = parallel("--devices", "8", "--device", "h200-sxm")
    assert (alone["parallel"]["tp"], alone["parallel"]["dp"], alone["device"]["count"]) == (8, 1, 8)
    assert alone["memory"]["total_bytes"] == alone["parallel"]["ranks"][0]["total_bytes"]
    assert alone["weights"]["resident_bytes_per_device"] == alone["parallel"]["ranks"][0]["weights_bytes"]
    assert alone["kv_cache"]["stored_bytes_per_device"] == alone["parallel"]["ranks"][0]["kv_cache_bytes"]
    replicas = parallel("--devices", "16", "--tp", "8")["parallel"]
    assert (replicas["tp"], replicas["dp"], replicas["devices"]) == (8, 2, 16)
    grouped = parallel("--tp", "8", "--dp-attention")["parallel"]
    assert grouped["dp_attention"] == 8
    assert parallel("--tp", "8", "--dp-attention", "2")["parallel"]["dp_attention"] == 2
    assert parallel()["parallel"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--devices 8 --tp 3", "--devices 8 is no multiple of --tp 3 x --pp 1"),
        ("--tp 8 --ep 3", "--ep 3 neither divides --tp 8"),
        ("--tp 8 --dp-attention 3", "--dp-attention 3 does not divide --tp 8"),
        ("--tp 100000", "more than kvcli plans for"),
        ("--tp 0", "--tp"),
        ("--tp 7", "--tp 7 does not divide"),
    ],
)
def test_a_split_that_contradicts_itself(kvcli, options, said):
    answer = kvcli("plan", "deepseek-v3", "--ctx", "4k", *options.split())
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_sequences_and_tokens_are_dealt_to_all_devices():
    split = read_split(devices=24, tp=4, pp=3, ep=None, dp_attention=2, dcp=2)
    assert (split.tensor, split.pipeline, split.data, split.attention_ranks, split.devices) == (4, 3, 2, 2, 24)
    shared = plan("deepseek-v3", split, batch_size=5, context_tokens=999).shared
    assert sum(each.devices for each in shared.places) == 24
    # each sequence is once in each stage: 5 sequences x (500 + 499) tokens over the two context ranks
    assert plan("deepseek-v3", split, batch_size=5, context_tokens=999).cache.stored_bytes == 5 * 999 * 61 * 576 * 2


def test_the_views_say_what_each_device_holds(kvcli):
    human = kvcli("plan", "deepseek-v3", "--tp", "8", "--pp", "2", "--ctx", "32k", "--device", "h200-sxm", "--engine", "sglang")
    assert "each of 8 devices, stage 2 with 31 layers" in human.out
    assert "floors on 16 x H200 SXM" in human.out
    assert "cache of latent attention" in human.out
    explained = kvcli("plan", "llama3.1-8b", "--tp", "16", "--ctx", "32k", "--explain")
    assert "of the fullest of 16 devices" in explained.out
    assert "which together hold 8,589,934,592 B" in explained.out
    table = kvcli("plan", "llama3.1-8b", "--tp", "16", "--ctx", "4k,32k", "--csv").out.splitlines()
    assert "stored_bytes_per_device" in table[0]
    assert ",536870912," in table[2]
