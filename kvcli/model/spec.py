"""ModelSpec: everything kvcli knows about a model, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvcli.dtypes import DType
from kvcli.errors import Notice
from kvcli.model.layers import LayerGroup, PredictionBlocks

if TYPE_CHECKING:
    from kvcli.model.quantization import Quantization
    from kvcli.model.weight_parts import WeightParts


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
    """Exact bytes of the weights in a file, read from its header. `dtype` names the type most bytes are stored in.

    MTP blocks and towers are counted apart, in none of the first two numbers. `parts` are the resident bytes by use, `mtp_parts`
    those of the MTP blocks.
    """

    dtype: str
    resident_bytes: int
    read_bytes_per_step: int
    mtp_bytes: int = 0
    tower_bytes: int = 0
    parts: WeightParts | None = None
    mtp_parts: WeightParts | None = None


@dataclass(frozen=True)
class ModelSpec:
    """A decoder: its layers and the parameters around them.

    `order` gives each layer's group. `dtype` is the compute dtype, which the KV cache follows. Counts of parameters:
    `embedding` the input table; `lookups` other tables of which a step reads rows (learned positions, per-layer embeddings);
    `shared` matrices outside the layers that every token is multiplied with, once where several layers use them; `final`
    what is read but not multiplied (final norm); `head` an output matrix of its own, 0 when tied to the input table;
    `head_matrix` the output matrix, tied or not; `encoder_parameters` the encoder that cross-attention looks at and the
    projections of its output to keys and values, which run once a source, not in decode steps. Towers and MTP blocks are
    counted apart, MTP as `mtp`, None where the reader knows none, whatever the file names (`mtp_named`). `first_layer` is the number
    that files give the first layer. `decoder` is None for models the built-in transformer cannot compute. `quantization` is what
    the file's `quantization_config` says.
    """

    name: str
    source: str
    model_type: str
    hidden_size: int
    vocab_size: int
    max_context_tokens: int
    dtype: DType
    groups: tuple[LayerGroup, ...]
    order: tuple[int, ...]
    embedding: int
    head: int
    head_matrix: int
    lookups: int = 0
    shared: int = 0
    final: int = 0
    encoder_parameters: int = 0
    tower_parameters: int = 0
    mtp: PredictionBlocks | None = None
    first_layer: int = 0
    mtp_named: bool = False
    decoder: Decoder | None = None
    tensors: TensorFile | None = None
    quantization: Quantization | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def mtp_parameters(self) -> int:
        return self.mtp.parameters if self.mtp else 0

    @property
    def tied(self) -> bool:
        return self.head == 0

    @property
    def num_hidden_layers(self) -> int:
        return len(self.order)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's window, for models of plain attention."""
        return tuple(self.groups[number].attention.window_tokens for number in self.order)

    @property
    def has_cross_attention(self) -> bool:
        return any(record.kind == "cross_attention" for group in self.groups for record in group.records)

    @cached_property
    def parameters(self) -> int:
        """Unique parameters: a tied matrix counts once."""
        layers = sum(group.count * group.parameters.total for group in self.groups)
        return self.embedding + self.lookups + self.shared + self.final + self.head + self.encoder_parameters + layers

    @cached_property
    def active_parameters(self) -> int:
        """Parameters at work for one token: k experts of E, no input table unless it is also the output head, an encoder."""
        return self.step_parameters + self.encoder_parameters

    @cached_property
    def step_parameters(self) -> int:
        """Parameters one decode step of one token reads: the active ones without an encoder.

        Of the input table and other looked-up tables a step reads one row a sequence, which is left out: it is a floor's
        numerator.
        """
        layers = sum(group.count * group.parameters.active for group in self.groups)
        return layers + self.shared + self.final + (self.embedding if self.tied else self.head)

    @cached_property
    def block_matrices(self) -> int:
        """Parameters of the layers' matrices, all experts included."""
        return sum(group.count * group.parameters.matrices for group in self.groups)

    @cached_property
    def active_matrices(self) -> int:
        """What one token is multiplied with before the head."""
        return self.shared + sum(group.count * group.parameters.active_matrices for group in self.groups)
