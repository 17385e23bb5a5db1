"""What each device holds of the weights: against the tensor-parallel plans that transformers publishes for its modules, against
a printed load, and by hand.
"""

from fnmatch import fnmatch

import pytest

from kvcli.errors import BadInput, NotModelled
from kvcli.model import presets
from kvcli.model.config import spec_from_config
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.sharing.parts import read_parts, resident_parts
from kvcli.plan.sharing.rules import SharingRule
from kvcli.plan.sharing.split import Split
from kvcli.plan.sharing.weight_shares import Shares
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.weights import parse_weights, weight_bytes
from kvcli.plan.workload import Workload

TINY = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2, "head_dim": 12}
MODELS = {
    "llama": {"head_dim": 12},
    "qwen2": {},
    "qwen3": {"head_dim": 12},
    "gemma3_text": {"head_dim": 12},
    "granite": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**EXPERTS, "num_experts": 6, "mlp_only_layers": [1]},
    "glm4_moe": {**EXPERTS, "n_routed_experts": 6, "first_k_dense_replace": 1, "n_shared_experts": 1, "attention_bias": True},
}


def tensors(model_type):
    """Name -> elements of a tiny model of transformers, and its plan."""
    torch = pytest.importorskip("torch", reason="transformers builds the models")
    transformers = pytest.importorskip("transformers", reason="its modules say how ranks share them")
    config = transformers.AutoConfig.for_model(model_type, **{**TINY, **MODELS[model_type]}, dtype="bfloat16")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return config, {name: parameter.numel() for name, parameter in model.named_parameters()}


def of_rank(name, elements, plan, ranks):
    """Elements of one rank: column-parallel modules are cut with their biases, row-parallel ones without, others stay whole."""
    path = name.removeprefix("model.").removesuffix(".weight").removesuffix(".bias")
    style = next((style for pattern, style in plan.items() if fnmatch(path, pattern)), "")
    if "colwise" in style or (style == "rowwise" and not name.endswith(".bias")):
        assert elements % ranks == 0
        return elements // ranks
    return elements


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("model_type", MODELS)
def test_a_rank_holds_what_the_library_gives_it(model_type, ranks):
    config, named = tensors(model_type)
    spec = spec_from_config(config.to_dict(), model_type, "transformers")
    weights = weight_bytes(spec, None)
    assert weights.dtype == "bf16"
    assert sum(named.values()) == spec.parameters
    shares = Shares(spec, resident_parts(spec, weights), Split(tensor=ranks), SharingRule(tensor=True))
    for layer in range(len(spec.order)):
        here = {name: count for name, count in named.items() if name.startswith(f"model.layers.{layer}.")}
        wanted = 2 * sum(of_rank(name, count, config.base_model_tp_plan, ranks) for name, count in here.items())
        assert shares.of(range(layer, layer + 1), False, False).total() == wanted, layer


@pytest.mark.parametrize("model_type", MODELS)
def test_a_file_is_shared_like_its_config(model_type, tmp_path):
    torch = pytest.importorskip("torch", reason="transformers writes the files")
    transformers = pytest.importorskip("transformers", reason="transformers writes the files")
    config = transformers.AutoConfig.for_model(model_type, **{**TINY, **MODELS[model_type]}, dtype="bfloat16")
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    spec = resolve(str(tmp_path))
    assert spec.tensors is not None
    own = spec_from_config(config.to_dict(), model_type, "transformers")
    for read in (False, True):
        parts_of = read_parts if read else resident_parts
        found, wanted = parts_of(spec, weight_bytes(spec, None)), parts_of(own, weight_bytes(own, None))
        # the correction bias of a router is a buffer in the library and a tensor of its file
        biases = 0 if model_type != "glm4_moe" else 6 * 2
        for layer, (mine, theirs) in enumerate(zip(found.layers, wanted.layers, strict=True)):
            extra = biases if own.groups[own.order[layer]].parameters.num_experts else 0
            assert mine._replace(whole=mine.whole - extra) == theirs, layer
        assert found[1:] == wanted[1:]


def shared(name, split, engine="ideal", weights=None, **work):
    spec = resolve(name)
    request = PlanRequest(spec, Workload(4096, **work), policy(engine, EngineOptions()), split=split)
    return build(request if weights is None else request._replace(weights=parse_weights(weights)))


def test_llama_by_hand():
    """Llama-3.1-8B at tp 16: of 32 heads two, one of 8 KV heads twice over, 896 of 14,336 columns, 8,016 of 128,256 words."""
    layer = 4096 * 256 + 2 * 4096 * 128 + 256 * 4096 + 3 * 4096 * 896 + 2 * 4096
    rank = 2 * (32 * layer + 2 * 8016 * 4096 + 4096)
    plan = shared("llama3.1-8b", Split(tensor=16))
    assert plan.resident_bytes_per_device == rank
    # the table that is only looked up is not read
    assert plan.shared.chain[0].weights_read_bytes == rank - 2 * 8016 * 4096
    copies = dict(plan.shared.weight_copies)
    assert copies == {
        "KV projections": 8 * 2 * 4096 * 128 * 32 * 2,
        "norms, routers, latent projections": 15 * 2 * 4096 * 32 * 2,
        "last norms": 15 * 4096 * 2,
    }


def test_a_load_that_sglang_printed():
    """Qwen3-235B in bf16, tp 8 x pp 4 (sgl-project/sglang issue 8337): rank 0 of stage 0 printed 13.73 GB (GiB) of memory used
    by its load, which includes what the allocator rounds up. 23 of 94 layers; 24 would be 14.09."""
    plan = shared("qwen3-235b-a22b", Split(tensor=8, pipeline=4), "sglang", weights="bf16")
    assert [each.layers for each in plan.shared.on_devices] == [23, 23, 24, 24]
    first = plan.shared.on_devices[0].weights_bytes / 2**30
    assert first < 13.73 < 1.02 * first


def test_deepseek_by_hand():
    """DeepSeek-V3 in bf16, expert parallel over 8: 32 of 256 experts; the router and the latent down-projections whole."""
    hidden, heads, rank, q_rank = 7168, 128, 512, 1536
    attention = hidden * (q_rank + rank + 64) + (q_rank * heads * 192 + rank * heads * 256 + heads * 128 * hidden) // 8
    norms = 2 * hidden + rank + q_rank
    dense = attention + norms + 3 * hidden * 18432 // 8
    moe = attention + norms + 256 * hidden + 32 * 3 * hidden * 2048 + 3 * hidden * 2048 // 8
    around = 2 * 129280 * hidden // 8 + hidden
    wanted = 2 * (3 * dense + 58 * moe + around)
    assert shared("deepseek-v3", Split(tensor=8, experts=8), weights="bf16").resident_bytes_per_device == wanted
    # every expert's columns cut in 8 is as much; a step then reads an eighth of 8 experts, or one of them whole
    assert shared("deepseek-v3", Split(tensor=8), weights="bf16").resident_bytes_per_device == wanted
    reads = [shared("deepseek-v3", Split(tensor=8, experts=ep), weights="bf16").shared.chain[0].weights_read_bytes for ep in (1, 8)]
    assert reads[0] == reads[1] == 2 * (3 * dense + 58 * (moe - 31 * 3 * hidden * 2048) + 129280 * hidden // 8 + hidden)


def test_experts_that_do_not_divide():
    """The fullest of 6 ranks has ceil(128 / 6) = 22 experts, and reads at least ceil(8 / 6) = 2 of a token's 8."""
    plan = shared("qwen3-30b-a3b", Split(tensor=2, data=3, experts=6), batch_size=3)
    expert = 3 * 2048 * 768 * 2
    whole = shared("qwen3-30b-a3b", Split(tensor=2, data=3), batch_size=3)
    assert whole.resident_bytes_per_device - plan.resident_bytes_per_device == 48 * (128 // 2 - 22) * expert
    assert plan.shared.chain[0].weights_read_bytes - whole.shared.chain[0].weights_read_bytes == 48 * (2 - 8 // 2) * expert


def test_groups_of_ranks_keep_attention_whole():
    """DeepSeek-V3 with data-parallel attention: attention and the input table stand on each of 8 ranks."""
    plain, grouped = (shared("deepseek-v3", Split(tensor=8, attention_data=n), "sglang", weights="bf16") for n in (1, 8))
    heads = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    more = 2 * (61 * heads * 7 // 8 + 129280 * 7168 * 7 // 8)
    assert grouped.resident_bytes_per_device - plain.resident_bytes_per_device == more


def test_tables_are_padded_by_vllm():
    """GPT-2's 50,257 words become 50,304 for vLLM, which two ranks divide, and 50,258 for others."""
    vllm, ideal = (shared("gpt2", Split(tensor=2), engine).resident_bytes_per_device for engine in ("vllm", "ideal"))
    assert vllm - ideal == (50304 // 2 - 50258 // 2) * 768 * 2


def test_a_tied_table_is_held_by_both_ends():
    """Qwen3-0.6B: 151,936 x 1,024 tied words, on the first and the last of two stages, read on the last."""
    plan = shared("qwen3-0.6b", Split(pipeline=2))
    table = 151936 * 1024 * 2
    assert dict(plan.shared.weight_copies) == {"output head, padding and copies": table}
    first, last = plan.shared.on_devices
    assert first.weights_bytes - first.weights_read_bytes == table
    assert last.weights_bytes == last.weights_read_bytes


@pytest.mark.parametrize("weights", [None, "fp8", "int4", "int4-g128", "nvfp4", "fp32", "q4_k_m", "iq4_xs", "q8_0"])
def test_parts_sum_to_the_whole(weights):
    """Of every preset, in every type, and in the quantisation of its file: to the byte."""
    for name in presets.names():
        spec = resolve(name)
        try:
            total = weight_bytes(spec, None if weights is None else parse_weights(weights))
        except BadInput:  # rows that do not fill a mix's blocks
            assert name in ("qwen2-0.5b",), name
            continue
        assert resident_parts(spec, total).total == total.resident_bytes, name
        # k of E experts are rounded down tensor by tensor in a mix, and layer by layer here
        spared = 4 * len(spec.order) if total.mixed else 0
        assert 0 <= read_parts(spec, total).total - total.read_bytes_per_step <= spared, name


@pytest.mark.parametrize(
    ("name", "split", "said", "hint"),
    [
        ("llama3.1-8b", Split(tensor=3), "--tp 3 does not divide", "--tp 2 or 4"),
        ("llama3.1-8b", Split(tensor=64), "--tp 64 does not divide", "--tp 32"),
        ("qwen2.5-7b", Split(tensor=8), "28 heads over 4 KV heads", "--tp 4"),
        ("llama3.1-8b", Split(pipeline=33), "more than the 32 layers", "--pp 32"),
        ("llama3.1-8b", Split(tensor=4, experts=2), "no routed experts", "leave --ep out"),
        ("deepseek-v3", Split(tensor=8, context=3), "--dcp 3 does not divide the 8 copies", "--dcp 2 or 4"),
        ("llama3.1-8b", Split(tensor=8, context=2), "does not divide the 1 copies", "--dcp 1"),
    ],
)
def test_a_split_that_does_not_divide_names_the_nearest(name, split, said, hint):
    with pytest.raises(BadInput) as caught:
        shared(name, split)
    assert said in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "split", "engine", "said"),
    [
        ("llama3.1-8b", Split(tensor=2), "llama.cpp", "by --tp"),
        ("llama3.1-8b", Split(tensor=2), "transformers", "spreads a model"),
        ("llama3.1-8b", Split(pipeline=2), "kvcli", "one device"),
        ("gemma3-27b", Split(pipeline=2), "vllm", "layers of several kinds"),
        ("gemma3-27b", Split(tensor=16, context=2), "ideal", "sliding_attention"),
        ("whisper-large-v3", Split(tensor=2), "ideal", "encoder"),
        ("deepseek-v3", Split(tensor=8, attention_data=8), "vllm", "by --dp-attention"),
    ],
)
def test_a_split_without_a_rule_is_refused(name, split, engine, said):
    with pytest.raises(NotModelled) as caught:
        shared(name, split, engine)
    assert said in caught.value.message
