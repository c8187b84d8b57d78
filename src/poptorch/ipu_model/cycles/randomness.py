"""Cycles of a tile for random numbers."""

from __future__ import annotations

import torch

from poptorch.ipu_model.architecture import vector_width
from poptorch.ipu_model.cycles.loops import WORKERS


def _vectors(elements: int, dtype: torch.dtype) -> int:
    return -(-elements // vector_width(dtype))


def uniform(elements: int, dtype: torch.dtype) -> float:
    """Uniform or normal numbers; whole numbers too.

    >>> uniform(1200, torch.float16), uniform(1200, torch.float32)
    (1348, 2536)
    """
    if not dtype.is_floating_point:
        return 4 + 22 * WORKERS + 3 * elements
    return 4 + (22 if dtype.itemsize >= 4 else 24) * WORKERS + 4 * _vectors(elements, dtype)


def truncated_normal(elements: int, dtype: torch.dtype, turns: int = 4) -> float:
    """Normal numbers inside bounds."""
    single = dtype.itemsize >= 4
    each = (11 if single else 12) * turns + 5
    return 4 + (26 if single else 28) * WORKERS + each * _vectors(elements, dtype)


def bernoulli(elements: int, dtype: torch.dtype) -> float:
    """Zeros and ones."""
    return 4 + (23 if dtype.itemsize >= 4 else 21) * WORKERS + _vectors(elements, dtype)


def dropout(elements: int, dtype: torch.dtype) -> float:
    """Zeros at random places.

    >>> dropout(1200, torch.float16)
    750
    """
    return 6 + 24 * WORKERS + 2 * _vectors(elements, dtype)


SET_SEED = 14 + 27 * WORKERS
"""Tell the generators of a tile where to start."""

__all__ = ["SET_SEED", "bernoulli", "dropout", "truncated_normal", "uniform"]
