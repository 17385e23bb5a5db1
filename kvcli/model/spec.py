"""ModelSpec: everything kvcli knows about a model, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from kvcli.dtypes import DType
from kvcli.errors import Notice
from kvcli.model.layers import LayerGroup


class RopeScaling(NamedTuple):
    """How rotary frequencies are changed for longer contexts. `kind` is the config's `rope_type`."""

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0


class Rope(NamedTuple):
    """Rotary positions. `layout` says which dimensions pair: (i, i + d/2) in "half", (2i, 2i + 1) in "interleaved"."""

    theta: float
    rotary_dim: int
    layout: Literal["half", "interleaved"] = "half"
    scaling: RopeScaling | None = None


class Decoder(NamedTuple):
    """What the built-in transformer needs to compute one layer. Names are those of Hugging Face configs.

    `rope` is None for learned positions. `gated_mlp` is the SwiGLU form with three matrices.
    """

    hidden_size: int
    intermediate_size: int
    head_dim: int
    num_attention_heads: int
    num_key_value_heads: int
    activation: str
    norm: Literal["rms", "layer"]
    norm_eps: float
    rope: Rope | None
    gated_mlp: bool = True
    qk_norm: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False


class TensorFile(NamedTuple):
    """Exact bytes of the weights in a file, read from its header. `dtype` names the type most bytes are stored in."""

    dtype: str
    resident_bytes: int
    read_bytes_per_step: int


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only model.

    `dtype` is the compute dtype, which the KV cache follows. `positions` counts the parameters of a learned position
    table, `head` those of an output matrix of its own (0 when tied to the input table). `windows` holds each layer's
    window. `decoder` is None for models the built-in transformer cannot compute.
    """

    name: str
    source: str
    model_type: str
    hidden_size: int
    vocab_size: int
    max_context_tokens: int
    dtype: DType
    groups: tuple[LayerGroup, ...]
    embedding: int
    positions: int
    final_norm: int
    head: int
    windows: tuple[int | None, ...] = ()
    decoder: Decoder | None = None
    tensors: TensorFile | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def tied(self) -> bool:
        return self.head == 0

    @property
    def num_hidden_layers(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def last_layer(self) -> LayerGroup:
        """The group that holds the model's last layer: `windows` tells it where groups interleave."""
        if len(self.groups) == 1:
            return self.groups[0]
        return next(group for group in self.groups if group.attention.window_tokens == self.windows[-1])

    @cached_property
    def parameters(self) -> int:
        """Unique parameters: a tied matrix counts once."""
        layers = sum(group.count * group.parameters.total for group in self.groups)
        return self.embedding + self.positions + layers + self.final_norm + self.head

    @property
    def active_parameters(self) -> int:
        """Parameters one decode step reads: no input table unless it is also the output head, no position table.

        Of those two tables a step reads one row a sequence, which is left out: it is a floor's numerator.
        """
        return self.parameters - self.positions - (0 if self.tied else self.embedding)

    @property
    def block_matrices(self) -> int:
        """Parameters of the layers' matrices: what one token is multiplied with, the head aside."""
        return sum(group.count * group.parameters.matrices for group in self.groups)

    @property
    def head_matrix(self) -> int:
        """Parameters of the output projection, tied or not."""
        return self.hidden_size * self.vocab_size
