"""What an engine lets devices share, and how it cuts layers into pipeline stages. Each engine's file names its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

#: (layers, stages) -> layers of each stage, summing to all
Stages = Callable[[int, int], tuple[int, ...]]


class SharingRule(NamedTuple):
    """`stages` None: no pipeline; `mixed_stages`: also where layers are of several kinds. `experts` are spread over all ranks of a
    stage, within the tensor ranks, or over any. `vocab_multiple`: rows of the tables are padded to a multiple of it, and the ranks
    must divide them; `words_by_attention`: the input table is divided as heads are. `tables_on_host`: the input table stays in host
    memory; `output_last`: the output is offloaded after all layers. `whole_blocks`: blocks of a quantised file must not be cut.
    `even_tokens`: each context rank holds as many tokens as the fullest. `one_pool`: a drafter's layers are laid out together with
    the model's. `gap` says why an engine shares nothing.
    """

    tensor: bool = False
    stages: Stages | None = None
    mixed_stages: bool = True
    experts: Literal["", "any", "all", "inside"] = ""
    replicas: bool = True
    data_attention: bool = False
    context: bool = False
    vocab_multiple: int = 1
    tables_on_host: bool = False
    output_last: bool = False
    words_by_attention: bool = False
    whole_blocks: bool = False
    even_tokens: bool = False
    one_pool: bool = False
    gap: str = ""


def more_in_first(layers: int, stages: int) -> tuple[int, ...]:
    """TensorRT-LLM (`Mapping.pp_layers`): the first stages take one more each."""
    base, rest = divmod(layers, stages)
    return tuple(base + (stage < rest) for stage in range(stages))


def more_in_last(layers: int, stages: int) -> tuple[int, ...]:
    """SGLang 0.5 (`get_pp_indices`): the last stages take one more each."""
    base, rest = divmod(layers, stages)
    return tuple(base + (stage >= stages - rest) for stage in range(stages))


def more_in_middle(layers: int, stages: int) -> tuple[int, ...]:
    """vLLM (`get_pp_indices`): one more each from the stage before the last backwards, since the last one has the head."""
    base, rest = divmod(layers, stages)
    return tuple(base + (stages - 1 - rest <= stage < stages - 1) for stage in range(stages))


def by_equal_memory(layers: int, stages: int) -> tuple[int, ...]:
    """llama.cpp on devices with equally much free: the output counts as one more layer, which the last device has.

    Layer i of L goes to device floor(i x devices / (L + 1)) (`load_tensors`, its split points of equal parts).
    """
    counts = [0] * stages
    for layer in range(layers):
        counts[layer * stages // (layers + 1)] += 1
    return tuple(counts)


def ceil_div(amount: int, by: int) -> int:
    return -(-amount // by)
