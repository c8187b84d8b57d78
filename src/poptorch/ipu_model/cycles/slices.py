"""Cycles of a tile for slices, table lookups and updates at indices."""

from __future__ import annotations

import math

import torch

from poptorch.ipu_model.architecture import vector_width
from poptorch.ipu_model.cycles.loops import WORKERS


def dynamic_slice(region: int, count: int, dtype: torch.dtype) -> float:
    """Copy ``count`` pieces of ``region`` elements from, or to, a place that is known when the program runs."""
    setup, each = (76, 72) if dtype.itemsize == 1 else (39, 24)
    return 25 + WORKERS * (setup + (each + 2 * -(-region // WORKERS) / vector_width(dtype)) * count)


def multi_slice(row: int, in_range: int, out_of_range: int, dtype: torch.dtype, overwrite: bool = False) -> float:
    """Copy rows at indices; the counts are those of one worker.

    >>> multi_slice(64, 3, 19, torch.float16)
    2586
    """
    copy = 3 * -(-row // 4) if dtype.itemsize == 1 else 2 * -(-row // 2)
    return WORKERS * ((29 if overwrite else 30) + in_range * (19 + copy) + out_of_range * 8)


def multi_update_add(row: int, in_range: int, out_of_range: int, dtype: torch.dtype) -> float:
    """Add rows at indices; the counts are those of one worker.

    >>> multi_update_add(64, 3, 19, torch.float16)
    2700.0
    """
    single = dtype.itemsize >= 4
    atoms = row * dtype.itemsize / 4
    each = (11 if single else 13) + max(0.0, atoms - 1) * 3
    if atoms < 1:
        each += 20 * row
    setup = 3 + (29 + 6 if single else 30 + 4)
    return WORKERS * (setup + in_range * each + out_of_range * 5)


def sorted_search(indices: int) -> float:
    """What takes the place of indices out of range where indices are sorted."""
    return 20 * math.log2(max(2, indices)) + 15 * indices + 29


def sequence_slice(sequences: int, bytes_each: int) -> float:
    """Copy pieces of several lengths."""
    return 60 + 60 * sequences + WORKERS * -(-sequences // WORKERS) * (bytes_each / 2)


__all__ = ["dynamic_slice", "multi_slice", "multi_update_add", "sequence_slice", "sorted_search"]
