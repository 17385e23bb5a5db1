"""Properties of every cache record: closed forms against sums, and what growth, batch and windows may do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcli import dtypes
from kvcli.model.cache_records import Attention, chunk_pairs, window_pairs
from kvcli.model.latent_records import Compressed, Latent, entry_sum
from kvcli.model.state_records import Cross, Recurrent

BF16 = dtypes.KvTypes(dtypes.BF16, dtypes.BF16)
small = st.integers(1, 40)

RECORDS = [
    Attention(4, 2, 8, 8),
    Attention(4, 2, 8, 16, window_tokens=9),
    Attention(4, 2, 8, 8, chunk_tokens=7),
    Attention(4, 2, 8, 8, index_dim=4, index_heads=2, read_tokens=6),
    Latent(4, 16, 4, 8, 8),
    Latent(4, 16, 4, 8, 8, index_dim=6, index_heads=2, index_topk=5),
    Latent(4, 16, 4, 8, 8, window_tokens=9),
    Compressed(4, 16, window_tokens=6),
    Compressed(4, 16, window_tokens=6, ratio=4, index_dim=8, index_heads=2, index_topk=3),
    Compressed(4, 16, window_tokens=6, ratio=8),
]


@given(st.integers(0, 60), small, st.integers(1, 30))
def test_pairs_are_sums(cached, new, width):
    steps = range(cached + 1, cached + new + 1)
    assert window_pairs(cached, new, None) == sum(steps)
    assert window_pairs(cached, new, width) == sum(min(n, width) for n in steps)
    assert chunk_pairs(cached, new, width) == sum((n - 1) % width + 1 for n in steps)


@given(st.integers(0, 300), st.integers(1, 20), st.none() | st.integers(1, 9))
def test_entries_are_sums(tokens, ratio, most):
    assert entry_sum(tokens, ratio, most) == sum(min(n // ratio, most if most is not None else n) for n in range(1, tokens + 1))


@pytest.mark.parametrize("record", RECORDS)
@given(st.integers(0, 50), small)
def test_a_pass_is_the_sum_of_its_steps(record, cached, new):
    """In absorbed form and without caps that a pass may choose to ignore; never more than the steps one by one."""
    one_by_one = sum(record.step_flops(n, 0) for n in range(cached + 1, cached + new + 1))
    assert record.pass_flops(cached, new, 0) <= one_by_one
    if isinstance(record, Attention) and record.read_tokens is None:
        assert record.pass_flops(cached, new, 0) == one_by_one


@pytest.mark.parametrize("record", RECORDS)
@given(st.integers(1, 200))
def test_needed_grows_by_at_most_what_is_written_and_reads_at_most_what_is_kept(record, tokens):
    grown = record.needed_bytes(tokens + 1, BF16) - record.needed_bytes(tokens, BF16)
    # a chunk is forgotten at its border, and the tokens of a compressed entry when it closes
    sheds = getattr(record, "chunk_tokens", None) is not None or (isinstance(record, Compressed) and record.ratio)
    assert sheds or 0 <= grown <= record.written_bytes(BF16)
    assert 0 <= record.read_bytes(tokens, BF16) <= record.needed_bytes(tokens, BF16)


def test_a_layer_that_reuses_another_ones_cache_stores_and_reads_nothing_of_its_own():
    shared = Attention(4, 2, 8, 8, owns_cache=False)
    assert shared.needed_bytes(100, BF16) == shared.read_bytes(100, BF16) == shared.written_bytes(BF16) == 0
    assert shared.step_flops(100, 0) == Attention(4, 2, 8, 8).step_flops(100, 0)


def test_constants():
    mamba = Recurrent("mamba", conv_channels=10, conv_kernel=4, state_elements=50, state_dtype=dtypes.FP32)
    assert mamba.state_bytes(dtypes.BF16, 0) == 10 * 3 * 2 + 50 * 4
    assert mamba.needed_bytes(1000, BF16) == 0
    cross = Cross(4, 2, 8, 8)
    assert cross.state_bytes(dtypes.BF16, 100) == 2 * 16 * 100 * 2
