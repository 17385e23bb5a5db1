"""Speculative decoding: draft weights, their cache once, states to go back to; against printed logs and published counts."""

import json
from fractions import Fraction

import pytest

from kvcli.dtypes import parse_kv
from kvcli.errors import BadInput, NotModelled
from kvcli.hardware.match import find
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.split import Split
from kvcli.plan.speculative import joined, prediction_model, speculate
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload

GIB, MIB = 2**30, 2**20


def drafted(name, tokens, engine="ideal", what=None, ctx=32768, batch=1, split=None, device=None, kv=None, **options):
    spec = resolve(name)
    chosen = {} if what is None else {"ngram": True} if what == "ngram" else {"draft": resolve(what)}
    request = PlanRequest(
        spec,
        Workload(ctx, batch),
        policy(engine, EngineOptions(drafted=tokens, **options)),
        kv=None if kv is None else parse_kv(kv),
        device=None if device is None else find(device),
        speculation=speculate(spec, tokens, **chosen),
    )
    return build(request if split is None else request._replace(split=split))


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # what the hub counts in the files of each, prediction blocks included
        ("deepseek-v3", 684.5),
        ("glm-4.5", 358.3),
        ("glm-4.5-air", 110.5),
        ("mimo-7b", 7.833),
    ],
)
def test_published_files_hold_model_and_blocks(name, billions):
    spec = resolve(name)
    total = spec.parameters + prediction_model(spec, None).parameters
    assert total / 1e9 == pytest.approx(billions, abs=0.05 if billions > 10 else 0.0005)


def test_the_block_of_deepseek_v3():
    """13.5 B parameters: a layer with 256 experts, a 2H x H projection, norms, and copies of both tables; one latent row a token."""
    plan = drafted("deepseek-v3", 1)
    assert round(plan.draft.speculation.drafter.parameters / 1e9, 1) == 13.5
    assert plan.draft.stored_bytes == 576 * 2 * 32768
    # one pass reads 8 of 256 experts, everything else but the input table, and the row of each token
    hidden, scales = 7168, 128 * 128
    attention = hidden * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * hidden
    fp8 = attention + 9 * 3 * hidden * 2048
    bf16 = 256 * hidden + 2 * hidden + 1536 + 512 + 2 * hidden * hidden + 3 * hidden + 129280 * hidden
    read = fp8 + 2 * bf16 + 576 * 2 * 32768
    assert plan.draft.read_bytes_per_draft == pytest.approx(read + 4 * fp8 / scales, rel=1e-5)
    assert plan.total_bytes == plan.weights.resident_bytes + plan.cache.stored_bytes + plan.draft.total_bytes


def test_the_cache_of_a_drafter_is_kept_once():
    """However many tokens it drafts: Llama-3.2-1B has 16 layers of 8 heads of 64."""
    for tokens in (1, 5, 16):
        plan = drafted("llama3.1-70b", tokens, what="llama3.2-1b", batch=3)
        assert plan.draft.stored_bytes == 3 * 16 * 2 * 8 * 64 * 2 * 32768
        assert plan.cache.stored_bytes == plan.cache.needed_bytes
        assert plan.draft.weights_bytes == resolve("llama3.2-1b").parameters * 2


def test_a_log_of_vllm_with_one_drafted_token():
    """Qwen3.5-122B-A10B with MTP, fp8 cache, 24.05 GiB: "482,080 tokens", concurrency 6.42 at 262,144 tokens.

    The MTP layer joins the 12 full layers: four groups of 13 layers of 4,292,608 B a page of 4,192 tokens, 462 block ids; a request
    has ceil(262144 / 4192) = 63 and three groups of 2 + 1 states.
    """
    spec = resolve("qwen3.5-122b-a10b")
    both = joined(spec, prediction_model(spec, None))
    engine = policy("vllm", EngineOptions(drafted=1))
    request = engine.admission_bytes(both, Workload(262144), parse_kv("fp8"))
    ids = 63 + 3 * 3
    block = Fraction(request, ids)
    assert block == 13 * 4292608
    blocks = int(Fraction("24.05") * GIB / block)
    assert blocks // 4 * 4192 == 482080
    assert f"{blocks / ids:.2f}" == "6.42"
    # a plan holds, between steps, one state and one to go back to
    plan = drafted("qwen3.5-122b-a10b", 1, "vllm", ctx=262144, kv="fp8")
    assert plan.cache.stored_bytes + plan.draft.stored_bytes == (63 + 3 * 2) * 13 * 4292608


def test_logs_of_llama_cpp():
    """Qwen3.5-27B with MTP: 7 state copies, "1047.38 MiB"; the draft's own context "1024.00 MiB" at 262,144 tokens in f16."""
    plan = drafted("qwen3.5-27b", 6, "llama.cpp", ctx=262144)
    states = sum(row.stored_bytes for row in plan.cache.rows if row.kind == "linear_attention")
    assert abs(Fraction(states, MIB) - Fraction("1047.38")) <= Fraction(1, 200)
    assert plan.draft.stored_bytes == 1024 * MIB
    assert dict(plan.cache.causes)["states to roll back to"] == 6 * Fraction(states, 7)


def test_logs_of_sglang():
    """Qwen3.5-27B with MTP: a draft pool of the target's 171,008 tokens, "K size: 0.33 GB". The pool of states after each drafted
    token has (running requests + 1) x (drafted + 1) of them: a log with 49 states in 2.58 GB has 1.05 GB of 5 x 4."""
    plan = drafted("qwen3.5-27b", 3, "sglang", ctx=171008)
    assert f"{plan.draft.stored_bytes / 2 / GIB:.2f}" == "0.33"
    state = sum(row.state_bytes for row in plan.cache.rows)
    assert dict(plan.cache.causes)["states of drafted tokens"] == 2 * 4 * state
    assert abs(2.58 * 5 * 4 / 49 - 1.05) < 0.006


def test_drafted_tokens_have_slots():
    """vLLM at 4,096 tokens: 256 blocks of 16 are full, so one drafted token takes another block in each layer."""
    more = [drafted("llama3.1-8b", n, "vllm", what="ngram", ctx=4096).cache for n in (1, 16, 17)]
    row = 2 * 8 * 128 * 2 * 32
    assert [cache.stored_bytes for cache in more] == [4112 * row, 4112 * row, 4128 * row]
    assert dict(more[0].causes) == {"slots and states of drafted tokens": 16 * row}
    for engine in ("ideal", "transformers", "llama.cpp"):
        plan = drafted("llama3.1-8b", 8, engine, what="ngram", ctx=4096)
        assert (plan.draft.total_bytes, plan.cache.stored_bytes) == (0, 4096 * row)


@pytest.mark.parametrize("engine", ["ideal", "vllm", "sglang", "trtllm", "llama.cpp", "transformers"])
@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3.5-27b", "glm-4.5", "llama3.1-8b", "gemma3-27b", "deepseek-v4-flash"])
def test_causes_sum_with_drafts(name, engine):
    try:
        plan = drafted(name, 5, engine, what=None if resolve(name).mtp else "ngram", ctx=5000, batch=3)
    except NotModelled as error:
        assert (name, engine) in {
            ("qwen3.5-27b", "trtllm"),
            ("deepseek-v4-flash", "vllm"),
            ("deepseek-v4-flash", "sglang"),
            ("deepseek-v4-flash", "trtllm"),
        }, error
        return
    cache = plan.cache
    assert sum(size for _, size in cache.causes) == cache.stored_bytes - cache.needed_bytes - cache.state_bytes
    assert all(size >= 0 for cause, size in cache.causes if "draft" in cause)


def test_a_step_emits_at_most_one_token_more_than_were_drafted():
    plain, spec = build_plain("llama3.1-70b"), drafted("llama3.1-70b", 4, what="llama3.2-1b", device="h200-sxm")
    assert spec.latency.tokens_per_step == 5
    # the step itself is not shorter, and something drafted: at least one pass of the drafter
    assert spec.latency.decode.seconds > plain.latency.decode.seconds
    items = {line.item: line.amount for line in spec.latency.ledger}
    assert items["draft_read"] == spec.draft.read_bytes_per_draft
    assert items["decode_flops"] == 5 * {line.item: line.amount for line in plain.latency.ledger}["decode_flops"]
    assert [line.item for line in spec.memory.ledger] == ["weights", "kv_cache", "draft_weights", "draft_kv_cache"]


def build_plain(name):
    return build(PlanRequest(resolve(name), Workload(32768), policy("ideal"), device=find("h200-sxm")))


def test_devices_of_the_last_stage_keep_the_drafter():
    """Tensor ranks share its heads: Llama-3.2-1B has 8 KV heads, so each of 8 has one; earlier stages have none of it."""
    plan = drafted("llama3.1-70b", 4, what="llama3.2-1b", split=Split(tensor=8, pipeline=2))
    alone = build(PlanRequest(resolve("llama3.1-70b"), Workload(32768), policy("ideal"), split=Split(tensor=8, pipeline=2)))
    (first, last), (first_alone, last_alone) = plan.shared.on_devices, alone.shared.on_devices
    assert first == first_alone
    assert last._replace(draft=last_alone.draft) == last_alone
    assert last.draft.stored == 16 * 2 * 64 * 2 * 32768
    assert plan.draft.stored_bytes == 8 * 16 * 2 * 64 * 2 * 32768
    drafter = build(PlanRequest(resolve("llama3.2-1b"), Workload(32768), policy("ideal"), split=Split(tensor=8)))
    assert last.draft.weights == drafter.resident_bytes_per_device
    assert last.total_bytes - last_alone.total_bytes == last.draft.weights + last.draft.stored
    assert plan.total_bytes - alone.total_bytes == plan.draft.total_bytes


def test_a_prediction_block_on_latent_ranks():
    """DeepSeek-V3 at tp 8: the block's latent row is whole on each rank, its experts divided."""
    plan = drafted("deepseek-v3", 1, split=Split(tensor=8))
    assert plan.draft.stored_bytes == 8 * 576 * 2 * 32768
    one = drafted("deepseek-v3", 1)
    # the projection that joins state and word is whole on each rank, as are router, norms and latent down-projections
    whole = 2 * (2 * 7168 * 7168 + 256 * 7168 + 6 * 7168) + 7168 * (1536 + 576)
    assert plan.draft.weights_bytes - one.draft.weights_bytes == pytest.approx(7 * whole, rel=1e-3)


def test_refusals():
    with pytest.raises(BadInput) as caught:
        drafted("llama3.1-8b", 4)
    assert "no prediction blocks" in caught.value.message
    assert "ngram" in caught.value.hint
    with pytest.raises(BadInput):
        speculate(resolve("deepseek-v3"), 4, blocks=2)
    with pytest.raises(BadInput):
        speculate(resolve("deepseek-v3"), 5000)
    with pytest.raises(BadInput):
        speculate(resolve("llama3.1-8b"), 4, draft=resolve("whisper-large-v3"))
    with pytest.raises(NotModelled):
        policy("kvcli", EngineOptions(drafted=4))
    with pytest.raises(NotModelled):  # draft model beside windows in vLLM's pool
        drafted("gemma3-27b", 4, "vllm", what="gemma3-1b")


def test_through_the_command_line(kvcli):
    answer = kvcli("plan", "deepseek-v3", "--speculative", "2", "--ctx", "32k", "--device", "h200-sxm", "--devices", "8", "--json")
    assert answer.code == 0, answer.err
    plan = json.loads(answer.out)
    speculative = plan["speculative"]
    assert (speculative["kind"], speculative["drafted_tokens"], speculative["tokens_per_step_at_most"]) == ("prediction_blocks", 2, 3)
    assert speculative["read_bytes_per_step"] == 2 * speculative["read_bytes_per_draft"]
    assert plan["memory"]["total_bytes"] == max(rank["total_bytes"] for rank in plan["parallel"]["ranks"])
    ceiling, step = plan["latency"]["decode_tokens_per_s_ceiling"], plan["latency"]["decode_step_floor_s"]
    assert ceiling == pytest.approx(3 / step)
    human = kvcli("plan", "llama3.1-70b", "--speculative", "5:llama3.2-1b", "--ctx", "4k")
    assert "drafter (llama3.2-1b), 5 a step" in human.out
    text = kvcli("plan", "llama3.1-8b", "--speculative", "4:ngram", "--ctx", "4k", "--json")
    assert json.loads(text.out)["speculative"]["kind"] == "ngram"
    for wrong in ("x", "0", "4:", "4:nosuchmodel", "4:2"):
        answer = kvcli("plan", "llama3.1-8b", "--speculative", wrong, "--ctx", "4k")
        assert answer.code == 2, wrong
        assert answer.out == ""
