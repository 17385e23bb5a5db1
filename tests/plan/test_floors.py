"""Worked floors, weights and FLOPs, each with its working."""

from dataclasses import replace

import pytest

from kvcli import dtypes
from kvcli.hardware.accelerators import table
from kvcli.hardware.match import find
from kvcli.model.cut import cut_layers
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.floors import bandwidth_floor_s, decode_flops, forward_flops, prefill_floor_flops
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.weights import weight_bytes
from kvcli.plan.workload import Workload


def plan(model, context, device=None, batch=1, weights=None, prompt=0):
    parsed = dtypes.parse(weights, "--weights") if weights else None
    part = find(device) if isinstance(device, str) else device
    return build(PlanRequest(resolve(model), Workload(context, batch, prompt), policy("ideal"), weights=parsed, device=part))


def test_thirteen_and_a_half_gigabytes_at_two_terabytes_a_second():
    """13.5e9 B / 2e12 B/s = 6.75 ms, so at most 148 tokens/s."""
    seconds = bandwidth_floor_s(13_500_000_000, 2e12)
    assert seconds == pytest.approx(6.75e-3, rel=1e-12)
    assert int(1 / seconds) == 148


def test_where_the_cache_passes_the_weights():
    """llama2-7b: 524,288 B a token first exceed 13.5e9 B at 25,750 tokens."""
    spec = resolve("llama2-7b")
    needed = [build(PlanRequest(spec, Workload(n), policy("ideal"))).cache.needed_bytes for n in (25_749, 25_750)]
    assert needed[0] <= 13_500_000_000 < needed[1]


def test_llama3_on_an_h100():
    """(15,009,849,344 + 4,294,967,296) B / 3.35e12 B/s = 5.7626 ms; 50 MiB of them can stay in the last-level cache: 5.747 ms."""
    times = plan("llama3-8b", 32768, "h100-sxm5-80").latency
    lines = {line.item: line.amount for line in times.decode.lines}
    assert lines["weights_read"] == 15_009_849_344
    assert lines["kv_read"] == 4_294_967_296
    assert lines["decode_bandwidth_uncached"] == pytest.approx(5.7626e-3, abs=5e-8)
    assert lines["decode_last_level_cache"] == -50 * 2**20
    assert times.decode.seconds == pytest.approx(5.747e-3, abs=5e-7)
    assert times.decode.bound == "memory"
    assert times.ridge == pytest.approx(989.5e12 / 3.35e12)


def test_the_input_table_is_resident_but_not_read():
    """llama3-8b: the table is 128,256 x 4,096; tied models read it as their head."""
    weights = plan("llama3-8b", 1).weights
    assert weights.resident_bytes - weights.read_bytes_per_step == 2 * 128_256 * 4096
    tied = plan("llama3.2-1b", 1).weights
    assert tied.resident_bytes == tied.read_bytes_per_step == 2 * 1_235_814_400
    gpt2 = plan("gpt2", 1).weights
    assert gpt2.resident_bytes - gpt2.read_bytes_per_step == 2 * 1024 * 768  # learned positions are looked up by row


def test_a_full_forward_counts_every_pair():
    """Llama-3.1-8B, 64 tokens, one logit row, counted without causality by torch's own counter: 896,551,354,368.

    Causally 64 x 65 / 2 pairs instead of 64 x 64, at 4 x 32 heads x 128 FLOPs in each of 32 layers.
    """
    spec = resolve("llama3.1-8b")
    acausal = 2 * 64 * 6_979_321_856 + 2 * 525_336_576 + 32 * 4 * 64 * 64 * 32 * 128
    assert acausal == 896_551_354_368
    assert forward_flops(spec, 0, 64) == acausal - 32 * 4 * 32 * 128 * (64 * 64 - 64 * 65 // 2)


def test_forward_flops_against_torchs_counter():
    """The oracle: FlopCounterMode over transformers' own model with eager attention."""
    torch = pytest.importorskip("torch", reason="the oracle")
    transformers = pytest.importorskip("transformers", reason="the oracle")
    from torch.utils.flop_counter import FlopCounterMode

    from kvcli.model.config import spec_from_config

    config = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    }
    built = transformers.AutoConfig.for_model("llama", **config, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(built)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros((1, 16), dtype=torch.long), use_cache=False, logits_to_keep=1)
    spec = spec_from_config({"model_type": "llama", **config}, "m", "f")
    acausal = spec.groups[0].attention.pair_flops * 3 * (16 * 16 - 16 * 17 // 2)
    # the counter also sees transformers' product of inverse frequencies (16) and positions (16)
    rotary = 2 * (64 // 4 // 2) * 16
    assert counter.get_total_flops() in (forward_flops(spec, 0, 16) + acausal, forward_flops(spec, 0, 16) + acausal + rotary)


def test_the_prefill_floor_leaves_out_what_the_last_layer_need_not_do():
    """One layer, T tokens: all K and V, but query, output, MLP and attention for the last token only."""
    spec = resolve("llama3-8b")
    one = cut_layers(spec, 1)
    layer, tokens = one.groups[0].parameters, 1000
    by_hand = 2 * tokens * layer.key_value + 2 * (layer.matrices - layer.key_value) + 2 * spec.head_matrix + 4 * 32 * 128 * tokens
    assert prefill_floor_flops(one, tokens) == by_hand
    assert prefill_floor_flops(spec, 1) == forward_flops(spec, 0, 1) == decode_flops(spec, Workload(1))


def test_floors_are_the_larger_term_never_the_sum():
    for batch in (1, 64, 4096):
        times = plan("llama3-8b", 64, "h100-sxm5-80", batch=batch).latency
        terms = {line.item: line.amount for line in times.decode.lines}
        assert times.decode.seconds == max(terms["decode_bandwidth"], terms["decode_compute"])
    assert times.decode.bound == "compute"
    assert plan("llama3-8b", 64, "h100-sxm5-80").latency.decode.bound == "memory"


def test_a_model_that_fits_the_cache_has_a_zero_bandwidth_floor_but_not_below():
    huge_cache = replace(find("h100-sxm5-80"), last_level_cache_bytes=10**12)
    times = plan("llama3-8b", 64, huge_cache).latency
    assert times.decode.seconds == {line.item: line.amount for line in times.decode.lines}["decode_compute"] > 0


def test_unknown_peak_is_said_and_leaves_the_bandwidth_term():
    part = next(part for part in table() if not part.peak("bf16", "fp16"))
    answer = plan("llama3-8b", 64, part)
    assert "unknown_peak" in [notice.code for notice in answer.notices]
    assert answer.latency.decode.seconds > 0
    assert answer.latency.ridge is None


@pytest.mark.parametrize(("weights", "bits"), [("fp8", 8), ("int8", 8), ("int4", 4), ("nvfp4", 4.5), ("mxfp4", 4.25)])
def test_quantised_weights_are_the_layers_matrices(weights, bits):
    """Tables, head and norms stay in two bytes: 8,030,261,248 - 6,979,321,856 parameters."""
    answer = plan("llama3-8b", 1, weights=weights)
    assert answer.weights.resident_bytes == 6_979_321_856 * bits / 8 + 2 * (8_030_261_248 - 6_979_321_856)
    assert "weights_linear_only" in [notice.code for notice in answer.notices]


def test_plain_weight_types():
    for name, size in (("fp32", 4), ("fp16", 2), ("bf16", 2)):
        assert weight_bytes(resolve("llama3-8b"), dtypes.PLAIN[name]).resident_bytes == size * 8_030_261_248


def test_memory_and_its_verdict():
    fits = plan("llama3-8b", 32768, "h100-sxm5-80")
    assert fits.memory.total_bytes == 16_060_522_496 + 4_294_967_296 == fits.total_bytes
    assert fits.memory.headroom_bytes == fits.memory.usable_bytes - fits.total_bytes
    assert fits.memory.fits
    assert not plan("llama3-70b", 8192, "h100-sxm5-80").memory.fits
    assert plan("llama3-8b", 64, "cpu-ddr5-5600-2").memory is None


def test_context_beyond_the_trained_positions_is_said():
    assert "context_beyond_positions" in [notice.code for notice in plan("llama3-8b", 8193).notices]
    assert plan("llama3-8b", 8192).notices == ()


def test_the_expected_experts_are_an_estimate_above_the_floor():
    """Two layers of 8 experts of 10 parameters, 2 for each token: 4 sequences expect 8 (1 - (6/8)^4) = 5.46875 distinct ones."""
    from kvcli.model.layers import LayerGroup, LayerParameters
    from kvcli.plan.weights import expected_read_bytes

    spec = resolve("llama3-8b")
    assert expected_read_bytes(spec, weight_bytes(spec, None), 4) is None
    group = spec.groups[0]
    moe = replace(group, count=2, parameters=LayerParameters(query=100, expert=10, num_experts=8, experts_per_token=2))
    spec = replace(spec, groups=(moe,), order=(0, 0))
    assert isinstance(moe, LayerGroup)
    weights = weight_bytes(spec, None)
    assert weights.read_bytes_per_step == 2 * (2 * 100 + 2 * 2 * 10 + spec.final + spec.head)
    assert expected_read_bytes(spec, weights, 1) == weights.read_bytes_per_step
    assert expected_read_bytes(spec, weights, 4) - weights.read_bytes_per_step == round(2 * 2 * 10 * (5.46875 - 2))


def test_a_window_spares_the_prefill_of_layers_below():
    """Two layers with a window of 3, 10 tokens. Top: 1 output, K and V of 3; below: 3 outputs, K and V of 5. By hand."""
    from kvcli.model.cut import cut_layers as cut
    from kvcli.verify.verify import with_window

    pytest.importorskip("torch", reason="with_window lives on the measuring side")
    spec = cut(resolve("smollm2-135m"), 2)
    windowed = with_window(spec, 3)
    windowed = replace(windowed, groups=(replace(windowed.groups[0], count=2),), order=(0, 0))
    p, pair = spec.groups[0].parameters, spec.groups[0].attention.pair_flops
    rest = p.active_matrices - p.key_value
    top = 2 * (rest + 3 * p.key_value) + pair * 3
    below = 2 * (3 * rest + 5 * p.key_value) + pair * 9
    assert prefill_floor_flops(windowed, 10) == top + below + 2 * spec.head_matrix
    # without windows all of it, but for the last layer
    full = 2 * (rest + 10 * p.key_value) + pair * 10 + 2 * 10 * p.active_matrices + pair * 55
    assert prefill_floor_flops(spec, 10) == full + 2 * spec.head_matrix


@pytest.mark.parametrize(
    ("name", "tokens", "seconds"),
    [
        ("mistral-7b-v0.1", 32768, 0.4556),
        ("mistral-7b-v0.1", 131072, 1.0354),
        ("gemma3-4b", 131072, 1.0450),
        ("gemma3-27b", 131072, 7.8572),
    ],
)
def test_prefill_floors_of_windowed_models_are_not_beaten_by_computing_what_is_needed(name, tokens, seconds):
    """Times of an execution that computes each layer for the tokens its outputs are needed of, at 989.5 TFLOP/s."""
    assert prefill_floor_flops(resolve(name), tokens) / 989.5e12 <= seconds


def test_narrow_caches_and_indexers_may_use_narrow_units():
    device = find("h100-sxm5-80")
    kv = dtypes.parse_kv("fp8")
    wide = build(PlanRequest(resolve("llama3.1-8b"), Workload(131072), policy("ideal"), device=device))
    narrow = build(PlanRequest(resolve("llama3.1-8b"), Workload(131072), policy("ideal"), kv=kv, device=device))
    assert narrow.latency.prefill.seconds == pytest.approx(wide.latency.prefill.seconds / 2)
    assert "fp8" in build(PlanRequest(resolve("deepseek-v3.2"), Workload(100), policy("ideal"))).weights.multiply_units
