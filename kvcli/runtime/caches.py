"""KV caches behind one small protocol: `none` recomputes, `dynamic` concatenates, `static` is allocated once.

Keys and values are [batch, KV heads, tokens, head_dim] and hold rotated keys. Window layers keep the last w tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """What a layer stores and gets back. `length` tokens of each sequence are held."""

    length: int

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the keys and values of T new tokens and returns all that the new tokens may see.

        For T > 1 the returned tokens are in order and end with the newest. For T = 1 every returned token is visible and
        the order may differ, which attention does not notice.
        """

    def advance(self, tokens: int) -> None:
        """Called once all layers have been updated."""

    def tensors(self) -> Iterator[Tensor]:
        """The tensors behind the cache; their storages are what it costs."""


class NoCache:
    """Keeps nothing: every step runs over the whole sequence."""

    def __init__(self) -> None:
        self.length = 0

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values

    def advance(self, tokens: int) -> None:
        pass

    def tensors(self) -> Iterator[Tensor]:
        return iter(())


class DynamicCache:
    """Grows by concatenation: for a moment the old and the new tensor of one layer coexist."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        self.length = 0
        self._windows = windows
        self._held: list[tuple[Tensor, Tensor] | None] = [None] * len(windows)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        held = self._held[layer]
        # clone: the new keys and values are views of the fused projection, and a kept view keeps all of its storage
        keys = torch.cat((held[0], keys), dim=2) if held else keys.clone(memory_format=torch.contiguous_format)
        values = torch.cat((held[1], values), dim=2) if held else values.clone(memory_format=torch.contiguous_format)
        window = self._windows[layer]
        if window is None or keys.shape[2] <= window:
            self._held[layer] = (keys, values)
        else:
            self._held[layer] = (keys[:, :, -window:].clone(), values[:, :, -window:].clone())
        return keys, values

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def tensors(self) -> Iterator[Tensor]:
        for held in self._held:
            if held is not None:
                yield from held


class StaticCache:
    """Allocated once for `capacity` tokens. Layers of one window share one K and one V tensor.

    One tensor for many layers keeps the allocator's rounding small. A window layer has a ring of min(w, capacity) tokens:
    token p lies in slot p mod w.
    """

    def __init__(
        self,
        windows: Sequence[int | None],
        batch_size: int,
        num_key_value_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.length = 0
        self.capacity = capacity
        self._windows = windows
        members: dict[int | None, list[int]] = {}
        for layer, window in enumerate(windows):
            members.setdefault(window, []).append(layer)
        self._tensors: list[Tensor] = []
        self._keys: list[Tensor] = [torch.empty(0)] * len(windows)
        self._values: list[Tensor] = [torch.empty(0)] * len(windows)
        for window, layers in members.items():
            slots = capacity if window is None else min(window, capacity)
            shape = (len(layers), batch_size, num_key_value_heads, slots, head_dim)
            keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
            self._tensors += [keys, values]
            for index, layer in enumerate(layers):
                self._keys[layer], self._values[layer] = keys[index], values[index]

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        stored = self._keys[layer], self._values[layer]
        window, tokens, start = self._windows[layer], keys.shape[2], self.length
        if window is None or start + tokens <= stored[0].shape[2]:
            end = start + tokens
            for buffer, new in zip(stored, (keys, values), strict=True):
                buffer[:, :, start:end] = new
            return stored[0][:, :, :end], stored[1][:, :, :end]
        if tokens == 1:
            for buffer, new in zip(stored, (keys, values), strict=True):
                buffer[:, :, start % window] = new[:, :, 0]
            return stored
        seen = tuple(self._in_order(buffer, start, window, new) for buffer, new in zip(stored, (keys, values), strict=True))
        for buffer, new in zip(stored, (keys, values), strict=True):
            last = new[:, :, -window:]
            slots = torch.arange(start + tokens - last.shape[2], start + tokens, device=new.device) % window
            buffer[:, :, slots] = last
        return seen[0], seen[1]

    @staticmethod
    def _in_order(buffer: Tensor, start: int, window: int, new: Tensor) -> Tensor:
        """The held tokens in order, then the new ones."""
        held = min(start, window)
        slots = torch.arange(start - held, start, device=new.device) % window
        return torch.cat((buffer[:, :, slots], new), dim=2)

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def tensors(self) -> Iterator[Tensor]:
        return iter(self._tensors)


def storage_bytes(tensors: Iterator[Tensor]) -> int:
    """Bytes of the distinct storages behind tensors: a view costs all of what it looks into, and only once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def view_bytes(tensors: Iterator[Tensor]) -> int:
    """Bytes of the elements that the tensors show."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
