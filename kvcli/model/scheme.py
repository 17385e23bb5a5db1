"""How quantised weights lie in a file: one record for all formats, and the checks that their readers share."""

from __future__ import annotations

from typing import NamedTuple

from kvcli.errors import KvcliError
from kvcli.model.fields import Fields
from kvcli.model.kept_modules import Kept


class NotUnderstood(KvcliError):
    """A method or a field that kvcli has no rule for. Never shown as an error: it becomes a notice."""


class Mixed(NamedTuple):
    """`module` is a path in the file, `*` standing for `experts` numbered ones; 0 of them where it is a whole module."""

    module: str
    scheme: Scheme
    experts: int = 0


class Scheme(NamedTuple):
    """One rule for all quantised matrices of `rows` outputs x `columns` inputs; sizes are bytes.

    A weight has `bits`. A scale of `scale_bytes` stands for `block_rows` x `block_columns` weights (0: all rows, or columns).
    `zero_bits` is the packed zero point beside each scale. `row_index` is 4 bytes an input (GPTQ's g_idx), `tensor_bytes` what
    each matrix has once. `flat` blocks run over all elements in order (bitsandbytes), and `nested` of their scales share one
    more float32. `packed_rows`: rows are packed into 32-bit words (else columns are). `head`: the output matrix is quantised
    too unless kept. `experts_only`: nothing but routed experts is. A symmetric file's zeros and an index in plain order are
    stored, but no step needs to read them: `zeros_read`, `index_read`. `mixed`: the file names each quantised module with a
    scheme of its own, and nothing else is quantised.
    """

    method: str
    label: str
    bits: int
    units: str
    kept: Kept
    scale_bytes: int = 0
    block_rows: int = 1
    block_columns: int = 0
    zero_bits: int = 0
    row_index: bool = False
    tensor_bytes: int = 0
    flat: bool = False
    nested: int = 0
    packed_rows: bool = False
    whole_groups: bool = False
    head: bool = False
    experts_only: bool = False
    zeros_read: bool = True
    index_read: bool = True
    mixed: tuple[Mixed, ...] = ()

    def needed(self) -> Scheme:
        """What a step must read: a floor leaves out what an engine may drop, and what is once a matrix stays in caches."""
        zeros = self.zero_bits if self.zeros_read else 0
        return self._replace(zero_bits=zeros, row_index=self.row_index and self.index_read, tensor_bytes=0)


def only(config: Fields, *known: str, ignored: tuple[str, ...] = ()) -> None:
    """A key that is set and has no rule might change the layout."""
    for key, value in config.values.items():
        if key not in known and key not in ignored and key != "quant_method" and value not in (None, False, [], {}):
            raise NotUnderstood(f"kvcli has no rule for its field {str(key)[:40]!r}")


def must(config: Fields, key: str, *values: object) -> None:
    if config.values.get(key, values[0]) not in values:
        raise NotUnderstood(f"kvcli has no rule for {key} {str(config.values[key])[:30]!r}")
