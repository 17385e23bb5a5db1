"""What a layer must remember, one record a kind. A record answers for n tokens of one sequence in one layer.

Every record has the same questions: bytes that must be kept for n tokens (`needed_bytes`), constant state (`state_bytes`),
what one decode step reads and writes, and the FLOPs of its scores, states and sums. Matrices are counted elsewhere.
Sources of the formulas: the papers and model code of each family; checked against the caches that transformers builds.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kvcli.dtypes import DType, KvTypes


class CacheRecord(Protocol):
    """`kind` is the Hugging Face layer type. Tokens include the newest one; bytes are of one sequence and one layer."""

    @property
    def kind(self) -> str: ...

    @property
    def window_tokens(self) -> int | None: ...

    def needed_bytes(self, tokens: int, kv: KvTypes) -> int:
        """What attention must keep when `tokens` are in the cache. Raises BadInput for types whose blocks do not fit a row."""

    def state_bytes(self, dtype: DType, encoder_tokens: int) -> int:
        """What does not grow: recurrent and convolution states, cross-attention keys and values."""

    def read_bytes(self, tokens: int, kv: KvTypes) -> int:
        """What a step at `tokens` reads of the needed bytes."""

    def written_bytes(self, kv: KvTypes) -> int:
        """What a step adds, before a window drops anything."""

    def step_flops(self, tokens: int, encoder_tokens: int) -> int:
        """FLOPs of one decode step beside the matrices."""

    def pass_flops(self, cached_tokens: int, new_tokens: int, encoder_tokens: int) -> int:
        """FLOPs of a causal pass over `new_tokens` after `cached_tokens`, beside the matrices."""

    def seen_tokens(self, prompt_tokens: int, wanted_tokens: int) -> int:
        """Last tokens of a prompt whose rows of this layer its last `wanted_tokens` outputs need."""

    def divides(self, ranks: int) -> bool:
        """Whether so many tensor-parallel ranks can share the layer."""

    def of_rank(self, ranks: int) -> CacheRecord:
        """What one of the ranks keeps, who share it by heads: latent rows are whole on each, KV heads at least one."""


def heads_divide(heads: int, kv_heads: int, ranks: int) -> bool:
    """Query heads must divide; KV heads too, or the ranks by them, who then keep copies."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def heads_of_rank(heads: int, kv_heads: int, ranks: int) -> tuple[int, int]:
    return heads // ranks, max(1, kv_heads // ranks)


def window_seen(prompt: int, wanted: int, window: int | None) -> int:
    """Tokens that the last `wanted` of a prompt look at: all, or those of the windows that end at each."""
    return prompt if window is None else min(prompt, wanted + window - 1)


def window_pairs(cached: int, new: int, window: int | None) -> int:
    """Query-key pairs of a causal pass: the sum of min(n, w) for n from cached + 1 to cached + new."""
    last = cached + new
    width = last if window is None else window
    growing = max(0, min(last, width) - cached)
    return growing * (2 * cached + growing + 1) // 2 + (new - growing) * width


def chunk_pairs(cached: int, new: int, chunk: int) -> int:
    """The same where visibility restarts at every multiple of `chunk`."""

    def total(tokens: int) -> int:
        full, rest = divmod(tokens, chunk)
        return full * chunk * (chunk + 1) // 2 + rest * (rest + 1) // 2

    return total(cached + new) - total(cached)


def entry_sum(tokens: int, ratio: int, most: int | None) -> int:
    """The sum of min(floor(n / ratio), most) for n from 1 to `tokens`."""
    grown = tokens if most is None else min(tokens, ratio * most)
    full, rest = divmod(grown, ratio)
    return ratio * full * (full - 1) // 2 + full * (rest + 1) + (tokens - grown) * (most or 0)


class Attention(NamedTuple):
    """Softmax attention over cached keys and values.

    `window_tokens` and `chunk_tokens` count the tokens a query sees, itself included; None means all. `index_dim` is an extra key a
    token for the choice of blocks (MiniMax-M3), scored by `index_heads`, one score for `index_ratio` tokens; `read_tokens` bounds the
    keys and values such a layer reads. A layer with `owns_cache` False attends over an earlier layer's keys and values.
    `transformers_heads` and `transformers_keeps` say where the transformers library stores other heads (Falcon-40B repeats them) or
    other tokens (-1: its rule, window - 1; 0: all; k: at most k; -2: none, it recomputes) than the architecture needs.
    `transformers_token_bytes` are what that library keeps for a token beside keys and values. `token_flops` are those of a token in
    matrices that another layer counts as its own (HRM runs one stack several times).
    """

    num_attention_heads: int
    num_key_value_heads: int
    key_dim: int
    value_dim: int
    window_tokens: int | None = None
    chunk_tokens: int | None = None
    index_dim: int = 0
    index_heads: int = 0
    read_tokens: int | None = None
    owns_cache: bool = True
    transformers_heads: int = 0
    transformers_keeps: int = -1
    token_flops: int = 0
    index_ratio: int = 1
    transformers_token_bytes: int = 0

    @property
    def kind(self) -> str:
        if not self.owns_cache:
            return "shared_attention"
        if self.chunk_tokens is not None:
            return "chunked_attention"
        return "full_attention" if self.window_tokens is None else "sliding_attention"

    def divides(self, ranks: int) -> bool:
        return heads_divide(self.num_attention_heads, self.num_key_value_heads, ranks)

    def of_rank(self, ranks: int) -> Attention:
        """Its share of the heads; an index key is of all heads and whole."""
        heads, kv_heads = heads_of_rank(self.num_attention_heads, self.num_key_value_heads, ranks)
        return self._replace(num_attention_heads=heads, num_key_value_heads=kv_heads, token_flops=self.token_flops // ranks)

    def visible_tokens(self, tokens: int) -> int:
        """Tokens the newest query sees: all, min(n, w), or those since the last chunk border."""
        if self.chunk_tokens is not None and tokens > 0:
            return (tokens - 1) % self.chunk_tokens + 1
        return tokens if self.window_tokens is None else min(tokens, self.window_tokens)

    def visible_pairs(self, cached_tokens: int, new_tokens: int) -> int:
        """Query-key pairs of a causal pass over `new_tokens` after `cached_tokens`: the sum of visible tokens."""
        if self.chunk_tokens is not None:
            return chunk_pairs(cached_tokens, new_tokens, self.chunk_tokens)
        return window_pairs(cached_tokens, new_tokens, self.window_tokens)

    def token_bytes(self, kv: KvTypes, heads: int = 0) -> int:
        """One token: heads x (key row + value row), without the index key."""
        return (heads or self.num_key_value_heads) * (kv.key.bytes_for(self.key_dim) + kv.value.bytes_for(self.value_dim))

    def index_bytes(self, kv: KvTypes) -> int:
        return kv.key.bytes_for(self.index_dim) if self.index_dim else 0

    @property
    def pair_flops(self) -> int:
        """One query against one visible token: 2 A (dk + dv), scores and weighted sum."""
        return 2 * self.num_attention_heads * (self.key_dim + self.value_dim)

    def needed_bytes(self, tokens: int, kv: KvTypes) -> int:
        if not self.owns_cache:
            return 0
        return self.token_bytes(kv) * self.visible_tokens(tokens) + self.index_bytes(kv) * tokens

    def state_bytes(self, dtype: DType, encoder_tokens: int) -> int:
        return 0

    def seen_tokens(self, prompt_tokens: int, wanted_tokens: int) -> int:
        if not self.owns_cache:
            return wanted_tokens
        if self.chunk_tokens is not None:
            return prompt_tokens - (prompt_tokens - wanted_tokens) // self.chunk_tokens * self.chunk_tokens
        return window_seen(prompt_tokens, wanted_tokens, self.window_tokens)

    def read_bytes(self, tokens: int, kv: KvTypes) -> int:
        if not self.owns_cache:
            return 0  # what it attends over was read for the layer that owns it
        return self.token_bytes(kv) * self._attended(self.visible_tokens(tokens)) + self.index_bytes(kv) * tokens

    def _attended(self, visible: int) -> int:
        return visible if self.read_tokens is None else min(visible, self.read_tokens)

    def written_bytes(self, kv: KvTypes) -> int:
        return self.token_bytes(kv) + self.index_bytes(kv) if self.owns_cache else 0

    def step_flops(self, tokens: int, encoder_tokens: int) -> int:
        seen = self._attended(self.visible_tokens(tokens))
        index = 2 * self.index_heads * self.index_dim * (tokens // self.index_ratio)
        return self.pair_flops * seen + index + self.token_flops

    def pass_flops(self, cached_tokens: int, new_tokens: int, encoder_tokens: int) -> int:
        pairs = self.visible_pairs(cached_tokens, new_tokens)
        if self.read_tokens is not None:
            pairs = min(pairs, window_pairs(cached_tokens, new_tokens, self.read_tokens))
        scores = entry_sum(cached_tokens + new_tokens, self.index_ratio, None) - entry_sum(cached_tokens, self.index_ratio, None)
        index = 2 * self.index_heads * self.index_dim * scores
        return self.pair_flops * pairs + index + self.token_flops * new_tokens
