"""Cells of llama.cpp's buffers, and why they are more than is needed. Bytes are of one layer and all slots."""

from __future__ import annotations

from typing import NamedTuple

from kvcli import dtypes
from kvcli.dtypes import DType, KvTypes
from kvcli.model.latent_records import Compressed
from kvcli.model.state_records import Recurrent
from kvcli.plan.storage.held import Held

PADDING = "padding of cells"
SLOTS = "slots without a sequence"
FULL = "windows kept in full"
ROOM = "windows with room for a batch"
STATES = "states in float32"
ROLLBACK = "states to roll back to"
COMPRESSOR = "compressor states"


def pad(tokens: int, multiple: int = 256) -> int:
    return -(-tokens // multiple) * multiple


class Layout(NamedTuple):
    """`sequences` of `context_tokens` tokens in `slots`; every buffer is of `streams` x cells.

    `shared_tokens`: the size of the one buffer where it is given, in which each slot may take all that others leave.
    """

    slots: int
    sequences: int
    context_tokens: int
    unified: bool = False
    ubatch: int = 512
    pad: int = 256
    shared_tokens: int | None = None

    @property
    def streams(self) -> int:
        return 1 if self.unified else self.slots

    @property
    def cells(self) -> int:
        """Cells of a stream: n_ctx whole where unified, else n_ctx / slots; n_ctx is context_tokens x slots."""
        whole = self.shared_tokens or self.context_tokens * self.slots
        return pad(whole if self.unified else self.context_tokens, self.pad)

    def window_cells(self, window_tokens: int, unified: bool) -> int:
        """Cells of a stream of a window cache: the window of each sequence in it and the batch being computed."""
        return pad(min(self.cells, window_tokens * (self.slots if unified else 1) + self.ubatch))


def cells_of(layout: Layout, row_bytes: int, visible_tokens: int, window_tokens: int | None = None) -> Held:
    """A buffer of rows. `visible_tokens` of each sequence are needed; `window_tokens` None keeps all tokens."""
    n, slots, streams = layout.context_tokens, layout.slots, layout.streams
    empty = (slots - layout.sequences) * visible_tokens * row_bytes
    cells = layout.cells if window_tokens is None else layout.window_cells(window_tokens, layout.unified)
    if cells < layout.cells:
        room = (streams * cells - slots * visible_tokens) * row_bytes
        return Held(streams * cells * row_bytes, ((SLOTS, empty), (ROOM, room)))
    if layout.shared_tokens:
        free, hidden = layout.shared_tokens - layout.sequences * n, layout.sequences * (n - visible_tokens)
        padding = cells - layout.shared_tokens
        return Held(cells * row_bytes, ((SLOTS, free * row_bytes), (FULL, hidden * row_bytes), (PADDING, padding * row_bytes)))
    hidden = slots * (n - visible_tokens) * row_bytes
    padding = (streams * cells - slots * n) * row_bytes
    return Held(streams * cells * row_bytes, ((SLOTS, empty), (FULL, hidden), (PADDING, padding)))


def beside(layout: Layout, row_bytes: int, cause: str) -> Held:
    """Rows for every cell that attention needs nothing of."""
    size = layout.streams * layout.cells * row_bytes
    return Held(size, ((cause, size),))


def recurrent(layout: Layout, record: Recurrent, dtype: DType, rollback: int) -> Held:
    """Convolution columns (K - 1) and state in float32, a row for each slot and for each state to go back to."""
    columns = max(0, record.conv_kernel - 1)
    row = dtypes.FP32.bytes_for(record.conv_channels * columns + record.state_elements)
    needed = record.state_bytes(dtype, 0)
    rows = layout.slots * (1 + rollback)
    causes = (
        (SLOTS, (layout.slots - layout.sequences) * needed),
        (STATES, layout.slots * (row - needed)),
        (ROLLBACK, layout.slots * rollback * row),
    )
    return Held(rows * row, causes)


def compressed(layout: Layout, record: Compressed, kv: KvTypes, swa_full: bool) -> Held:
    """DeepSeek-V4: raw rows, entries and compressor states, in a stream for each slot even where others are unified.

    A compressor keeps the projections and gates of one entry's tokens, in CSA of two overlapping entries and two streams.
    """
    n, slots, cells = layout.context_tokens, layout.slots, layout.cells
    own = layout._replace(unified=False)
    window = record.window_tokens
    raw_cells = cells if swa_full or window is None else layout.window_cells(window, unified=False)
    visible = record.visible_tokens(n)
    raw, entry = kv.key.bytes_for(record.dim), record.entry_bytes(kv)
    total = own.streams * raw_cells * raw
    causes = [
        (SLOTS, (slots - layout.sequences) * record.needed_bytes(n, kv)),
        (ROOM if raw_cells < cells else PADDING if visible == n else FULL, slots * (raw_cells - visible) * raw),
    ]
    if record.ratio:
        entry_cells = pad(max(1, -(-cells // record.ratio)))
        overlap = 2 if record.index_dim else 1
        state = dtypes.FP32.bytes_for(2 * overlap * record.ratio * overlap * (record.dim + record.index_dim))
        total += slots * (entry_cells * entry + state)
        causes.append((PADDING, slots * (entry_cells - record.entries(n)) * entry))
        causes.append((COMPRESSOR, slots * (state - record.open_bytes(n, kv))))
    return Held(total, tuple(causes))
