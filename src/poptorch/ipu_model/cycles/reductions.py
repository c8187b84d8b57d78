"""Cycles for sums, maxima and the like. Values for one worker unless a name says ``tile``."""

from __future__ import annotations

import math

import torch

from poptorch.ipu_model.architecture import vector_width
from poptorch.ipu_model.cycles.loops import WORKERS

_LOGICAL = (24 + 8, 46)


def strided(
    partials: int, outputs: int, dtype: torch.dtype, result: torch.dtype, kind: str = "add", outer: int = 1
) -> float:
    """Reduce columns whose outputs lie side by side.

    >>> strided(16, 32, torch.float16, torch.float16), strided(16, 32, torch.float32, torch.float32)
    (248, 432)
    """
    if kind == "logical":
        return _LOGICAL[0] + _LOGICAL[1] * partials * outputs
    if dtype.itemsize < 4:
        post = 1 + (7 if result.itemsize < 4 else 6)
    else:
        post = (3 if kind in ("add", "square") else 2) + 2
    each = {"log_add": 13 if dtype.itemsize < 4 else 23}.get(kind, 1)
    return 16 + -(-outputs // vector_width(dtype)) * (3 + post + outer * (3 + each * (partials - 1)))


def scalar(elements: int, dtype: torch.dtype, result: torch.dtype) -> float:
    """Reduce all elements to one."""
    accumulators = 8 if dtype.itemsize < 4 else 4
    vectors = elements // vector_width(dtype)
    return 17 + (0 if result.itemsize >= 4 else 5) + vectors + elements % accumulators


def contiguous(partials: int, outputs: int, dtype: torch.dtype, kind: str = "add") -> float:
    """Reduce rows, each of which lies together."""
    if kind == "logical":
        return _LOGICAL[0] + _LOGICAL[1] * partials * outputs
    each = {"log_add": 13 if dtype.itemsize < 4 else 23}.get(kind, 1)
    return 17 + outputs * (12 + each * -(-partials // vector_width(dtype)))


def general(partials: int, outputs: int, dtype: torch.dtype, width: int = 1) -> float:
    """Reduce lists of regions."""
    store = 2 * min(width, vector_width(dtype)) + 1
    each = 24 + 2 * math.log2(width) + (6 + store) + partials * 10 + partials * (6 + 3)
    return 33 + -(-outputs // width) * each


def tile(partials: int, outputs: int, dtype: torch.dtype, kind: str, rows: bool) -> float:
    """All workers of a tile reduce ``outputs`` of ``partials`` elements each; ``rows``: each of them lies together.

    Workers share the outputs; where these are too few, they share the partials, and one worker adds the six results.
    """
    work = contiguous if rows else _columns
    shared = WORKERS * work(partials, -(-outputs // WORKERS), dtype, kind)
    parts = -(-partials // WORKERS)
    split = WORKERS * work(parts, outputs, dtype, kind) + WORKERS * _columns(WORKERS, outputs, torch.float32, kind)
    return min(shared, split) if partials > WORKERS else shared


def _columns(partials: int, outputs: int, dtype: torch.dtype, kind: str) -> float:
    return strided(partials, outputs, dtype, torch.float32, kind)


def inverse_deviation(elements: int) -> float:
    """Variances to inverse standard deviations, one worker."""
    return 6 + 4 + 5 * -(-elements // 2)


__all__ = ["contiguous", "general", "inverse_deviation", "scalar", "strided", "tile"]
