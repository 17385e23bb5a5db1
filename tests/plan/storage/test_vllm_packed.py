"""DeepSeek-V4 under vLLM: printed block widths and a printed refusal, and cases worked from the constants of its source.

A page of fp8_ds_mla rows is a multiple of 576 B: 64 rows of 584 B take 37,440, two take 1,728; 64 index keys of 132 B take 8,640.
States are float32: [4, 2 x 2 x 512] and [4, 2 x 2 x 128] in CSA, 32,832 and 8,640; [8, 2 x 512] in HCA, 32,832.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcli.dtypes import parse_kv
from kvcli.errors import BadInput, NotModelled
from kvcli.model.config import spec_from_config
from kvcli.model.latent_records import Compressed
from kvcli.model.presets import load
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage import vllm_packed
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload

GIB = 2**30
ROWS, INDEX, FEW, STATE, INDEX_STATE = 37_440, 8_640, 1_728, 32_832, 8_640
#: a block of V4-Flash: 21 layers of CSA entries and index keys, 20 of HCA entries
FLASH = 21 * (ROWS + INDEX) + 20 * FEW


def cache(model, tokens, batch=1, kv=None, **options):
    engine = policy("vllm", EngineOptions(**options))
    spec = resolve(model) if isinstance(model, str) else model
    return build(PlanRequest(spec, Workload(tokens, batch), engine, kv=parse_kv(kv) if kv else None)).cache


def layers(name):
    return [(group.count, record) for group in resolve(name).groups for record in group.records]


@pytest.mark.parametrize(
    ("rows", "width", "gib", "blocks"),
    [
        # https://github.com/vllm-project/vllm/pull/48993: DeepSeek-V4-Pro with index keys of 4 bits, 64 + 4 B
        (vllm_packed.rows_of(parse_kv("fp8")), 1_315_008, "26.09", 21_306),
        # FlashInfer's plain fp8 rows, in pages of 512
        (vllm_packed.Rows(512, 132, vllm_packed.rows_of(parse_kv("bf16")).alignment), 1_228_800, "26.46", 23_120),
    ],
)
def test_the_block_widths_its_developers_measured(rows, width, gib, blocks):
    packed = vllm_packed.packing(layers("deepseek-v4-pro"), rows._replace(index_bytes=68))
    assert packed.block_bytes == width
    low, high = ((float(gib) + way) * GIB // width for way in (-0.005, 0.005))
    assert low <= blocks <= high < low + 10


def test_a_refusal_as_printed():
    """https://github.com/vllm-project/vllm/issues/44376 (0.22): 30,000 tokens want 6.66 GiB, 5.44 GiB would hold 13,528, at 16,384
    tokens in flight. That version gave each of 22 places in a block a page of every size of the full layers."""
    packed = vllm_packed.packing(layers("deepseek-v4-flash"), vllm_packed.rows_of(parse_kv("fp8")))
    older = 22 * (ROWS + INDEX + FEW)
    # ceil(30,000 / 256), two groups of windows, two of states
    assert packed.ids_admitted(30_000, 16_384) == 118 + 2 * (258 + 1) + (4098 + 1) + (2064 + 1)
    assert f"{packed.ids_admitted(30_000, 16_384) * older / GIB:.2f}" == "6.66"
    assert f"{packed.ids_admitted(13_528, 16_384) * older / GIB:.2f}" == "5.44"


def test_flash_worked():
    """One token takes a block in the full group, in two groups of windows (43 layers in groups of 22) and in two of states. At 32,768:
    128 full blocks; 128 tokens of window in up to 3 of 64; 8 tokens in 3 of 4; 128 tokens in 17 of 8."""
    assert FLASH == 1_002_240
    one = cache("deepseek-v4-flash", 1)
    assert (one.blocks, one.block_tokens, one.stored_bytes) == (5, 4, 5 * FLASH)
    answer = cache("deepseek-v4-flash", 32_768, batch=2)
    assert (answer.blocks, answer.stored_bytes) == (2 * 154, 2 * (128 + 2 * 3 + 3 + 17) * FLASH)
    assert answer.kv.label == "fp8"
    windows, csa, hca = 43 * 3 * ROWS, 21 * 3 * (STATE + INDEX_STATE), 20 * 17 * STATE
    wide = 26 * FLASH - windows - csa - hca
    # needed in fp8: a window of 128 in each layer, entries, and the last entry's tokens in CSA
    needed = 43 * 128 * 512 + 21 * (8192 * 640 + 2 * 4 * 640) + 20 * 256 * 512
    assert answer.needed_bytes == 2 * needed
    assert dict(answer.causes) == {
        "page alignment": 2 * (43 * 3 * 64 + 21 * (128 * (64 + 192) + 3 * (64 + 448)) + 20 * (128 * 560 + 17 * 64)),
        "windows kept": 2 * 43 * 64 * 584,
        "fp8_ds_mla rows": 2 * 72 * (43 * 128 + 21 * 8192 + 20 * 256),
        "fp8 index keys with a scale": 2 * 4 * 21 * 8192,
        "compressor states": 2 * (21 * (3 * 4 * (8192 + 2048) - 2 * 4 * 640) + 20 * 17 * 8 * 4096),
        "blocks as wide as the widest group": 2 * wide,
    }
    assert sum(dict(answer.causes).values()) == answer.stored_bytes - answer.needed_bytes


def test_pro_and_plain_rows():
    """Pro: 30 CSA layers, 31 HCA, in groups of 31. In 16 bits rows take 1,024 B in pages of 512: 65,536, 8,704 and 2,048."""
    assert cache("deepseek-v4-pro", 1).stored_bytes == 5 * (30 * (ROWS + INDEX) + 31 * FEW)
    plain = cache("deepseek-v4-pro", 1, kv="bf16")
    assert plain.stored_bytes == 5 * (30 * (65_536 + 8_704) + 31 * 2_048)
    assert [notice.code for notice in plain.notices] == ["vllm_admission"]


def test_a_fixed_part_and_a_slope():
    """Once the window is full, 256 tokens cost a block; windows and states cost 26 of them whatever the length."""
    first, second = (cache("deepseek-v4-flash", tokens).stored_bytes for tokens in (256 * 10, 256 * 4000))
    assert second - first == 3990 * FLASH
    assert first == (10 + 26) * FLASH


def test_what_a_prompt_in_flight_asks_for():
    """8,192 tokens in flight: ceil(8,319 / 64) + 1 = 131 blocks of windows, ceil(8,199 / 4) + 1 and ceil(8,319 / 8) + 1 of states."""
    asked = policy("vllm").admission_bytes(resolve("deepseek-v4-flash"), Workload(100_000), parse_kv("fp8"))
    assert asked == (391 + 2 * 131 + 2051 + 1041) * FLASH
    assert [notice.code for notice in cache("deepseek-v4-flash", 100_000).notices] == ["vllm_fp8_ds_mla", "vllm_admission"]


def test_what_is_refused():
    for kv in ("fp16", "int8", "nvfp4", "fp8:bf16"):
        with pytest.raises(BadInput, match="DeepSeek-V4"):
            cache("deepseek-v4-flash", 16, kv=kv)
    with pytest.raises(BadInput, match="64"):
        cache("deepseek-v4-flash", 16, block_size=64)
    assert cache("deepseek-v4-flash", 16, block_size=256).blocks == 1 + 2 * 1 + 3 + 2
    with pytest.raises(NotModelled, match=r"0\.9"):
        cache("deepseek-v4-flash", 16, version="0.9")
    config = dict(load("deepseek-v4-flash").config)
    for changes in ({"head_dim": 256}, {"index_head_dim": 64}):
        with pytest.raises(NotModelled, match="shape"):
            cache(spec_from_config(config | changes, "other", "test"), 16)
    with pytest.raises(NotModelled, match="shape"):
        vllm_packed.parts(Compressed(8, 512, 128, ratio=128, index_dim=128), vllm_packed.rows_of(parse_kv("fp8")))


@settings(deadline=None)
@given(
    st.sampled_from(["deepseek-v4-flash", "deepseek-v4-pro"]),
    st.integers(1, 1_000_000),
    st.integers(1, 9),
    st.sampled_from(["fp8", "bf16"]),
)
def test_stored_covers_needed_and_grows(name, tokens, batch, kv):
    one, many = cache(name, tokens, kv=kv), cache(name, tokens, batch, kv)
    assert sum(size for _, size in many.causes) == many.stored_bytes - many.needed_bytes
    # index keys stay fp8 in a cache of 16 bits: 132 B for 256
    narrower = batch * 124 * (tokens // 4) * (kv == "bf16")
    assert all(row.stored_bytes + row.count * narrower > row.needed_bytes for row in many.rows)
    assert (many.stored_bytes, many.blocks) == (batch * one.stored_bytes, batch * one.blocks)
    assert cache(name, tokens + 1, kv=kv).stored_bytes >= one.stored_bytes
