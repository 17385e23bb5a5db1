"""The memory budget: lines that sum, ranges that name their source, the verdict, engines' rules, the host."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from kvcli.errors import BadInput, NotModelled
from kvcli.hardware.match import find
from kvcli.model.resolve import resolve
from kvcli.plan.budget.options import BudgetOptions, Lora, parse_lora, parse_share
from kvcli.plan.budget.overheads import Pass, activation_bytes, activations_at_most_bytes, ggml_bytes, logits_bytes
from kvcli.plan.budget.reserve import Defaults, defaults, sglang_fraction, vllm_pool_bytes
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.offload import Offload
from kvcli.plan.sharing.split import ALONE, Split
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload
from kvcli.units import parse_size

GIB, MIB = 2**30, 2**20
NOTHING = BudgetOptions(activations_bytes=0, graphs_bytes=0, reserve_bytes=0)


def memory(name, engine="ideal", device="h100-sxm5-80", ctx=8192, batch=1, budget=None, split=ALONE, offload=None, **options):
    part = find(device) if isinstance(device, str) else device
    rule = policy(engine, EngineOptions(**options))
    return build(PlanRequest(resolve(name), Workload(ctx, batch), rule, device=part, split=split, offload=offload, budget=budget)).memory


def lines(plan):
    return {line.item: int(line.amount) for line in plan.ledger} | {each.line.item: each.low_bytes for each in plan.needs}


@pytest.mark.parametrize("engine", ["ideal", "kvcli", "transformers", "vllm", "sglang", "trtllm", "llama.cpp", "ollama"])
@pytest.mark.parametrize("name", ["llama3.1-8b", "gemma3-27b", "qwen3-next-80b-a3b", "deepseek-v3"])
def test_lines_sum_and_ranges_name_their_source(name, engine):
    try:
        plan = memory(name, engine, "b300")
    except NotModelled as error:
        assert engine in ("kvcli", "trtllm"), error
        return
    assert sum(lines(plan).values()) == plan.total_bytes
    assert plan.total_bytes <= plan.high_bytes
    assert plan.high_bytes - plan.total_bytes == sum(each.high_bytes - each.low_bytes for each in plan.needs)
    for each in plan.needs:
        assert 0 <= each.low_bytes <= each.high_bytes
        assert each.low_bytes == each.high_bytes or each.line.source or each.line.item == "logits", each
    assert plan.contents_bytes == sum(int(line.amount) for line in plan.ledger)


def test_the_ideal_engine_is_certain_of_weights_and_cache_alone():
    plan = memory("llama3-8b", ctx=32768)
    assert plan.total_bytes == 16_060_522_496 + 4 * GIB
    assert plan.headroom_bytes == find("h100-sxm5-80").usable_bytes - plan.total_bytes
    assert all(each.low_bytes == 0 for each in plan.needs)


def test_states_have_a_line_of_their_own():
    """Qwen3.5-27B: 48 layers of states in float32, convolutions in bf16; 146.8 MiB a sequence."""
    found = lines(memory("qwen3.5-27b", ctx=32768, batch=2))
    assert found["recurrent_state"] == 2 * 153_944_064
    assert found["kv_cache"] == 2 * 2 * GIB
    assert "recurrent_state" not in lines(memory("llama3-8b"))


def test_the_three_verdicts():
    """Weights 14.958 GiB and 1 GiB of cache; overheads of 0 to 14.1 GiB."""

    def on(gib):
        return memory("llama3-8b", device=replace(find("h100-sxm5-80"), usable_bytes=int(gib * GIB)))

    known = on(79).high_bytes
    assert on(79).verdict == "fits"
    tight = on(20)
    assert (tight.verdict, tight.fits) == ("fits_if", True)
    assert tight.overheads_at_most_bytes == 20 * GIB - 16_060_522_496 - GIB
    assert (on(15).verdict, on(15).fits) == ("does_not_fit", False)
    exact = replace(find("h100-sxm5-80"), usable_bytes=known)
    assert memory("llama3-8b", device=exact).verdict == "fits"
    assert memory("llama3-8b", device=replace(exact, usable_bytes=known - 1)).verdict == "fits_if"
    least = replace(exact, usable_bytes=16_060_522_496 + GIB)
    assert memory("llama3-8b", device=least).verdict == "fits_if"
    assert memory("llama3-8b", device=replace(least, usable_bytes=least.usable_bytes - 1)).verdict == "does_not_fit"


def test_values_of_the_user_take_the_place_of_ranges():
    said = BudgetOptions(activations_bytes=2 * GIB, graphs_bytes=0, reserve_bytes=GIB)
    plan = memory("llama3-8b", "vllm", budget=said, ctx=32768)
    assert plan.total_bytes == plan.high_bytes
    assert lines(plan) == {
        "weights": 16_060_522_496,
        "kv_cache": 4 * GIB,
        "activations": 2 * GIB,
        "cuda_graphs": 0,
        "reserve": GIB,
        "engine_reserve": plan.usable_bytes - plan.usable_bytes * 92 // 100,
    }
    assert {each.line.basis.value for each in plan.needs} == {"user", "engine rule"}


def test_a_cache_fits_as_long_as_the_pool_has_blocks():
    """On both sides: the longest context that fits is the pool's, for models whose stored bytes are what they are admitted with."""
    for engine, block in (("vllm", 16), ("trtllm", 32)):
        device = replace(find("rtx4090"), usable_bytes=20 * GIB)
        pool = memory("llama3-8b", engine, device, budget=NOTHING).pool
        assert pool.exact
        longest = pool.most.blocks * block
        assert memory("llama3-8b", engine, device, ctx=longest, budget=NOTHING).fits
        assert not memory("llama3-8b", engine, device, ctx=longest + 1, budget=NOTHING).fits
    share = Fraction("0.92") * 20 * GIB - 16_060_522_496
    assert memory("llama3-8b", "vllm", device, budget=NOTHING).pool.most.blocks == share // (16 * 131072)


def test_one_request_must_be_admitted():
    """Windows and states take more while a prompt is computed: vLLM starts only if the pool has room for that, and so does the verdict."""
    for name in ("gemma3-27b", "qwen3-next-80b-a3b"):
        plan = memory(name, "vllm", "b300", ctx=32768, budget=NOTHING)
        held = plan.total_bytes - lines(plan)["engine_reserve"]
        for more, fits in ((MIB, True), (-MIB, False)):
            device = replace(find("b300"), usable_bytes=int((held + more) / Fraction("0.92")))
            again = memory(name, "vllm", device, ctx=32768, budget=NOTHING)
            assert again.fits == fits
            assert (again.pool.most.concurrency >= 1) == fits
        assert lines(plan)["admission"] > 0
    assert "admission" not in lines(memory("llama3-8b", "vllm"))
    # many sequences hold more than one takes to be admitted
    assert "admission" not in lines(memory("gemma3-27b", "vllm", "b300", ctx=32768, batch=16))


@pytest.mark.parametrize("engine", ["ideal", "vllm", "sglang", "trtllm", "llama.cpp"])
def test_more_of_anything_never_fits_better(engine):
    order = ["fits", "fits_if", "does_not_fit"]
    found = [order.index(memory("llama3.1-8b", engine, "rtx4090", ctx=2**power).verdict) for power in range(8, 18)]
    assert found == sorted(found)
    assert found[-1] == 2
    totals = [memory("llama3.1-8b", engine, "rtx4090", batch=batch).total_bytes for batch in range(1, 9)]
    assert totals == sorted(totals)


def test_a_pool_without_room_is_empty():
    pool = memory("llama3.1-70b", "vllm", "rtx4090").pool
    assert (pool.most.blocks, pool.most.tokens, pool.bytes) == (0, 0, (0, 0))
    assert pool.most.concurrency == 0


def test_vllm_defaults_by_device():
    """At least 70 GiB and not an A100: 8,192 tokens and 1,024 sequences; others 2,048 and 256, a GB10 too."""
    large, small = Defaults(8192, 1024), Defaults(2048, 256)
    for name in ("h100-sxm5-80", "h200-sxm", "b300", "mi300x", "rtxpro6000-server"):
        assert defaults("vllm", find(name), ALONE) == large
    for name in ("a100-sxm4-80", "rtx4090", "l40s", "gb10"):
        assert defaults("vllm", find(name), ALONE) == small


def test_the_utilisation_of_each_version():
    new, old = (memory("llama3-8b", "vllm", budget=NOTHING, version=version) for version in (None, "0.9"))
    assert [round(lines(plan)["engine_reserve"] / plan.usable_bytes, 3) for plan in (new, old)] == [0.08, 0.1]
    said = NOTHING._replace(utilization=Fraction("0.5"))
    assert abs(lines(memory("llama3-8b", "vllm", budget=said))["engine_reserve"] - new.usable_bytes / 2) <= 1


def test_graphs_are_in_the_budget_of_newer_versions():
    """A log on two 3090s of 23.68 GiB: with 0.36 GiB of graphs 0.82 is worth 0.8048 without, since 0.21; before it nothing was taken."""
    total, graphs = int(23.68 * GIB), int(0.36 * GIB)
    counted = vllm_pool_bytes(total, Fraction("0.82"), 0, 0, 0, graphs)
    assert abs(counted - vllm_pool_bytes(total, Fraction("0.8048"), 0, 0, 0)) <= 0.005 * GIB
    for version, less in ((None, GIB), ("0.9", 0)):
        pools = [
            memory("llama3-8b", "vllm", budget=NOTHING._replace(graphs_bytes=size), version=version).pool.most.blocks for size in (0, GIB)
        ]
        assert abs(pools[0] - pools[1] - less // (16 * 131072)) <= 1


def test_the_fraction_of_sglang():
    """Servers of its documentation print mem_fraction_static=0.835 with chunked_prefill_size=8192 on one H100."""
    assert sglang_fraction(find("h100-sxm5-80"), ALONE) == Fraction("0.835")
    assert defaults("sglang", find("h100-sxm5-80"), ALONE).chunk_tokens == 8192
    # by hand: 24,564 MiB; 512 + 2048 x 1.5 + 24 x 2 + 128 set aside
    assert sglang_fraction(find("rtx4090"), ALONE) == round(Fraction(24564 - 3760, 24564), 3)
    # 8 of them: graphs of 80, and 1 GiB for the parallel size
    assert sglang_fraction(find("rtx4090"), Split(tensor=8)) == round(Fraction(24564 - 512 - 3072 - 160 - 1024, 24564), 3)
    # at least 10 GiB where there are more than 60; prediction blocks 2 GiB, a draft model 6
    assert sglang_fraction(find("h100-sxm5-80"), ALONE, "blocks") == round(Fraction(81559 - 13440 - 2048, 81559), 3)
    assert sglang_fraction(find("h100-sxm5-80"), ALONE, "model") == round(Fraction(81559 - 13440 - 6144, 81559), 3)
    assert sglang_fraction(find("h100-sxm5-80"), ALONE, "ngram") == Fraction("0.835")


def test_the_reserve_of_sglang_holds_its_activations():
    """What is set aside is for activations and graphs: they add nothing while they find room in it."""
    small = memory("llama3-8b", "sglang", budget=BudgetOptions(activations_bytes=2 * GIB, graphs_bytes=GIB, reserve_bytes=0))
    none = memory("llama3-8b", "sglang", budget=NOTHING)
    assert small.total_bytes == none.total_bytes
    much = memory("llama3-8b", "sglang", budget=BudgetOptions(activations_bytes=20 * GIB, graphs_bytes=0, reserve_bytes=0))
    kept = lines(none)["engine_reserve"]
    assert much.total_bytes - none.total_bytes == 20 * GIB - kept


def test_pools_of_sglang():
    """Hybrids: states take 0.9 / 1.9 of the memory. Windows: 0.8 as many tokens as full layers."""
    pool = memory("qwen3.5-27b", "sglang", "b300", budget=BudgetOptions(kv_memory_bytes=19 * GIB)).pool.most
    state = 153_944_064
    assert pool.state_slots == 9 * GIB // state
    assert pool.tokens == (19 * GIB - pool.state_slots * state) // 65536
    pool = memory("gpt-oss-20b", "sglang", "b300", budget=BudgetOptions(kv_memory_bytes=10 * GIB)).pool.most
    row = 12 * 8 * 64 * 2 * 2
    assert pool.tokens == int(10 * GIB / (row + Fraction("0.8") * row))
    assert pool.window_tokens == int(pool.tokens * Fraction("0.8"))


def test_llama_cpp_leaves_a_gibibyte_and_has_buffers_by_device():
    plan = memory("llama3-8b", "llama.cpp", "rtx4090", ctx=16384, split=Split(pipeline=2), parallel=2, batch=2)
    assert lines(plan)["engine_reserve"] == GIB
    pool = plan.pool
    # 33 layers with the output: 17 on the first device
    assert pool.buffers_bytes == tuple(layers * 2 * 16384 * 8 * 128 * 2 * 2 for layers in (17, 15))
    assert (pool.most.tokens, pool.most.concurrency) == (32768, 2)


def test_the_compute_buffer_of_llama_cpp():
    """ "CUDA0 compute buffer size = 258.50 MiB" is what logs of Llama-3-8B print: logits of a batch of 512 and its hidden states."""
    work = Pass(512, 1)
    printed = int(258.5 * MIB)
    assert printed == 512 * (128256 + 4096) * 4
    spec = resolve("llama3-8b")
    assert activation_bytes(spec, work) <= printed <= ggml_bytes(spec, work, 8192)


def test_the_ends_of_activations_are_around_every_printed_peak():
    """Llama-3.1-8B: 2.99 GiB with prompts of 29,000 tokens (K245), 9.37 of 131,072 (K170), vLLM 0.6, whole prompts at once."""
    spec = resolve("llama3.1-8b")
    for tokens, peak in ((29000, 2.99), (131072, 9.37)):
        low = activation_bytes(spec, Pass(tokens, 256))
        assert peak / 3 * GIB < low < peak * GIB
        high, source = activations_at_most_bytes(spec, Pass(tokens, 256))
        assert peak * GIB < high < peak * 1.5 * GIB
        assert "width" in source
    # nothing is known of towers and latents but the largest peak
    assert activations_at_most_bytes(resolve("deepseek-v3"), Pass(2048, 256))[0] >= int(9.37 * GIB)
    # one layer's MLP: two rows of 14,336 at least three quarters of which are counted, beside the hidden state
    assert activation_bytes(spec, Pass(1, 1)) == 2 * (4096 + 3 * 14336 // 2)
    assert activation_bytes(spec, Pass(1, 1, ranks=8)) == 2 * (4096 + 3 * 14336 // 16)


def test_logits_reuse_the_memory_of_activations():
    plan = memory("llama3.1-8b", "vllm")
    spec, work = resolve("llama3.1-8b"), Pass(8192, 1024)
    found = lines(plan)
    assert found["activations"] + found["logits"] == max(activation_bytes(spec, work), logits_bytes(spec, work))
    assert logits_bytes(spec, work) == 1024 * 128256 * 4
    fewer = memory("llama3.1-8b", "vllm", budget=BudgetOptions(sequences=16))
    assert max(each.high_bytes for each in fewer.needs if each.line.item == "logits") == 16 * 128256 * 4


def test_adapters():
    """Rank 16 on all matrices of Llama-3-8B is 41,943,040 parameters, as PEFT prints them."""
    one = lines(memory("llama3-8b", budget=BudgetOptions(lora=Lora(1, 16))))["lora_slots"]
    assert one == 2 * 41_943_040
    assert lines(memory("llama3-8b", budget=BudgetOptions(lora=Lora(4, 32))))["lora_slots"] == 8 * one
    shared = lines(memory("llama3-8b", "vllm", budget=BudgetOptions(lora=Lora(1, 16)), split=Split(tensor=4)))["lora_slots"]
    # q, k, v, gate, up: inputs whole, outputs shared; o, down: the other way
    rows = 5 * 4096 + (4096 + 1024 + 1024 + 2 * 14336) // 4 + (4096 + 14336) // 4 + 2 * 4096
    assert shared == 2 * 16 * 32 * rows
    with pytest.raises(NotModelled):
        memory("mixtral-8x7b", budget=BudgetOptions(lora=Lora(1, 16)))


def test_an_encoder_cache():
    assert lines(memory("qwen2.5-7b", "vllm", budget=BudgetOptions(encoder_cache_tokens=8192)))["encoder_cache"] == 8192 * 3584 * 2


def test_the_host_is_a_second_budget():
    def on(host_gib, cache_ram=None):
        said = BudgetOptions(host_bytes=host_gib * GIB, cache_ram_bytes=cache_ram)
        return memory("qwen3-30b-a3b", "llama.cpp", "rtx4090", offload=Offload(None, 48), budget=said)

    plan = on(128)
    assert {each.line.item for each in plan.host.needs} == {"weights", "prompt_cache"}
    assert plan.host.high_bytes - plan.host.low_bytes == 8192 * MIB
    assert plan.verdict == "fits"
    held = plan.host.low_bytes
    assert on(held // GIB + 1).verdict == "fits_if"
    assert on(held // GIB + 1, cache_ram=0).verdict == "fits"
    small = on(held // GIB)
    assert (small.verdict, small.fits, small.host.fits) == ("does_not_fit", False, False)
    assert small.headroom_bytes > 0
    assert memory("llama3-8b").host is None
    tier = memory("llama3-8b", "vllm", budget=BudgetOptions(cache_ram_bytes=GIB)).host
    assert (tier.low_bytes, tier.fits) == (GIB, None)


def test_a_pool_of_given_size():
    plan = memory("llama3-8b", "vllm", ctx=32768, budget=NOTHING._replace(kv_memory_bytes=6 * GIB))
    assert lines(plan)["kv_pool_free"] == 2 * GIB
    assert "engine_reserve" not in lines(plan)
    assert (plan.pool.most.tokens, plan.pool.most.concurrency) == (49152, Fraction(3, 2))
    small = memory("llama3-8b", "vllm", ctx=32768, budget=NOTHING._replace(kv_memory_bytes=3 * GIB))
    assert (small.fits, small.headroom_bytes) == (False, -GIB)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 * GIB), ("512 MiB", 512 * MIB), ("24.05GiB", int(Fraction("24.05") * GIB)), ("80GB", 80 * 10**9), ("0", 0), ("7b", 7)],
)
def test_sizes(text, size):
    assert parse_size(text, "--graphs", zero=True) == size


@pytest.mark.parametrize("text", ["2", "two GiB", "", "-1GiB", "1e3GiB", "2Gi", "9" * 40 + "GiB", "1.2.3GiB", "²GiB"])
def test_no_sizes(text):
    with pytest.raises(BadInput) as caught:
        parse_size(text, "--graphs")
    assert "GiB" in caught.value.hint


@pytest.mark.parametrize("text", ["0", "1.1", "92%", "-0.5", "", "nan", "0.0"])
def test_no_shares(text):
    with pytest.raises(BadInput):
        parse_share(text, "--utilization")


def test_shares_and_adapters():
    assert [parse_share(text, "--utilization") for text in ("0.9", ".92", "1", "1.0")] == [Fraction(9, 10), Fraction(23, 25), 1, 1]
    assert parse_lora("4:16") == Lora(4, 16)
    for text in ("4", "0:16", "4:0", "a:b", "4:16:2"):
        with pytest.raises(BadInput):
            parse_lora(text)


@pytest.mark.parametrize(
    "options",
    [
        ["--graphs", "2"],
        ["--utilization", "1.5", "--engine", "vllm"],
        ["--utilization", "0.9"],
        ["--kv-memory", "2GiB", "--engine", "llama.cpp"],
        ["--lora", "4"],
    ],
)
def test_refusals_on_the_command_line(kvcli, options):
    answer = kvcli("plan", "llama3-8b", "--ctx", "4k", "--device", "rtx4090", *options)
    assert answer.code == 2
    assert options[0] in answer.err
    assert "Traceback" not in answer.err


def test_a_budget_needs_a_device(kvcli):
    answer = kvcli("plan", "llama3-8b", "--ctx", "4k", "--graphs", "0", "--json")
    assert (answer.code, json.loads(answer.out)["error"]["code"]) == (2, "budget_without_device")


def test_the_document_and_the_views(kvcli):
    options = ["plan", "llama3-8b", "--ctx", "32k", "--engine", "vllm", "--device", "rtx4090"]
    found = json.loads(kvcli(*options, "--json").out)["memory"]
    assert sum(line["bytes"] for line in found["lines"]) == found["total_bytes"]
    assert sum(line["high_bytes"] for line in found["lines"]) == found["high_bytes"]
    assert found["usable_bytes"] - found["total_bytes"] == found["headroom_bytes"]
    assert (found["verdict"], found["fits"]) == ("fits_if", True)
    pool = found["kv_pool"]
    assert {"blocks", "tokens", "max_concurrency"} <= set(pool)
    assert pool["blocks"] > pool["at_least"]["blocks"] > 0
    assert not pool["exact"]
    human = kvcli(*options).out
    assert "fits only if overheads stay under" in human
    assert all(len(line) <= 80 for line in human.splitlines())
    explained = kvcli(*options, "--explain").out
    assert "engine_reserve" in explained
    assert "2,048 tokens x (4,096 + 21,504 elements" in explained
    assert ",fits_if," in kvcli(*options, "--csv").out
