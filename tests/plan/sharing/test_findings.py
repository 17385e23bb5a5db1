"""Splits, offloads and drafts that were once planned wrongly: each case by hand, with the source of the rule."""

import json

import pytest

from kvcli.errors import BadInput, NotModelled
from kvcli.hardware.match import find
from kvcli.model import presets
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.offload import Offload, place
from kvcli.plan.sharing.split import Split
from kvcli.plan.speculative import speculate
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload


def shared(name, split=None, engine="ideal", ctx=4096, batch=1, device=None, offload=None, drafts=None, **more):
    spec = resolve(name)
    tokens, what = drafts or (0, None)
    chosen = {} if what is None else {"ngram": True} if what == "ngram" else {"draft": resolve(what)}
    request = PlanRequest(
        spec,
        Workload(ctx, batch, **more),
        policy(engine, EngineOptions(drafted=tokens)),
        device=find(device) if device else None,
        split=split or Split(),
        offload=offload,
        speculation=speculate(spec, tokens, **chosen) if tokens else None,
    )
    return build(request)


@pytest.mark.parametrize("options", ["--tp 2", "--pp 2", "--ngl 99", "--devices 2"])
def test_drafts_from_the_text_need_no_device(kvcli, options):
    answer = kvcli("plan", "llama3-8b", "--ctx", "1k", "--speculative", "4:ngram", *options.split(), "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["speculative"]["weights_bytes"] == 0


def test_nothing_on_the_device_is_read_in_no_time(kvcli):
    answer = kvcli("plan", "llama3-8b", "--ctx", "1k", "--ngl", "0", "--device", "l4", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["latency"]["decode_step_floor_s"] == 0


def test_a_stage_may_own_no_cache():
    """Nemotron-Super-49B has layers without attention."""
    plan = shared("llama3.3-nemotron-super-49b", Split(pipeline=8), "vllm")
    assert sum(each.devices for each in plan.shared.on_devices) == 8
    held = shared("llama3.3-nemotron-super-49b", Split(pipeline=8), "vllm", device="h100-sxm5-80")
    assert held.memory.pool.most.blocks > 0


@pytest.mark.parametrize("options", ["--dcp 4", "--ngl 5 --dcp 4", "--engine llama.cpp --dcp 2"])
def test_tokens_are_not_dealt_among_one_rank(kvcli, options):
    answer = kvcli("plan", "llama3-8b", "--ctx", "1k", *options.split())
    assert answer.code in (2, 4)
    assert "--dcp" in answer.err


def test_two_files_of_one_name_keep_their_own_blocks_and_lengths(kvcli, tmp_path):
    for folder, name in (("c", "mimo-7b"), ("d", "deepseek-v3")):
        (tmp_path / folder / "m").mkdir(parents=True)
        (tmp_path / folder / "m" / "config.json").write_text(json.dumps(presets.load(name).config))
    files = [str(tmp_path / folder / "m" / "config.json") for folder in ("c", "d")]
    answer = kvcli("plan", *files, "--speculative", "2", "--json")
    assert answer.code == 0, answer.err
    mimo, deepseek = json.loads(answer.out)["plans"]
    assert mimo["speculative"]["parameters"] == 210790400
    assert deepseek["speculative"]["parameters"] > 13e9
    assert mimo["workload"]["context_tokens"] != deepseek["workload"]["context_tokens"]


def test_a_drafters_table_stays_on_the_host_too():
    """llama.cpp looks the drafter's words up on the host as well: Llama-3-8B's table of 128,256 x 4,096."""
    plan, alone = (shared("mixtral-8x7b", engine="llama.cpp", offload=Offload(99), drafts=d) for d in ((4, "llama3-8b"), None))
    table = 2 * 128256 * 4096
    assert plan.draft.weights_bytes == resolve("llama3-8b").parameters * 2
    assert plan.shared.host.total_bytes - alone.shared.host.total_bytes == table
    assert plan.total_bytes - alone.total_bytes == plan.draft.total_bytes


def test_ollama_offloads_like_its_server():
    """Its server is a current llama.cpp: with one layer on the device it is the output."""
    plan = shared("llama3-8b", engine="ollama", offload=Offload(1))
    assert plan.shared.on_devices[0].layers == 0
    assert plan.shared.on_devices[0].weights_bytes == 2 * (128256 * 4096 + 4096)


@pytest.mark.parametrize(
    ("version", "ngl", "devices", "layers", "output"),
    [
        # slot i of n offloaded ones is on device floor(i x devices / n) (`upper_bound` over equal parts)
        ("2025-05", 20, 2, [10, 10], None),
        ("2026-11", 21, 2, [11, 9], 1),
        ("2026-11", 1, 2, [0, 0], 0),
        ("2026-11", 2, 4, [1, 0, 0, 0], 2),
    ],
)
def test_slots_on_several_devices(version, ngl, devices, layers, output):
    spec = resolve("llama3.1-8b")
    engine = policy("llama.cpp", EngineOptions(version=version))
    plan = build(PlanRequest(spec, Workload(1024), engine, split=Split(pipeline=devices), offload=Offload(ngl)))
    assert [each.layers for each in plan.shared.on_devices] == layers
    layer = 2 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
    heads = [each.weights_bytes - each.layers * layer for each in plan.shared.on_devices]
    assert [number for number, size in enumerate(heads) if size] == ([] if output is None else [output])


def test_vllm_deals_blocks_evenly():
    """One block table, of blocks of 16 x dcp tokens: each of 16 ranks holds ceil(129 / 128) = 2 blocks, and one at one token."""
    row = 61 * 576 * 2
    for tokens, blocks in ((129, 2), (1, 1)):
        plan = shared("deepseek-v3", Split(tensor=16, context=8), "vllm", ctx=tokens)
        assert plan.cache.stored_bytes == 16 * blocks * 16 * row
        assert sum(size for _, size in plan.cache.causes) == plan.cache.stored_bytes - plan.cache.needed_bytes


def test_sglang_divides_the_table_as_it_divides_heads():
    """`VocabParallelEmbedding(use_attn_tp_group=...)`: of two groups of two ranks, each rank has half of the words."""
    plan = shared("llama3-8b", Split(tensor=4, attention_data=2), "sglang", batch=2)
    whole = shared("llama3-8b", Split(tensor=4, attention_data=4), "sglang", batch=4)
    heads = 4096 * 4096 * 2 + 2 * 4096 * 1024
    assert whole.resident_bytes_per_device - plan.resident_bytes_per_device == 2 * (128256 * 4096 // 2 + 32 * heads // 2)


def test_a_mamba2_file_is_shared_like_its_config(tmp_path):
    """Eight groups do not divide among 16 ranks, so B and C of one are whole on each."""
    torch = pytest.importorskip("torch", reason="transformers writes the file")
    transformers = pytest.importorskip("transformers", reason="transformers writes the file")
    sizes = {"hidden_size": 64, "num_heads": 16, "head_dim": 8, "state_size": 8, "n_groups": 4, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.AutoConfig.for_model("mamba2", **sizes, dtype="bfloat16")
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    spec = resolve(str(tmp_path))
    own = build(PlanRequest(resolve(str(tmp_path / "config.json")), Workload(64), policy("ideal"), split=Split(tensor=16)))
    file = build(PlanRequest(spec, Workload(64), policy("ideal"), split=Split(tensor=16)))
    # convolutions of groups are divided in one and whole in the other: a few hundred bytes
    assert file.resident_bytes_per_device == pytest.approx(own.resident_bytes_per_device, rel=0.02)


@pytest.mark.parametrize(
    ("name", "split", "engine", "kind", "said"),
    [
        # 768 columns / 4 = 192 is no multiple of 128: vLLM and SGLang refuse to load it
        ("qwen3-30b-a3b-fp8", Split(tensor=4), "vllm", BadInput, "blocks of 128"),
        ("deepseek-v3", Split(tensor=32), "sglang", BadInput, "blocks of 128"),
        # 8,192 / 24 is no integer, although three times it is
        ("llama3.2-3b", Split(tensor=24), "vllm", BadInput, "8,192 columns"),
        # vLLM's expert ranks are all ranks of a stage, SGLang's lie within the tensor ranks
        ("deepseek-v3", Split(tensor=8, experts=4), "vllm", BadInput, "all 8 ranks"),
        ("deepseek-v3", Split(data=8, experts=8), "sglang", BadInput, "at most"),
        ("deepseek-v3", Split(tensor=8, attention_data=8), "trtllm", NotModelled, "--dp-attention"),
        ("llama3-8b", Split(data=2), "llama.cpp", BadInput, "one copy"),
        ("llama3-8b", Split(tensor=8), "llama.cpp", NotModelled, "--tp"),
    ],
)
def test_what_engines_refuse(name, split, engine, kind, said):
    with pytest.raises(kind) as caught:
        shared(name, split, engine)
    assert said in caught.value.message


def test_drafters_that_cannot_draft():
    with pytest.raises(BadInput):
        speculate(resolve("deepseek-v3"), 4, blocks=0)
    with pytest.raises(BadInput) as caught:  # `verify_equal_vocab_size_if_draft_model`
        shared("llama3-8b", engine="vllm", drafts=(4, "gpt2"))
    assert "50,257" in caught.value.message
    with pytest.raises(NotModelled):
        speculate(resolve("nemotron-3-super-120b-a12b"), 2)


def test_vllm_loads_the_table_again_on_the_last_stage():
    """Its MTP shares the input table at pp 1 alone; MiMo-7B's has 151,680 x 4,096 words, padded to 64."""
    one, two = (shared("mimo-7b", Split(pipeline=n), "vllm", drafts=(2, None)) for n in (1, 2))
    alone = shared("mimo-7b", engine="vllm", drafts=(2, None))
    assert one.draft.weights_bytes == alone.draft.weights_bytes
    assert two.draft.weights_bytes - one.draft.weights_bytes == 2 * 151680 * 4096


def test_a_prefill_does_not_wait_for_a_drafter():
    floors = [
        shared("llama3-8b", Split(tensor=2), ctx=1000, prompt_tokens=1, device="h100-sxm5-80", drafts=drafts).latency.prefill.seconds
        for drafts in (None, (4, "llama3-8b"))
    ]
    assert floors[0] == floors[1]


def test_the_host_computes_its_own_layers():
    """A device with the output alone computes the output alone."""
    plan = shared("llama3-70b", engine="llama.cpp", ctx=8192, device="l4", offload=Offload(1))
    flops = {line.item: line.amount for line in plan.latency.ledger}
    assert flops["prefill_flops"] == 2 * 128256 * 8192
    assert flops["decode_flops"] == 2 * 128256 * 8192


def test_replicas_do_not_wait_for_each_other():
    """Three sequences on two copies: one copy has one of them, and shorter steps."""
    both = shared("llama3.1-8b", Split(data=2), ctx=131072, batch=3, device="h100-sxm5-80").latency
    busy = shared("llama3.1-8b", ctx=131072, batch=2, device="h100-sxm5-80").latency.decode.seconds
    idle = shared("llama3.1-8b", ctx=131072, batch=1, device="h100-sxm5-80").latency.decode.seconds
    assert both.tokens_per_s == pytest.approx(2 / busy + 1 / idle, rel=1e-12)


def test_a_tied_table_is_read_in_shares_under_data_parallel_attention():
    """Gemma-3-1B: each of four ranks multiplies with a quarter of 262,144 words."""
    plan = shared("gemma3-1b", Split(tensor=4, attention_data=4), ctx=10, batch=4)
    table = 2 * 262144 * 1152
    whole = shared("gemma3-1b", ctx=10).weights.read_bytes_per_step
    assert plan.shared.chain[0].weights_read_bytes <= whole - table + table // 4


def test_no_step_reads_more_than_an_engine_keeps():
    for name, engine in (("mamba-2.8b", "vllm"), ("deepseek-v3.2", "sglang"), ("qwen3-next-80b-a3b", "vllm")):
        plan = shared(name, engine=engine, ctx=4096, batch=8)
        assert plan.cache.read_bytes_per_step <= plan.cache.stored_bytes, name


def test_a_drafter_is_apart_in_every_rank(kvcli):
    answer = kvcli("plan", "llama3-8b", "--tp", "2", "--ctx", "1k", "--speculative", "3:llama3.2-1b", "--json")
    plan = json.loads(answer.out)
    ranks = plan["parallel"]["ranks"]
    assert plan["kv_cache"]["stored_bytes_per_device"] == max(rank["kv_cache_bytes"] for rank in ranks)
    assert plan["weights"]["resident_bytes_per_device"] == max(rank["weights_bytes"] for rank in ranks)
    assert plan["speculative"]["weights_bytes"] == sum(rank["devices"] * rank["draft_weights_bytes"] for rank in ranks)
    assert plan["speculative"]["copies_bytes"] == plan["speculative"]["weights_bytes"] - resolve("llama3.2-1b").parameters * 2


def test_prediction_blocks_of_a_file_are_layers_of_llama_cpp():
    from dataclasses import replace

    from kvcli.model.spec import TensorFile
    from kvcli.model.weight_parts import ByUse, WeightParts

    spec = resolve("glm-4.5-air")
    file = TensorFile("fp16", 0, 0, mtp_parts=WeightParts((ByUse(),)))
    assert place(spec, Offload(10), False).first == 46 - 9
    assert place(replace(spec, tensors=file), Offload(10), False).first == 46 - 8
