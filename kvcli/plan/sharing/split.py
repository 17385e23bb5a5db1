"""How devices share a model: the degrees of each kind of parallelism."""

from __future__ import annotations

from typing import NamedTuple


class Split(NamedTuple):
    """`tensor` x `pipeline` x `data` devices.

    `experts`: over how many ranks routed experts are spread whole; `attention_data`: groups within the tensor ranks that keep
    sequences of their own; `context`: ranks among which the tokens of a sequence are dealt.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: int = 1
    attention_data: int = 1
    context: int = 1

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def attention_ranks(self) -> int:
        """Ranks that share the heads of one sequence."""
        return self.tensor // self.attention_data

    @property
    def expert_ranks(self) -> int:
        """Ranks that share one expert's columns."""
        return max(1, self.tensor // self.experts)

    @property
    def alone(self) -> bool:
        """Whether nothing at all is shared."""
        return self == (1,) * len(self)


ALONE = Split()
