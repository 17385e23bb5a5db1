"""Caches: what they return, what they store, and the ring of window layers against full recomputation."""

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from kvcli.runtime.attention import attend, causal_mask  # noqa: E402
from kvcli.runtime.caches import DynamicCache, StaticCache, storage_bytes, view_bytes  # noqa: E402

CPU = torch.device("cpu")


def caches(windows, capacity):
    yield "dynamic", DynamicCache(windows)
    yield "static", StaticCache(windows, 1, 2, 4, capacity, torch.float32, CPU)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_attention_over_any_split_equals_one_pass(window, pieces):
    """The oracle: attention over all tokens at once with an explicit window mask."""
    total = sum(pieces)
    generator = torch.Generator().manual_seed(total)
    query, keys, values = (torch.randn((1, heads, total, 4), generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    for layer_window in (window, None):
        mask = causal_mask(total, total, layer_window, CPU)
        repeated = [tensor.repeat_interleave(2, dim=1) for tensor in (keys, values)]
        scores = (query @ repeated[0].transpose(-1, -2) / 2).masked_fill(~mask, float("-inf"))
        wanted = scores.softmax(dim=-1) @ repeated[1]
        static = StaticCache([layer_window], 1, 2, 4, total, torch.float64, CPU)
        for cache in (DynamicCache([layer_window]), static):
            start, rows = 0, []
            for count in pieces:
                part = slice(start, start + count)
                k, v = cache.update(0, keys[:, :, part], values[:, :, part])
                rows.append(attend(query[:, :, part], k, v, layer_window))
                cache.advance(count)
                start += count
            torch.testing.assert_close(torch.cat(rows, dim=2), wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("windows", [[None] * 3, [5] * 3, [5, None, 5], [None, 5, 7]])
def test_stored_bytes(windows):
    """One layer: 2 heads x 4 dims x 4 B x 2 (K and V) = 64 B a token; a window layer holds at most its window."""
    for _, cache in caches(windows, 12):
        for count in (7, 1, 1, 1, 1, 1):
            for layer in range(3):
                cache.update(layer, torch.randn(1, 2, count, 4), torch.randn(1, 2, count, 4))
            cache.advance(count)
        wanted = sum(64 * min(12, window or 12) for window in windows)
        assert storage_bytes(cache.tensors()) == view_bytes(cache.tensors()) == wanted
        assert cache.length == 12


def test_a_cache_never_keeps_a_view_of_the_projection():
    fused = torch.randn(1, 5, 8, 4).transpose(1, 2)
    _, keys, values = torch.split(fused, [4, 2, 2], dim=1)
    for _, cache in caches([None], 5):
        cache.update(0, keys, values)
        assert storage_bytes(cache.tensors()) == 2 * 5 * 2 * 4 * 4


def test_static_layers_of_one_window_share_two_tensors():
    cache = StaticCache([None, 5, None, 5], 1, 2, 4, 12, torch.float32, CPU)
    assert [tuple(tensor.shape) for tensor in cache.tensors()] == [(2, 1, 2, 12, 4)] * 2 + [(2, 1, 2, 5, 4)] * 2
