"""vLLM's pages and groups, each case worked beside it; blocks of hybrids as the engine logged them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcli.dtypes import parse_kv
from kvcli.errors import BadInput, NotModelled
from kvcli.model.config import spec_from_config
from kvcli.model.resolve import resolve
from kvcli.model.state_records import Recurrent
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.storage.vllm_groups import Kind, blocks_held, lay_out
from kvcli.plan.workload import Workload

GIB = 2**30


def cache(model, tokens, batch=1, kv=None, engine="vllm", encoder=0, **options):
    spec = resolve(model) if isinstance(model, str) else model
    types = parse_kv(kv) if kv else None
    return build(
        PlanRequest(spec, Workload(tokens, batch, encoder_tokens=encoder), policy(engine, EngineOptions(**options)), kv=types)
    ).cache


def test_whole_blocks_of_one_kind():
    """llama3-8b: 32,768 tokens fill 2,048 blocks of 16 exactly, 4 GiB; one token takes a block of 32 x 16 x 4,096 B."""
    full = cache("llama3-8b", 32768)
    assert (full.stored_bytes, full.blocks, full.block_tokens, full.causes) == (4 * GIB, 2048, 16, ())
    one = cache("llama3-8b", 1)
    assert (one.stored_bytes, one.blocks) == (32 * 16 * 4096, 1)
    assert one.causes == (("page rounding", 15 * 32 * 4096),)
    assert cache("llama3-8b", 17, batch=3).blocks == 6
    assert cache("llama3-8b", 17, block_size=32).stored_bytes == 32 * 32 * 4096
    assert full.engine_version == "0.33"


def test_gemma3_27b_in_groups_of_ten():
    """52 window layers and 10 full ones: 6 + 1 groups of 10, 8 of them padding. A layer's page is 16 x 2 x 16 x 128 x 2 B =
    128 KiB, a block id 1.25 MiB. 2,048 ids for the full group; 1,024 tokens of window lie in up to 65 blocks, 6 groups of them."""
    answer = cache("gemma3-27b", 32768)
    page = 16 * 2 * 16 * 128 * 2
    assert answer.blocks == 2048 + 6 * 65
    assert answer.stored_bytes == 10 * page * answer.blocks
    # the visible 64 blocks are needed, the 65th is kept
    assert dict(answer.causes) == {"padding layers": 8 * 65 * page, "windows kept": 52 * page}
    assert f"{answer.stored_bytes / GIB:.2f} {answer.needed_bytes / GIB:.2f}" == "2.98 2.91"


@pytest.mark.parametrize(("model", "admitted", "steady"), [("gemma3-27b", "6.726 GiB", "2.976"), ("gpt-oss-20b", "963.4 MiB", "0.753")])
def test_admission_and_steady_state_are_told_apart(model, admitted, steady):
    """At 8,192 tokens in flight and 32,768 of context. Gemma: 577 blocks in each of 6 window groups, 2,048 + 3,462 ids of
    1.25 MiB; gpt-oss: 521 + 2,048 ids of 384 KiB."""
    answer = cache(model, 32768)
    assert f"{answer.stored_bytes / GIB:.3f}" == steady
    (notice,) = answer.notices
    assert notice.code == "vllm_admission"
    assert f"it wants {admitted}," in notice.message
    engine, more = policy("vllm"), policy("vllm", EngineOptions(max_num_batched_tokens=16384))
    one = resolve(model), Workload(32768), parse_kv("bf16")
    assert more.admission_bytes(*one) == engine.admission_bytes(*one, batches=2) > engine.admission_bytes(*one)


def test_the_group_size():
    """The fewest layers of a kind, but the most where that is less than half as many again; a common page where rows differ."""
    full, window = Kind("full", 0, 100), Kind("window", 64, 100)
    for counts, size, padding in [((12, 13), 13, 1), ((10, 15), 10, 5), ((10, 14), 14, 4), ((5, 29), 5, 1)]:
        layout = lay_out({full: counts[0], window: counts[1]}, 16)
        assert layout.group_size == size
        assert sum(layout.padding_layers(kind, count) for kind, count in zip((full, window), counts, strict=True)) == padding
    double, odd = Kind("window", 64, 200), Kind("window", 64, 150)
    assert lay_out({full: 5, double: 5}, 16).pages[full] == (32, 3200, 1)
    assert lay_out({full: 5, odd: 5}, 16).pages[full] == (16, 2400, 1)
    with pytest.raises(NotModelled, match="latent"):
        lay_out({full._replace(latent=True): 5, odd: 5}, 16)
    with pytest.raises(NotModelled, match="states"):
        lay_out({full: 5, odd: 5, Kind("state", 0, 9000): 5}, 16)
    # blocks that hold a state: in steps of 16, or of 64 for latent rows, or of the block asked for
    state = Kind("state", 0, 9000)
    assert lay_out({full: 5, state: 5}, 16).pages[full] == (96, 9600, 1)
    assert lay_out({full._replace(latent=True): 5, state: 5}, 16).pages[state] == (0, 12_800, 1)
    assert lay_out({full: 5, state: 5}, 40).pages[full] == (120, 12_000, 1)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 2000))
def test_a_window_lies_in_that_many_blocks_at_most(window, block, tokens):
    """Counted: blocks with at least one of the last `window` tokens, at every length up to `tokens`."""
    kind = Kind("window", window, 1)
    touched = {(n - 1) // block - max(0, n - window) // block + 1 for n in range(1, tokens + 1)}
    held = blocks_held(kind, block, tokens, 0)
    assert held >= max(touched)
    if tokens >= window + block:
        assert held == max(touched)


def qwen35(**changes):
    """Smaller Qwen3.5: 16 key heads and other counts of value heads and KV heads."""
    config = dict(resolve_config("qwen3.5-27b"))
    return spec_from_config(config | changes, "qwen3.5", "test")


def resolve_config(name):
    from kvcli.model.presets import load

    config = load(name).config
    return config.get("text_config", config)


def granite_350m():
    """48 state heads of 32, 4 KV heads of 64."""
    config = dict(resolve_config("granite-4.0-h-tiny"))
    changes = {"hidden_size": 768, "mamba_n_heads": 48, "mamba_d_head": 32, "num_attention_heads": 12, "num_key_value_heads": 4}
    return spec_from_config(config | changes, "granite-350m", "test")


def nemotron_nano_9b_v2():
    """128 state heads of 80 with 128 columns in 8 groups, 8 KV heads of 128, states in bf16."""
    config = dict(resolve_config("nemotron-h-8b"))
    changes = {"mamba_num_heads": 128, "mamba_head_dim": 80, "ssm_state_size": 128, "n_groups": 8, "mamba_ssm_cache_dtype": "bfloat16"}
    return spec_from_config(config | changes, "nano-9b-v2", "test")


@pytest.mark.parametrize(
    ("model", "kv", "block", "padded_percent"),
    [
        # lines of public logs: "Setting attention block size to N tokens", "Padding mamba page size by P%"
        (lambda: qwen35(linear_num_value_heads=32), "bf16", 528, "0.76"),
        (lambda: qwen35(linear_num_value_heads=32), "fp8", 1056, "0.76"),
        (lambda: qwen35(linear_num_value_heads=16, num_key_value_heads=2), "bf16", 544, "2.64"),
        (lambda: resolve("qwen3.5-27b"), "bf16", 784, "0.13"),
        (lambda: resolve("qwen3.6-35b-a3b-nvfp4"), "bf16", 1056, "0.76"),
        (lambda: resolve("qwen3.6-35b-a3b-nvfp4"), "fp8", 2096, "0.00"),
        (lambda: resolve("qwen3-next-80b-a3b"), "bf16", 544, "1.49"),
        (granite_350m, "bf16", 400, "1.39"),
        (nemotron_nano_9b_v2, "bf16", 672, None),
    ],
)
def test_hybrid_blocks_as_logged(model, kv, block, padded_percent):
    spec = model()
    answer = cache(spec, 1, kv=kv)
    assert answer.block_tokens == block
    if padded_percent:  # of one layer's state, as stored without what was padded
        layers = sum(group.count for group in spec.groups if isinstance(group.records[0], Recurrent))
        stored = sum(row.stored_bytes for row in answer.rows if row.kind == "linear_attention") // layers
        padding = (stored - kept_state(spec)) / kept_state(spec)
        assert f"{100 * padding:.2f}" == padded_percent


def kept_state(spec):
    """K - 1 columns in bf16 and the state in the type that the logs' versions kept: float32 for Qwen3.5 alone."""
    (state,) = {record for group in spec.groups for record in group.records if isinstance(record, Recurrent)}
    size = 4 if spec.model_type.startswith("qwen3_5") else 2
    return state.conv_channels * 3 * 2 + state.state_elements * size


def test_blocks_of_a_hybrid_as_logged():
    """Qwen3.6-35B-A3B in fp8 at a million tokens: four groups of 10 layers, 3 + ceil(1,000,000 / 2,096) = 481 blocks, of
    10,731,520 B on each of two ranks."""
    answer = cache("qwen3.6-35b-a3b-nvfp4", 1_000_000, kv="fp8")
    assert (answer.blocks, answer.stored_bytes) == (481, 481 * 2 * 10_731_520)


def test_a_hybrid_keeps_a_padded_page_a_state():
    """Qwen3-Next: a state page of 49,152 + 1,048,576 B in bf16 needs 544 tokens of 2,048 B; 36 + 12 layers in groups of 12.
    One token takes a block in the full group and a page in each of three state groups."""
    answer = cache("qwen3-next-80b-a3b", 1)
    page = 544 * 2048
    assert (answer.block_tokens, answer.blocks, answer.stored_bytes) == (544, 4, 48 * page)
    assert dict(answer.causes)["state dtype"] == -36 * 32 * 128 * 128 * 2
    # admitted with two pages a state, since prefixes are cached
    admitted = policy("vllm").admission_bytes(resolve("qwen3-next-80b-a3b"), Workload(1), parse_kv("bf16"))
    assert admitted == (1 + 3 * 2) * 12 * page
    # 600 tokens: 8 to the next 16, the rest to 1,088
    rounding = dict(cache("qwen3-next-80b-a3b", 600).causes)
    assert rounding["page rounding"] == 12 * 8 * 2048
    assert rounding["hybrid page size"] == 36 * (page - 1_097_728) + 12 * (1088 - 608) * 2048


def test_states_alone_follow_the_models_type():
    """mamba-130m: a float32 file is run in bf16; 24 layers x (1,536 x 3 + 1,536 x 16) x 2 B, no blocks."""
    answer = cache("mamba-130m", 5000)
    assert (answer.stored_bytes, answer.blocks) == (24 * (1536 * 3 + 1536 * 16) * 2, None)


def test_latent_rows():
    """V3: 61 x 576 x 2 B a token. V3.2 turns into fp8_ds_mla by itself: 656 + 132 B a token and layer in blocks of 64; bf16 only
    on request, and its index keys stay fp8."""
    assert cache("deepseek-v3", 16).stored_bytes == 16 * 61 * 576 * 2
    assert cache("deepseek-v3", 16, kv="fp8").stored_bytes == 16 * 61 * 576
    sparse = cache("deepseek-v3.2", 64)
    assert (sparse.kv.label, sparse.stored_bytes, sparse.blocks) == ("fp8", 64 * 61 * (656 + 132), 1)
    assert [notice.code for notice in sparse.notices] == ["vllm_fp8_ds_mla"]
    assert dict(sparse.causes) == {"fp8_ds_mla rows": 64 * 61 * 80, "fp8 index keys with a scale": 64 * 61 * 4}
    assert cache("deepseek-v3.2", 64, kv="bf16").stored_bytes == 64 * 61 * (1152 + 132)
    # GLM-5.2: 21 of 78 layers have an indexer
    shared = cache("glm-5.2", 64)
    assert (shared.stored_bytes, shared.blocks) == (64 * (78 * 656 + 21 * 132), 1)


def kimi_linear(heads):
    """Kimi-Linear-48B: 20 layers of KDA with 32 heads of 128 x 128, 7 of MLA; `heads` are those of a rank."""
    config = {
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "hidden_size": 2304,
        "num_hidden_layers": 27,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": 9216,
        "vocab_size": 163_840,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "linear_attn_config": {
            "num_heads": heads,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [number for number in range(1, 27) if number % 4],
        },
        "num_experts": 256,
        "num_experts_per_token": 8,
        "moe_intermediate_size": 1024,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
    }
    return spec_from_config(config, "kimi-linear", "test")


def test_latent_rows_beside_states_as_logged():
    """https://github.com/vllm-project/vllm/issues/28228, two ranks: blocks of 960 tokens, states padded by 1.89%.

    A state of 16 heads takes 3 x 6,144 columns of 2 B and 16 x 128 x 128 x 4 B; a row 1,152 B."""
    answer = cache(kimi_linear(16), 1)
    state, page = 3 * 6144 * 2 + 16 * 128 * 128 * 4, 960 * 1152
    assert answer.block_tokens == 960
    assert f"{100 * (page - state) / state:.2f}" == "1.89"
    # 7 + 20 layers in groups of 7: a block, three states each, one of them padding
    assert (answer.blocks, answer.stored_bytes) == (4, 28 * page)
    assert dict(answer.causes)["padding layers"] == page
    assert [notice.code for notice in answer.notices] == ["vllm_block_alignment", "vllm_admission"]
    assert cache(kimi_linear(32), 1).block_tokens == 1920
    assert cache(kimi_linear(32), 1, kv="fp8").block_tokens == 3776


def minimax_m3(**changes):
    kinds = ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57
    config = {"model_type": "minimax_m3_vl_text", "dtype": "bfloat16", "layer_types": kinds}
    return spec_from_config(config | changes, "minimax-m3", "test")


def test_index_keys_beside_keys_and_values():
    """MiniMax-M3: 60 layers of 4 x 256 elements and 57 of 128, in blocks of 128; the index keys stay bf16 in an fp8 cache."""
    answer = cache(minimax_m3(), 129)
    assert (answer.blocks, answer.block_tokens) == (2, 128)
    assert answer.stored_bytes == 256 * (60 * 4 * 256 * 2 + 57 * 128 * 2)
    assert dict(answer.causes) == {"page rounding": 127 * 137_472}
    narrow = cache(minimax_m3(), 128, kv="fp8")
    assert narrow.stored_bytes == 128 * (60 * 4 * 256 + 57 * 128 * 2)
    assert dict(narrow.causes) == {"index keys in bf16": 128 * 57 * 128}
    assert cache(minimax_m3(), 128, block_size=256).blocks == 1
    with pytest.raises(BadInput, match="128"):
        cache(minimax_m3(), 128, block_size=64)
    for refused in (minimax_m3(index_head_dim=64), minimax_m3(dtype="float16")):
        with pytest.raises(NotModelled, match="minimax_m3"):
            cache(refused, 128)


def test_types():
    """int8 brings two float32 scales a token and head; fp8 has none."""
    assert cache("llama3-8b", 16, kv="fp8").stored_bytes == 16 * 32 * 2048
    scaled = cache("llama3-8b", 16, kv="int8")
    assert scaled.stored_bytes == 16 * 32 * 8 * (256 + 8)
    assert scaled.causes == (("scales of each token and head", 16 * 32 * 64),)
    assert cache("llama3-8b", 16, kv="nvfp4").stored_bytes == 16 * 32 * 8 * 2 * (64 + 8)
    for kv in ("q8_0", "int4", "fp32", "fp8:bf16"):
        with pytest.raises(BadInput, match="vllm keeps"):
            cache("llama3-8b", 16, kv=kv)
    with pytest.raises(BadInput, match="latent rows"):
        cache("deepseek-v3", 16, kv="int8")
    assert cache("gpt2", 16).kv.label == "bf16"  # a float32 file


def test_encoder_caches_in_blocks():
    """Whisper: 1,500 rows take 94 blocks in each of 32 layers, beside one block of the decoder's own."""
    answer = cache("whisper-large-v3", 1)
    assert (answer.blocks, answer.stored_bytes) == (95, 95 * 32 * 16 * 5120)
    assert cache("whisper-large-v3", 1, encoder=16).blocks == 2


def test_shared_layers_keep_nothing():
    """Two of four layers attend over the others' rows: half the bytes, and two layers in a block."""
    config = resolve_config("gemma4-26b-a4b")
    kept = resolve("gemma4-26b-a4b")
    shared = spec_from_config(config | {"num_kv_shared_layers": 6}, "g", "test")
    assert cache(shared, 100).stored_bytes == cache(kept, 100).stored_bytes * 4 // 5


def test_versions():
    """0.9 held chunked layers whole: 48 layers of 2 x 8 x 128 x 2 B; unknown versions are refused."""
    assert cache("llama4-scout", 32768, version="0.9").stored_bytes == 32768 * 48 * 4096
    assert cache("llama4-scout", 32768, version="v0.33.1").stored_bytes == (2048 + 3 * 512) * 12 * 16 * 4096
    with pytest.raises(BadInput, match=r"0\.12"):
        policy("vllm", EngineOptions(version="0.12"))
    with pytest.raises(NotModelled, match=r"0\.9"):
        cache("gemma3-27b", 100, version="0.9")


def check(answer):
    needed, state = (sum(getattr(row, field) for row in answer.rows) for field in ("needed_bytes", "state_bytes"))
    assert sum(size for _, size in answer.causes) == answer.stored_bytes - needed - state
    assert sum(row.stored_bytes for row in answer.rows) == answer.stored_bytes
    assert all(size for _, size in answer.causes)
    assert all(row.stored_bytes >= row.needed_bytes for row in answer.rows)


MODELS = ["llama3-8b", "gemma3-27b", "gemma4-26b-a4b", "qwen3.5-27b", "falcon-h1-7b", "glm-5.2", "deepseek-v3", "llama4-scout"]


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 300_000), st.integers(1, 9), st.sampled_from(["auto", "fp8", "int8"]), st.integers(1, 8))
def test_stored_covers_needed_and_grows(name, tokens, batch, kv, sixteens):
    kv = None if kv == "auto" else "fp8" if resolve(name).groups[0].records[0].kind.startswith("latent") else kv
    one = cache(name, tokens, kv=kv, block_size=16 * sixteens)
    many = cache(name, tokens, batch, kv, block_size=16 * sixteens)
    check(many)
    assert (many.stored_bytes, many.blocks) == (batch * one.stored_bytes, batch * one.blocks)
    assert cache(name, tokens + 1, kv=kv, block_size=16 * sixteens).stored_bytes >= one.stored_bytes
