"""Cache records of layers that keep one compressed row for all heads: MLA with its indexers, and DeepSeek-V4."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.dtypes import DType, KvTypes
from kvcli.model.cache_records import entry_sum, window_pairs, window_seen


def pooled_pairs(cached: int, new: int, pool: int, most: int) -> int:
    """Pairs where a query sees its open pool whole, and of the closed pools before it at most `most` tokens."""

    def total(tokens: int) -> int:
        below = min(tokens, most + pool - 1)
        rest = [last // pool * (pool * (pool - 1) // 2) + last % pool * (last % pool + 1) // 2 for last in (below, tokens)]
        return below * (below + 1) // 2 + (tokens - below) * most + rest[1] - rest[0]

    return total(cached + new) - total(cached)


class Latent(NamedTuple):
    """Multi-head latent attention: one compressed row a token for all heads, `rank` + `rope_dim` elements, no values.

    `nope_dim`, `value_dim` are those of an expanded head, for FLOPs. An indexer (DeepSeek sparse attention) caches
    `index_dim` elements a token in layers that own one, and bounds the rows read to `index_topk`; `index_dtype` is the type
    in which it is kept where that is not the cache's.
    A layer with `owns_cache` False attends over an earlier layer's rows. With `index_pool` p > 1 (GLM-5.3) a closed pool of p
    tokens has one index key; a token of the open pool has a key and a gate, and is always attended over.
    """

    num_attention_heads: int
    rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    window_tokens: int | None = None
    index_dim: int = 0
    index_heads: int = 0
    index_topk: int | None = None
    index_dtype: DType | None = None
    owns_cache: bool = True
    index_pool: int = 1

    @property
    def kind(self) -> str:
        if not self.owns_cache:
            return "shared_latent_attention"
        return "latent_attention" if self.window_tokens is None else "latent_sliding_attention"

    def divides(self, ranks: int) -> bool:
        return self.num_attention_heads % ranks == 0

    def of_rank(self, ranks: int) -> Latent:
        """A share of the query heads, and all rows: every head attends over them."""
        return self._replace(num_attention_heads=self.num_attention_heads // ranks)

    def visible_tokens(self, tokens: int) -> int:
        return tokens if self.window_tokens is None else min(tokens, self.window_tokens)

    def seen_tokens(self, prompt_tokens: int, wanted_tokens: int) -> int:
        return window_seen(prompt_tokens, wanted_tokens, self.window_tokens) if self.owns_cache else wanted_tokens

    def row_bytes(self, kv: KvTypes) -> int:
        """One token's latent: there is no value row, so the key type holds all of it."""
        return kv.key.bytes_for(self.rank + self.rope_dim) if self.owns_cache else 0

    def index_bytes(self, kv: KvTypes) -> int:
        return (self.index_dtype or kv.key).bytes_for(self.index_dim) if self.index_dim else 0

    def index_rows(self, tokens: int) -> int:
        """Index keys, and the gates that open pools need."""
        return tokens if self.index_pool == 1 else tokens // self.index_pool + 2 * (tokens % self.index_pool)

    def needed_bytes(self, tokens: int, kv: KvTypes) -> int:
        return self.row_bytes(kv) * self.visible_tokens(tokens) + self.index_bytes(kv) * self.index_rows(tokens)

    def state_bytes(self, dtype: DType, encoder_tokens: int) -> int:
        return 0

    def _attended(self, visible: int) -> int:
        still_open = visible % self.index_pool
        return visible if self.index_topk is None else min(visible - still_open, self.index_topk) + still_open

    def read_bytes(self, tokens: int, kv: KvTypes) -> int:
        return self.row_bytes(kv) * self._attended(self.visible_tokens(tokens)) + self.index_bytes(kv) * self.index_rows(tokens)

    def written_bytes(self, kv: KvTypes) -> int:
        return self.row_bytes(kv) + self.index_bytes(kv) * (1 if self.index_pool == 1 else 2)

    @property
    def absorbed_pair_flops(self) -> int:
        return 2 * self.num_attention_heads * (2 * self.rank + self.rope_dim)

    @property
    def expanded_pair_flops(self) -> int:
        return 2 * self.num_attention_heads * (self.nope_dim + self.rope_dim + self.value_dim)

    @property
    def expansion(self) -> int:
        """Elements of the matrix that makes a row's expanded keys and values, or that a query absorbs."""
        return self.rank * self.num_attention_heads * (self.nope_dim + self.value_dim)

    def step_flops(self, tokens: int, encoder_tokens: int) -> int:
        """Absorbed; expanded where the only row is the newest token's own, which costs no more than absorbing its query."""
        seen = self._attended(self.visible_tokens(tokens))
        pair = self.absorbed_pair_flops if seen > 1 else min(self.absorbed_pair_flops, self.expanded_pair_flops)
        return pair * seen + 2 * self.index_heads * self.index_dim * (tokens // self.index_pool)

    def pass_flops(self, cached_tokens: int, new_tokens: int, encoder_tokens: int) -> int:
        """The cheaper of the two forms."""
        pairs = window_pairs(cached_tokens, new_tokens, self.window_tokens)
        if self.index_topk is not None:
            pairs = min(pairs, pooled_pairs(cached_tokens, new_tokens, self.index_pool, self.index_topk))
        keys = entry_sum(cached_tokens + new_tokens, self.index_pool, None) - entry_sum(cached_tokens, self.index_pool, None)
        index = 2 * self.index_heads * self.index_dim * keys
        return min(self.absorbed_pair_flops, self.expanded_pair_flops) * pairs + index


class Compressed(NamedTuple):
    """DeepSeek-V4: a window of raw entries, and one compressed entry for every `ratio` tokens (0: the window alone).

    Keys and values are one tensor of `dim` elements. `index_dim` elements an entry belong to the indexer of CSA layers,
    which bounds the entries read to `index_topk`. Until an entry closes its tokens' projections and gates must be kept; the
    entries of CSA overlap, so the last closed one's tokens are kept too.
    """

    num_attention_heads: int
    dim: int
    window_tokens: int | None
    ratio: int = 0
    index_dim: int = 0
    index_heads: int = 0
    index_topk: int | None = None

    @property
    def kind(self) -> str:
        if not self.ratio:
            return "sliding_attention"
        return "compressed_sparse_attention" if self.index_dim else "heavily_compressed_attention"

    def divides(self, ranks: int) -> bool:
        return self.num_attention_heads % ranks == 0

    def of_rank(self, ranks: int) -> Compressed:
        """A share of the query heads, and all rows: every head attends over them."""
        return self._replace(num_attention_heads=self.num_attention_heads // ranks)

    def visible_tokens(self, tokens: int) -> int:
        return tokens if self.window_tokens is None else min(tokens, self.window_tokens)

    def seen_tokens(self, prompt_tokens: int, wanted_tokens: int) -> int:
        """Entries reach back to the beginning."""
        return window_seen(prompt_tokens, wanted_tokens, None if self.ratio else self.window_tokens)

    def entries(self, tokens: int) -> int:
        return tokens // self.ratio if self.ratio else 0

    def entry_bytes(self, kv: KvTypes) -> int:
        return kv.key.bytes_for(self.dim) + (kv.key.bytes_for(self.index_dim) if self.index_dim else 0)

    def open_token_bytes(self, kv: KvTypes) -> int:
        return self._open_token_rows * self.entry_bytes(kv)

    @property
    def _open_token_rows(self) -> int:
        """A token of an entry not yet closed has a row of values and one of gates, in CSA of two streams each."""
        return (4 if self.index_dim else 2) if self.ratio else 0

    def open_rows(self, tokens: int) -> int:
        """Rows of open tokens, and in CSA one stream's values and gates of the tokens of the last closed entry."""
        if not self.ratio:
            return 0
        overlap = 2 * self.ratio if self.index_dim and tokens >= self.ratio else 0
        return tokens % self.ratio * self._open_token_rows + overlap

    def open_bytes(self, tokens: int, kv: KvTypes) -> int:
        return self.open_rows(tokens) * self.entry_bytes(kv)

    def needed_bytes(self, tokens: int, kv: KvTypes) -> int:
        entries = self.entry_bytes(kv) * self.entries(tokens)
        return kv.key.bytes_for(self.dim) * self.visible_tokens(tokens) + entries + self.open_bytes(tokens, kv)

    def state_bytes(self, dtype: DType, encoder_tokens: int) -> int:
        return 0

    def _attended(self, entries: int) -> int:
        return entries if self.index_topk is None else min(entries, self.index_topk)

    def read_bytes(self, tokens: int, kv: KvTypes) -> int:
        entries = self.entries(tokens)
        index = kv.key.bytes_for(self.index_dim) * entries if self.index_dim else 0
        return kv.key.bytes_for(self.dim) * (self.visible_tokens(tokens) + self._attended(entries)) + index

    def written_bytes(self, kv: KvTypes) -> int:
        return kv.key.bytes_for(self.dim) + self.open_token_bytes(kv)

    @property
    def pair_flops(self) -> int:
        return 4 * self.num_attention_heads * self.dim

    def step_flops(self, tokens: int, encoder_tokens: int) -> int:
        entries = self.entries(tokens)
        return self.pair_flops * (self.visible_tokens(tokens) + self._attended(entries)) + 2 * self.index_heads * self.index_dim * entries

    def pass_flops(self, cached_tokens: int, new_tokens: int, encoder_tokens: int) -> int:
        pairs = window_pairs(cached_tokens, new_tokens, self.window_tokens)
        index = 0
        if self.ratio:
            last = cached_tokens + new_tokens
            all_entries = entry_sum(last, self.ratio, None) - entry_sum(cached_tokens, self.ratio, None)
            pairs += entry_sum(last, self.ratio, self.index_topk) - entry_sum(cached_tokens, self.ratio, self.index_topk)
            index = 2 * self.index_heads * self.index_dim * all_entries
        return self.pair_flops * pairs + index
