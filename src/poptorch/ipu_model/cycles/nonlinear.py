"""Cycles of a tile for non-linearities with a codelet of their own, for losses, and for the search of a maximum."""

from __future__ import annotations

import math

import torch

from poptorch.ipu_model.architecture import vector_width
from poptorch.ipu_model.cycles.loops import WORKERS, per_worker

_FORWARD = {"gelu_tanh": (10, 5, 10, 5), "swish": (11, 5, 6, 3), "gelu_erf": (30, 15, 30, 15)}
"""Cycles of a vector in float32 and float16, then those of a single element."""

_GRADIENT = {
    "relu": (3, 3),
    "sigmoid": (3, 3),
    "tanh": (3, 3),
    "gelu_tanh": (10, 5),
    "gelu_erf": (30, 15),
    "swish": (15, 9),
}


def nonlinearity(name: str, elements: int, dtype: torch.dtype) -> float:
    """A non-linear function.

    >>> nonlinearity("gelu_tanh", 1200, torch.float16), nonlinearity("gelu_tanh", 1200, torch.float32)
    (1701, 6225)
    """
    half = dtype.itemsize < 4
    each, single = _FORWARD[name][half], _FORWARD[name][2 + half]
    vectors = -(-(elements // vector_width(dtype)) // WORKERS)
    return 9 + WORKERS * (20 + 2 + single + max(0, vectors - 1) * each + 1 + single + (4 if half else 3))


def nonlinearity_gradient(name: str, elements: int, dtype: torch.dtype) -> float:
    """The gradient of a non-linear function."""
    half = dtype.itemsize < 4
    vectors = -(-(elements // vector_width(dtype)) // WORKERS)
    return 9 + WORKERS * (20 + 4 + max(0, vectors - 1) * _GRADIENT[name][half] + 1 + (6 if half else 4))


def loss(elements: int, dtype: torch.dtype, squared: bool = False) -> float:
    """What a loss does with each element, before the sum; ``squared`` for differences, otherwise for probabilities."""
    count = elements if dtype.itemsize >= 4 else -(-elements // 2)
    return WORKERS * (5 + 6 + 5 + 1 + 3 + (4 if squared else 9) * -(-count // WORKERS) + 1)


def arg_max(elements: int) -> float:
    """The place of the largest element."""
    return 9 + WORKERS * (30 + 3 * max(0, per_worker(elements) - 1))


def top_k(elements: int, k: int) -> float:
    """The largest ``k`` of some elements, with a heap for each worker."""
    return WORKERS * (13 + 20 * math.log(max(2, k))) * per_worker(elements)


def compare_and_swap(pairs: int) -> float:
    """One turn of a bitonic sort."""
    return WORKERS * (20 + 13 * per_worker(pairs))


def heap_sort(elements: int) -> float:
    """One worker sorts."""
    if elements <= 0:
        return 0.0
    return WORKERS * 8 * (19 * elements * math.floor(math.log2(max(1, elements))) + 6 * elements + 2)


__all__ = ["arg_max", "compare_and_swap", "heap_sort", "loss", "nonlinearity", "nonlinearity_gradient", "top_k"]
