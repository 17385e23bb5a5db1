"""Cache records that do not grow with the tokens: recurrent and convolution states, and cross-attention."""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

from kvcli.dtypes import DType, KvTypes
from kvcli.model.cache_records import heads_divide, heads_of_rank


class Recurrent(NamedTuple):
    """A state of fixed size: convolution columns, recurrent elements, and what else a mixer carries from token to token.

    A convolution of kernel K needs its last K - 1 columns. `state_dtype` and `conv_dtype` None mean the model's dtype;
    `plain_elements` are kept in the model's dtype. `transformers_columns` and `transformers_bytes` say where that library
    keeps something else: its columns (-1: K), and extra bytes (counters, or negative for states outside its cache object).
    Ranks share the state by `heads` (0: nobody is known to share it); `group_channels` of the convolution belong to the B and C
    of `groups` groups (Mamba-2), of which each rank has at least one whole.
    """

    kind: str
    conv_channels: int = 0
    conv_kernel: int = 0
    state_elements: int = 0
    state_dtype: DType | None = None
    conv_dtype: DType | None = None
    plain_elements: int = 0
    transformers_columns: int = -1
    transformers_bytes: int = 0
    heads: int = 0
    groups: int = 0
    group_channels: int = 0

    @property
    def window_tokens(self) -> int | None:
        return None

    def divides(self, ranks: int) -> bool:
        return ranks == 1 or (self.heads > 0 and self.heads % ranks == 0 and not self.plain_elements)

    def of_rank(self, ranks: int) -> Recurrent:
        """Heads / ranks; B and C of groups / ranks, or of one group where the groups do not divide."""
        shared = self.group_channels // ranks if self.groups and self.groups % ranks == 0 else 0
        if self.groups and not shared:
            shared = self.group_channels // self.groups
        return self._replace(
            conv_channels=(self.conv_channels - self.group_channels) // ranks + shared,
            state_elements=self.state_elements // ranks,
            heads=self.heads // ranks,
            groups=self.groups and max(1, self.groups // ranks),
            group_channels=shared,
        )

    def seen_tokens(self, prompt_tokens: int, wanted_tokens: int) -> int:
        """The state has seen every token."""
        return prompt_tokens

    def needed_bytes(self, tokens: int, kv: KvTypes) -> int:
        return 0

    def bytes_with_columns(self, columns: int, dtype: DType) -> int:
        conv = (self.conv_dtype or dtype).bytes_for(self.conv_channels * columns)
        return conv + (self.state_dtype or dtype).bytes_for(self.state_elements) + dtype.bytes_for(self.plain_elements)

    def state_bytes(self, dtype: DType, encoder_tokens: int) -> int:
        return self.bytes_with_columns(max(0, self.conv_kernel - 1), dtype)

    def read_bytes(self, tokens: int, kv: KvTypes) -> int:
        return 0

    def written_bytes(self, kv: KvTypes) -> int:
        return 0

    def step_flops(self, tokens: int, encoder_tokens: int) -> int:
        """Decay, update and read-out of each state element, and the convolution."""
        return 6 * self.state_elements + 2 * self.conv_channels * self.conv_kernel

    def pass_flops(self, cached_tokens: int, new_tokens: int, encoder_tokens: int) -> int:
        """Chunked forms need fewer operations for an element than a step: at least its update and its read-out.

        Short passes can do without the state, as attention over pairs of tokens: of H heads with keys of k and values of v elements
        n^2 H (k + v), which is at least 2 n^2 sqrt(H x state).
        """
        pairs = 2 * new_tokens * isqrt(max(1, self.heads) * self.state_elements)
        return new_tokens * (min(4 * self.state_elements, pairs) + 2 * self.conv_channels * self.conv_kernel)


class Cross(NamedTuple):
    """Attention over an encoder's output: keys and values of `encoder_tokens`, constant while decoding.

    `default_tokens` is what the encoder gives where nothing was said (Whisper pads every input to 1500 frames); 0: unknown.
    """

    num_attention_heads: int
    num_key_value_heads: int
    key_dim: int
    value_dim: int
    default_tokens: int = 0

    @property
    def kind(self) -> str:
        return "cross_attention"

    @property
    def window_tokens(self) -> int | None:
        return None

    def divides(self, ranks: int) -> bool:
        return heads_divide(self.num_attention_heads, self.num_key_value_heads, ranks)

    def of_rank(self, ranks: int) -> Cross:
        heads, kv_heads = heads_of_rank(self.num_attention_heads, self.num_key_value_heads, ranks)
        return self._replace(num_attention_heads=heads, num_key_value_heads=kv_heads)

    def seen_tokens(self, prompt_tokens: int, wanted_tokens: int) -> int:
        """It looks at the encoder's tokens, at none of the prompt's."""
        return wanted_tokens

    def needed_bytes(self, tokens: int, kv: KvTypes) -> int:
        return 0

    def state_bytes(self, dtype: DType, encoder_tokens: int) -> int:
        tokens = encoder_tokens or self.default_tokens
        return dtype.bytes_for(self.num_key_value_heads * (self.key_dim + self.value_dim) * tokens)

    def read_bytes(self, tokens: int, kv: KvTypes) -> int:
        return 0

    def written_bytes(self, kv: KvTypes) -> int:
        return 0

    def step_flops(self, tokens: int, encoder_tokens: int) -> int:
        return 2 * self.num_attention_heads * (self.key_dim + self.value_dim) * (encoder_tokens or self.default_tokens)

    def pass_flops(self, cached_tokens: int, new_tokens: int, encoder_tokens: int) -> int:
        return new_tokens * self.step_flops(0, encoder_tokens)
