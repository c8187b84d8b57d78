"""Cycles of a tile for copies, transpositions and zeros."""

from __future__ import annotations

import torch

from poptorch.ipu_model.architecture import vector_width
from poptorch.ipu_model.cycles.loops import WORKERS, per_worker


def copy(byte_count: float, aligned: bool = True) -> float:
    """A copy inside a tile; what is not aligned to 64 bits moves in pieces of 32."""
    return 23 + (byte_count / 8 if aligned else 3 * byte_count / 4)


def transpose(rows: int, columns: int, count: int, dtype: torch.dtype) -> float:
    """Transpose ``count`` matrices inside a tile.

    >>> transpose(16, 16, 12, torch.float16)
    1357
    """
    grain, each = (4, 4) if dtype.itemsize < 4 else (2, 3)
    height, width, turns = -(-rows // grain), -(-columns // grain), -(-count // WORKERS)
    if height == width == 1:
        worker = 29 if turns == 1 else 37 + each * (turns - 2)
    elif width == 1:
        worker = 27 + turns * (35 + each * (height - 2))
    else:
        worker = 29 + turns * (18 + height * (12 + each * (width - 2)))
    return 7 + WORKERS * worker


def zero(elements: int, dtype: torch.dtype) -> float:
    """Set to zero, all workers together."""
    return WORKERS * (-(-per_worker(elements) // vector_width(dtype)) + 15)


__all__ = ["copy", "transpose", "zero"]
