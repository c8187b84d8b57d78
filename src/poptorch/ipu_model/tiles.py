"""Where bytes lie: how tensors are mapped to the tiles of an IPU, and the sum of what lies on each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from poptorch.ipu_model.steps import spread

TileBytes = npt.NDArray[np.float64]
"""Bytes on every tile."""


def element_bytes(dtype: torch.dtype) -> int:
    """Bytes of one element on an IPU, which has no 64-bit types.

    >>> element_bytes(torch.int64), element_bytes(torch.float16), element_bytes(torch.bool)
    (4, 2, 1)
    """
    return min(4, dtype.itemsize)


def tensor_bytes(value: object) -> int:
    """Bytes of a tensor, or of all tensors of a sequence; 0 for what is neither."""
    if isinstance(value, torch.Tensor):
        return value.numel() * element_bytes(value.dtype)
    if isinstance(value, (list, tuple)):
        return sum(map(tensor_bytes, value))
    return 0


@dataclass(frozen=True)
class Span:
    """Equal shares of something on neighbouring tiles; after the last tile comes the first one."""

    first: int
    tiles: int
    share: float
    """Bytes on each of these tiles."""

    @property
    def bytes(self) -> float:
        return self.tiles * self.share


class TileMapper:
    """Chooses tiles for one tensor after the other: each starts where the one before ended."""

    def __init__(self, tiles: int) -> None:
        self._tiles = tiles
        self._next = 0

    def linear(self, size: int, item: int, tile_bytes: float = 0.0) -> Span:
        """The tiles of a tensor of ``size`` bytes; ``tile_bytes`` if a plan says what the busiest one holds.

        >>> mapper = TileMapper(1472)
        >>> mapper.linear(1472 * 400, 2)
        Span(first=0, tiles=1472, share=400.0)
        >>> mapper.linear(512, 4), mapper.linear(256, 4)
        (Span(first=0, tiles=4, share=128.0), Span(first=4, tiles=2, share=128.0))
        """
        if size <= 0:
            return Span(self._next, 0, 0.0)
        share = max(spread(-(-size // item), item, self._tiles) * item, 8)
        if tile_bytes > share:
            share = -(-int(tile_bytes) // 8) * 8
        used = min(self._tiles, -(-size // share))
        span = Span(self._next, used, size / used)
        self._next = (self._next + used) % self._tiles
        return span


class TileSum:
    """What lies on each tile, as it changes."""

    def __init__(self, tiles: int) -> None:
        self.bytes: TileBytes = np.zeros(tiles)
        self.total = 0.0

    def add(self, span: Span, sign: int = 1) -> None:
        """Put something on its tiles."""
        self.total += sign * span.bytes
        share, end, tiles = sign * span.share, span.first + span.tiles, len(self.bytes)
        self.bytes[span.first : min(end, tiles)] += share
        if end > tiles:
            self.bytes[: end - tiles] += share

    def remove(self, span: Span) -> None:
        """Take it away again."""
        self.add(span, -1)


__all__ = ["Span", "TileBytes", "TileMapper", "TileSum", "element_bytes", "tensor_bytes"]
