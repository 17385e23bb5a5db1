"""Executions that were built to beat a floor. Each is possible and correct, its time is worked out by hand, and none may be faster."""

from dataclasses import replace

import pytest

from kvcli.hardware.match import find
from kvcli.model.resolve import resolve
from kvcli.plan.drafter import Speculation
from kvcli.plan.floors import LARGEST_CPU_CACHE_BYTES, prefill_floor_flops
from kvcli.plan.sharing.offload import Offload
from kvcli.plan.sharing.split import Split
from kvcli.plan.speculative import speculate
from kvcli.plan.time.limits import tpot_floor_s, ttft_floor_s
from kvcli.plan.time.options import Timing

H100 = find("h100-sxm5-80")
RATE, L2 = 3.35e12, 50 * 2**20
#: llama3.1-8b in two bytes, without its input table; a token of its cache; FLOPs of its matrices and head for a token
WEIGHTS, TOKEN = 15_009_849_344, 131_072
MATRICES, HEAD = 6_979_321_856, 525_336_576


def test_a_lucky_draft(plan):
    """All 4 looked-up tokens are right: 5 tokens for one pass over the weights and over the cache."""
    lucky = plan("llama3.1-8b", 8192, drafted=Speculation(4))
    assert tpot_floor_s(lucky) <= (WEIGHTS + 8192 * TOKEN) / RATE / 5
    assert tpot_floor_s(lucky) == pytest.approx((WEIGHTS + 8192 * TOKEN - L2) / RATE / 5)


def test_a_lucky_draft_by_a_model(plan):
    """llama3.2-1b drafts 4 tokens in one pass (in parallel), reading 2,471,628,800 B once."""
    lucky = plan("llama3.1-8b", 8192, drafted=speculate(resolve("llama3.1-8b"), 4, draft=resolve("llama3.2-1b")))
    cache = 8192 * 2 * 16 * 8 * 64 * 2
    assert tpot_floor_s(lucky) <= (WEIGHTS + 8192 * TOKEN + 2_471_628_800 + cache) / RATE / 5


def test_drafting_over_a_generation(plan):
    """30 tokens after the first in 6 lucky steps of 5: each reads the cache that its last token sees."""
    lucky = plan("llama3.1-8b", 8192, drafted=Speculation(4), prompt_tokens=1000, new_tokens=31)
    steps = sum((WEIGHTS + (1000 + 5 * number) * TOKEN) / RATE for number in range(1, 7))
    assert tpot_floor_s(lucky) <= steps / 30


def test_identical_prompts_on_experts(plan):
    """64 sequences that are routed alike read 8 experts a layer, not 64 x 8: qwen3-30b-a3b, 3,042,160,640 parameters less norms."""
    together, alone = plan("qwen3-30b-a3b", 512, batch_size=64), plan("qwen3-30b-a3b", 512)
    read = alone.weights.read_bytes_per_step
    assert read < 2 * 3_050_000_000
    assert together.latency.decode.seconds <= (read + 64 * 512 * 98_304) / RATE
    # the worst rank of 8 has at least one of a token's 8 experts, whatever the batch
    spread = plan("qwen3-30b-a3b", 512, batch_size=64, split=Split(tensor=8, experts=8)).latency.steps.weights_bytes
    assert spread <= read / 8 * 1.1


def test_identical_prompts_share_their_prefix(plan):
    """64 sequences that differ in their last 32 of 4,096 tokens: the prefix is read once, and computed once."""
    work = {"batch_size": 64, "shared_prefix_tokens": 4064}
    both = plan("llama3.1-8b", 4096, **work)
    assert both.latency.decode.seconds <= (WEIGHTS + (4064 + 64 * 32) * TOKEN) / RATE
    pairs = 32 * 4064 + 32 * 33 // 2
    one = 2 * 4096 * MATRICES + 2 * HEAD + 32 * 4 * 32 * 128 * (4096 * 4097 // 2)
    rest = 2 * 32 * MATRICES + 2 * HEAD + 32 * 4 * 32 * 128 * pairs
    assert both.latency.prefill.seconds <= (one + 63 * rest) / 989.5e12
    assert plan("llama3.1-8b", 4096, batch_size=64).latency.prefill.seconds > (one + 63 * rest) / 989.5e12
    assert ttft_floor_s(both) <= max(rest / 989.5e12, (WEIGHTS + 4064 * TOKEN) / RATE)


@pytest.mark.parametrize("model", ["gemma3-27b", "llama4-scout", "deepseek-v3.2", "qwen3.5-27b", "deepseek-v4-flash"])
@pytest.mark.parametrize("prefix", [1, 127, 3000, 4999])
def test_a_shared_prefix_never_adds(plan, model, prefix):
    """Between all of a sequence once, and all sequences apart."""
    shared = plan(model, 5000, batch_size=7, shared_prefix_tokens=prefix).cache.read_bytes_per_step
    apart, one = plan(model, 5000, batch_size=7).cache.read_bytes_per_step, plan(model, 5000).cache.read_bytes_per_step
    assert one <= shared <= apart


def test_a_window_past_the_prefix_is_each_sequence_s_own(plan):
    """mistral-7b-v0.1 looks 4,096 tokens back: at 8,192 with a prefix of 2,000 nothing of the prefix is seen, of 6,000 some is."""

    def seen(prefix):
        return plan("mistral-7b-v0.1", 8192, batch_size=3, shared_prefix_tokens=prefix).cache.read_bytes_per_step

    assert seen(2000) == 3 * 4096 * TOKEN
    assert seen(6000) == ((6000 - 4096) + 3 * 2192) * TOKEN


def test_sparse_attention_may_choose_the_prefix(plan):
    """deepseek-v3.2: all sequences may attend over the same 2,048 rows of a shared prefix; their own are index keys alone."""
    shared = plan("deepseek-v3.2", 8192, batch_size=4, shared_prefix_tokens=4096).cache.read_bytes_per_step
    assert shared <= 61 * (2048 * 576 + (4096 + 4 * 4096) * 128) * 2


def test_a_cached_prompt(plan):
    """All but the last of 32,768 tokens are cached: one pass like a decode step."""
    late = plan("llama3.1-8b", 32768, uncached_tokens=1)
    assert late.latency.prefill.seconds <= (WEIGHTS + 32768 * TOKEN) / RATE
    assert late.latency.prefill.seconds == pytest.approx((WEIGHTS + 32767 * TOKEN - L2) / RATE)
    flops = 2 * 100 * MATRICES + 2 * HEAD + 32 * 4 * 32 * 128 * (100 * 32668 + 100 * 101 // 2)
    assert plan("llama3.1-8b", 32768, uncached_tokens=100).latency.prefill.seconds <= max(
        flops / 989.5e12, (WEIGHTS + 32668 * TOKEN) / RATE
    )


@pytest.mark.parametrize("model", ["gemma3-27b", "deepseek-v3.2", "qwen3.5-27b", "mistral-7b-v0.1"])
def test_the_less_is_uncached_the_sooner(plan, model):
    spec = resolve(model)
    flops = [prefill_floor_flops(spec, 8192, 0, tokens) for tokens in (1, 2, 100, 4000, 8191, 8192)]
    assert flops == sorted(flops)
    assert flops[-1] == prefill_floor_flops(spec, 8192)
    from kvcli.plan.floors import decode_flops
    from kvcli.plan.workload import Workload

    assert flops[0] <= decode_flops(spec, Workload(8192))


def test_overclocked_memory(plan):
    """An H200 at its highest memory clock moves 4,917 GB/s, more than its label's 4,800."""
    steps = plan("llama3.1-8b", 8192, "h200-sxm")
    assert steps.latency.decode.seconds <= (WEIGHTS + 8192 * TOKEN) / 4.917e12
    # and a user who knows better is believed
    faster = replace(H100, bandwidth_bound_bytes_per_s=4e12)
    assert plan("llama3.1-8b", 8192, faster).latency.decode.seconds <= (WEIGHTS + 8192 * TOKEN) / 4e12


@pytest.mark.parametrize(
    ("device", "weights", "rate"),
    [
        ("rtx3090", "q4_k_m", 284.7e12),  # 8-bit integer products, as llama.cpp's own kernels do
        ("rtx4090", "int8", 660.6e12),
        ("h100-sxm5-80", "int4-g128", 1979e12),  # 4-bit weights, 8-bit activations
        ("rtx4090", "fp16", 330.3e12),  # 16-bit sums, twice the table's rate with 32-bit sums
        ("rtx5090", "fp8", 838e12),
        ("p40", "fp16", 11.76e12),  # its fp16 is 1/64 of its fp32: nobody uses it
    ],
)
def test_the_fastest_way_to_multiply(plan, device, weights, rate):
    """A prefill of 8,192 tokens in which every product runs at the part's fastest rate."""
    flops = prefill_floor_flops(resolve("llama3.1-8b"), 8192)
    assert plan("llama3.1-8b", 8192, device, weights=weights).latency.prefill.seconds <= flops / rate


def test_sixteen_bit_weights_stay_sixteen_bit(plan):
    """Products in 8 bits would not be this model's. The data sheet's 989.5 TFLOP/s are at 1,830 MHz, the highest clock is 1,980."""
    flops = prefill_floor_flops(resolve("llama3.1-8b"), 8192)
    assert plan("llama3.1-8b", 8192, "h100-sxm5-80").latency.prefill.seconds == pytest.approx(flops / (989.5e12 * 1980 / 1830), rel=1e-3)


def test_a_small_model_in_a_large_cache(plan):
    """smollm2-135m (269,030,016 B) stays whole in an EPYC 9684X, and nearly half of it in a B200."""
    cpu = plan("smollm2-135m", 64, "cpu-genoa-ddr5-4800-12")
    assert cpu.weights.resident_bytes < LARGEST_CPU_CACHE_BYTES
    assert cpu.latency.decode.seconds == 0
    gpu = plan("smollm2-135m", 64, "b200")
    assert gpu.latency.decode.seconds <= (269_030_016 + 64 * 23_040 - 126 * 2**20) / 7.7e12


@pytest.mark.parametrize("batch", [1, 2, 3, 8, 9])
def test_stages_with_micro_batches(plan, batch):
    """4 stages, sequences in up to 4 equal parts: in the steady state a stage's cycle is its parts' passes one after another."""
    split, stages = Split(pipeline=4), 4
    floor = plan("llama3.1-8b", 8192, split=split, batch_size=batch).latency.decode.seconds
    for parts in range(1, min(stages, batch) + 1):
        most = -(-batch // parts)
        cycle = max(parts * WEIGHTS / stages + batch * 8192 * TOKEN / stages, WEIGHTS + most * 8192 * TOKEN)
        assert floor <= cycle / RATE


def test_one_prompt_through_stages_in_chunks(plan):
    """Chunks of one prompt keep all stages busy."""
    flops = prefill_floor_flops(resolve("llama3.1-8b"), 131072)
    assert ttft_floor_s(plan("llama3.1-8b", 131072, split=Split(pipeline=4))) <= flops / (4 * 989.5e12)


def test_sequences_that_come_one_after_another(plan):
    """64 are decoded together, but each came alone: its first token takes one prompt's time."""
    together = plan("llama3.1-8b", 8192, batch_size=64)
    assert ttft_floor_s(together) == ttft_floor_s(plan("llama3.1-8b", 8192)) == pytest.approx(together.latency.prefill.seconds / 64)


def test_the_host_computes_its_own_layers(plan):
    """20 of 33 layers of a weak part's model stay on a strong host: the part computes the others alone."""
    weak = replace(H100, peak_flops=(("bf16", 1e12), ("fp16", 1e12)))
    both = plan("llama3.1-8b", 8192, weak, engine="llama.cpp", offload=Offload(13))
    inside = 12 / 32 * prefill_floor_flops(resolve("llama3.1-8b"), 8192) + 2 * HEAD
    assert both.latency.prefill.seconds <= inside / 1e12
    assert both.latency.decode.seconds < plan("llama3.1-8b", 8192, weak).latency.decode.seconds


def test_the_host_s_memory(plan):
    """Device and host read at the same time; a cache of 1,152 MiB may hold the rest."""
    with_rate = {"engine": "llama.cpp", "offload": Offload(13), "timing": Timing(host_bytes_per_s=80e9)}
    both = plan("llama3.1-8b", 8192, **with_rate)
    layers = 20 * (2 * MATRICES // 32 + 2 * 2 * 4096 + 8192 * TOKEN // 32)
    assert both.latency.decode.seconds == pytest.approx((layers - LARGEST_CPU_CACHE_BYTES) / 80e9, rel=1e-3)
    assert both.latency.decode.bound == "host_memory"
    assert both.latency.decode.seconds <= layers / 80e9


def test_sums_over_ranks_in_the_network(plan):
    """8 ranks whose switch adds up: each receives one vector of 8,192 bf16 numbers a layer and token, at 450 GB/s; twice a layer
    in most models, once where attention and MLP run side by side.
    """
    steps = plan("llama3.1-70b", 1024, split=Split(tensor=8)).latency.steps
    assert steps.link_bytes(1) <= 80 * 8192 * 2
    assert dict(steps.terms(1024, 1))["link"] <= 80 * 8192 * 2 / 450e9
    # where each group of one rank attends for its own sequences, no layer's output need be summed
    assert plan("deepseek-v3", 1024, split=Split(tensor=8, attention_data=8)).latency.steps.link_bytes(8) == 0


def test_weights_may_travel_instead(plan):
    """With 100,000 sequences the others' shares of a layer are fewer bytes than its vectors, at 2 bits a parameter."""
    steps = plan("llama3.1-8b", 128, split=Split(tensor=2)).latency.steps
    assert steps.link_bytes(100_000) <= MATRICES // 2 // 4


def test_latent_rows_need_not_be_expanded_for_one_token():
    """deepseek-v3's last layer, absorbed: of 4,096 tokens the rows, of the last one all the rest."""
    from kvcli.model.cut import cut_layers

    spec = cut_layers(resolve("deepseek-v3"), 1)
    p, tokens = spec.groups[0].parameters, 4096
    rows = 7168 * (512 + 64)
    pairs = 2 * 128 * (2 * 512 + 64) * tokens
    by_hand = 2 * tokens * rows + 2 * (p.active_matrices - rows) + pairs + 2 * spec.head_matrix
    assert prefill_floor_flops(spec, tokens) <= by_hand
