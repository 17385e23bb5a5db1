"""What each device holds of the cache, against worked numbers, and what must hold for every model.

Per-rank shapes are those of Megatron's rule: KV heads / tp, one head each beyond that; latent rows whole on each rank.
"""

import pytest

from kvcli.errors import BadInput, KvcliError, NotModelled
from kvcli.model import presets
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.ranks import COPIES
from kvcli.plan.sharing.rules import by_equal_memory, more_in_first, more_in_last, more_in_middle
from kvcli.plan.sharing.split import Split
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload

GIB = 2**30


def shared(name, split, engine="ideal", ctx=32768, batch=1, **options):
    spec = resolve(name)
    return build(PlanRequest(spec, Workload(ctx, batch), policy(engine, EngineOptions(**options)), split=split))


def per_device(plan):
    return sorted((each.devices, each.stored_bytes) for each in plan.shared.on_devices)


def test_heads_beyond_the_kv_heads_hold_copies():
    """Llama-3.1-8B: 8 KV heads of 128 in 32 layers; at tp 16 each rank has one head: 2 x 32 x 128 x 32768 x 2 B = 0.5 GiB."""
    plan = shared("llama3.1-8b", Split(tensor=16))
    assert per_device(plan) == [(16, GIB // 2)]
    assert plan.cache.stored_bytes == 8 * GIB == 2 * plan.cache.needed_bytes
    assert plan.shared.cache_copies == (("full_attention", 4 * GIB),)
    assert plan.cache.causes == ((COPIES, 4 * GIB),)


def test_heads_that_divide_are_held_once():
    plan = shared("llama3.1-8b", Split(tensor=8))
    assert per_device(plan) == [(8, GIB // 2)]
    assert plan.cache.stored_bytes == plan.cache.needed_bytes
    assert plan.shared.cache_copies == ()


def test_latent_rows_are_whole_on_every_rank():
    """DeepSeek-V3: 61 x 576 x 2 B x 32768 tokens = 2.1445 GiB, as unsharded."""
    plan = shared("deepseek-v3", Split(tensor=8))
    assert per_device(plan) == [(8, 61 * 576 * 2 * 32768)] == [(8, 2302672896)]
    assert plan.cache.stored_bytes == 8 * 2302672896


def test_groups_of_ranks_with_sequences_of_their_own_hold_them_once():
    """Eight groups of one rank, nine sequences: two on the first, one on each other."""
    plan = shared("deepseek-v3", Split(tensor=8, attention_data=8), batch=9)
    assert per_device(plan) == [(1, 2 * 2302672896), (7, 2302672896)]
    assert plan.cache.stored_bytes == 9 * 2302672896 == plan.cache.needed_bytes
    assert plan.cache.stored_bytes_per_device == 2 * 2302672896


def test_tokens_are_dealt_among_ranks_that_would_hold_copies():
    """32,770 tokens over 8 ranks: two have 4,097, six 4,096."""
    plan = shared("deepseek-v3", Split(tensor=8, context=8), ctx=32770)
    row = 61 * 576 * 2
    assert per_device(plan) == [(2, 4097 * row), (6, 4096 * row)]
    assert plan.cache.stored_bytes == plan.cache.needed_bytes
    # Llama-3.1-8B at tp 16 has two copies of each head
    assert per_device(shared("llama3.1-8b", Split(tensor=16, context=2))) == [(16, GIB // 4)]


def test_vllm_pages_under_context_parallelism():
    """vLLM's block of 16 then spans 16 x c tokens: 1,000 tokens over 2 ranks are 500 each, 32 blocks of 16."""
    plan = shared("llama3.1-8b", Split(tensor=16, context=2), "vllm", ctx=1000)
    assert per_device(plan) == [(16, 32 * 16 * 32 * 2 * 128 * 2)]


@pytest.mark.parametrize(
    ("rule", "layers", "stages", "counts"),
    [
        # vLLM: extra layers go to the stages before the last, from the back
        (more_in_middle, 61, 4, (15, 15, 16, 15)),
        (more_in_middle, 61, 2, (31, 30)),
        (more_in_middle, 62, 4, (15, 16, 16, 15)),
        (more_in_middle, 63, 4, (16, 16, 16, 15)),
        # SGLang: to the last ones
        (more_in_last, 61, 4, (15, 15, 15, 16)),
        (more_in_last, 94, 4, (23, 23, 24, 24)),
        # TensorRT-LLM: to the first ones
        (more_in_first, 61, 4, (16, 15, 15, 15)),
        # llama.cpp: the output is one more layer, on the last device
        (by_equal_memory, 32, 2, (17, 15)),
        (by_equal_memory, 80, 4, (21, 20, 20, 19)),
    ],
)
def test_layers_of_stages(rule, layers, stages, counts):
    assert rule(layers, stages) == counts
    assert sum(counts) == layers


def test_the_fullest_stage_decides():
    """DeepSeek-V3's 61 layers in two stages of SGLang: 30 and 31."""
    plan = shared("deepseek-v3", Split(tensor=8, pipeline=2, attention_data=8), "sglang", ctx=4096, batch=8)
    assert [each.layers for each in plan.shared.on_devices] == [30, 31]
    assert plan.cache.stored_bytes_per_device == 31 * 576 * 2 * (4096 + 1)  # a page of one token to spare
    assert plan.shared.fullest.layers == 31


def test_mamba2_groups_are_copied_where_they_do_not_divide():
    """Nemotron-3-Nano-30B: 64 heads of 64, 8 groups, state 128, conv 4, 2 KV heads of 128. At tp 2 a rank has 32 heads and 4
    groups: 2,048 + 2 x 4 x 128 channels; at tp 32, two heads and one whole group: 128 + 2 x 128."""
    for tp, channels in ((1, 64 * 64 + 2 * 8 * 128), (2, 2048 + 1024), (8, 512 + 256), (32, 128 + 256)):
        plan = shared("nemotron-3-nano-30b-a3b", Split(tensor=tp), ctx=1000) if tp > 1 else None
        (recurrent,) = [r for g in resolve("nemotron-3-nano-30b-a3b").groups for r in g.records if r.kind == "linear_attention"]
        rank = recurrent.of_rank(tp)
        assert (rank.conv_channels, rank.state_elements) == (channels, 64 * 64 * 128 // tp)
        if plan:
            states = 23 * (channels * 3 * 2 + 64 * 64 * 128 // tp * 4)
            attention = 6 * max(1, 2 // tp) * 2 * 128 * 2 * 1000
            assert per_device(plan) == [(tp, states + attention)]


def test_gemma_at_full_length_under_llama_cpp():
    """Gemma-3-27B, 131,072 tokens, 62 layers of 16 heads of 128 in f16: 62 GiB with --swa-full; 10 full layers and
    52 of 1,536 cells (1,024 + 512) without."""
    row = 2 * 16 * 128 * 2
    full = shared("gemma3-27b", Split(), "llama.cpp", ctx=131072, swa_full=True)
    assert full.cache.stored_bytes == 62 * GIB == 62 * 131072 * row
    windowed = shared("gemma3-27b", Split(), "llama.cpp", ctx=131072)
    assert windowed.cache.stored_bytes == (10 * 131072 + 52 * 1536) * row


SPLITS = (Split(tensor=2), Split(tensor=8), Split(tensor=64), Split(pipeline=2), Split(tensor=4, pipeline=3), Split(tensor=2, data=3))


@pytest.mark.parametrize("engine", ["ideal", "vllm", "sglang", "trtllm", "llama.cpp"])
def test_devices_hold_at_least_what_one_would(engine):
    """Over all presets and splits: at least as much as unsharded, as much exactly where nothing is held twice."""
    answered = 0
    for name in presets.names():
        spec = resolve(name)
        try:
            one = build(PlanRequest(spec, Workload(5000, 3), policy(engine)))
        except KvcliError:
            continue
        for split in SPLITS:
            try:
                plan = build(PlanRequest(spec, Workload(5000, 3), policy(engine), split=split))
            except (BadInput, NotModelled) as error:
                assert error.message
                continue
            answered += 1
            held = one.cache.needed_bytes + one.cache.state_bytes
            copies = dict(plan.cache.causes).get(COPIES, 0)
            everywhere = sum(each.devices * each.stored_bytes for each in plan.shared.on_devices)
            assert everywhere + (plan.shared.host.stored_bytes if plan.shared.host else 0) == plan.cache.stored_bytes
            assert sum(row.stored_bytes for row in plan.cache.rows) == plan.cache.stored_bytes
            assert sum(size for _, size in plan.cache.causes) == plan.cache.stored_bytes - held
            assert copies == sum(size for _, size in plan.shared.cache_copies)
            if engine == "ideal":
                assert plan.cache.stored_bytes == held + copies
                assert copies >= 0
                assert (plan.cache.stored_bytes == one.cache.stored_bytes) == (copies == 0)
            _check_weights(one, plan)
    assert answered > 100


def _check_weights(one, plan):
    """Weights over all devices are the model and its copies; no device holds less than its even share."""
    everywhere = sum(each.devices * each.weights_bytes for each in plan.shared.places)
    copies = sum(size for _, size in plan.shared.weight_copies)
    assert everywhere == one.weights.resident_bytes + copies
    assert copies >= 0
    if plan.shared.host is None:
        assert plan.resident_bytes_per_device * plan.shared.split.devices >= one.weights.resident_bytes
    read = sum(each.weights_read_bytes for each in plan.shared.chain)
    assert read * plan.shared.split.tensor + (plan.shared.host.weights_read_bytes if plan.shared.host else 0) >= (
        one.weights.read_bytes_per_step
    )
