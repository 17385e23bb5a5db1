"""Grouped-query attention over whatever the cache returned."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(query: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
    """Attention of `query` [B, A, T, D] over `keys`, `values` [B, G, n, D]; the T queries are the last T of n tokens.

    For T = 1 every key is visible (caches of window layers hold no older ones). Returns [B, A, T, D].
    """
    batch, heads, tokens, dim = query.shape
    kv_heads, visible = keys.shape[1], keys.shape[2]
    if tokens == 1:
        if window is not None and visible > window:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        # the query heads of a group are rows against one K: nothing is repeated
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(grouped, keys, values).reshape(batch, heads, 1, dim)
    grouped_query = heads != kv_heads
    if visible == tokens and (window is None or tokens <= window):
        return F.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=grouped_query)
    mask = causal_mask(tokens, visible, window, query.device)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped_query)


def causal_mask(tokens: int, visible: int, window: int | None, device: torch.device) -> Tensor:
    """True where a query may look: [T, n], the queries being the last T of n tokens."""
    queries = torch.arange(visible - tokens, visible, device=device)[:, None]
    keys = torch.arange(visible, device=device)[None, :]
    mask = keys <= queries
    return mask if window is None else mask & (keys > queries - window)
