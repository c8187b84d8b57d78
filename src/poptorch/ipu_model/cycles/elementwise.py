"""Cycles of a tile for operations on single elements. ``elements`` are those on the tile, shared by its workers."""

from __future__ import annotations

import math

import torch

from poptorch.ipu_model.architecture import vector_width
from poptorch.ipu_model.cycles.loops import WORKERS, InnerLoop, binary_loop, per_worker, scalar_loop, unary_loop

_SUPERVISOR = 11


def unary(name: str, elements: int, dtype: torch.dtype, in_place: bool = False) -> float:
    """An operation with one operand.

    >>> unary("relu", 1200, torch.float16), unary("exp", 1200, torch.float16)
    (1022.0, 1418.0)
    """
    setup = 55 if in_place else 33 if name in ("exp", "exp2") else 17
    return _SUPERVISOR + 9 + WORKERS * (setup + unary_loop(name, dtype, in_place).over(per_worker(elements)))


def binary(name: str, elements: int, dtype: torch.dtype, in_place: bool = False) -> float:
    """An operation with two operands of the same size.

    >>> binary("add", 1200, torch.float16), binary("add", 1200, torch.float16, in_place=True)
    (1067, 1259)
    """
    setup = 58 if in_place else 29 if dtype == torch.float32 else 26
    return _SUPERVISOR + WORKERS * (setup + binary_loop(name, dtype, in_place).over(per_worker(elements)))


def scalar(name: str, elements: int, dtype: torch.dtype) -> float:
    """An operation with a tensor and one number.

    >>> scalar("multiply", 1200, torch.float16)
    731
    """
    return _SUPERVISOR + WORKERS * (20 + scalar_loop(name, dtype).over(per_worker(elements)))


def vector_outer(name: str, rows: int, columns: int, dtype: torch.dtype) -> float:
    """Rows of a matrix with one number each; workers share the rows, or the columns where that is faster."""
    width = vector_width(dtype)
    loop = scalar_loop(name, dtype)
    each = loop.cycles * width / loop.elements

    def work(rows: int, columns: int) -> float:
        start = 7 if columns % width == 0 else 25
        return _SUPERVISOR + WORKERS * (15 + rows * (start + -(-columns // width) * each))

    vectors = -(-columns // width)
    return min(work(-(-rows // WORKERS), columns), work(rows, -(-vectors // WORKERS) * width))


def vector_inner(name: str, length: int, elements: int, dtype: torch.dtype, in_place: bool = False) -> float:
    """A vector of ``length`` that repeats inside ``elements``: a number for each channel."""
    if name not in ("add", "subtract", "multiply") or not dtype.is_floating_point:
        return binary(name, elements, dtype, in_place)
    blocks = max(1, per_worker(-(-elements // length)))
    if dtype.itemsize >= 4:
        return 13 + WORKERS * (17 + 7 + length * (8 + 2 * blocks))
    if name == "multiply" and length % 4 == 0:
        loop = 7 + 2 * blocks if in_place else 9 + blocks
        return 13 + WORKERS * 24 + WORKERS * (19 + 9 + 4 + length // 4 * loop)
    if length % 8 == 0:
        loops = length // 8
        return 13 + WORKERS * (19 + 5 + 2 + (4 + 7 * loops if blocks == 1 else 5 + loops * (15 + 2 * (blocks - 1))))
    if length % 4 == 0:
        return 13 + WORKERS * (19 + 9 + 6 + length // 4 * (13 + 2 * (blocks // 2 - 1) + blocks % 2))
    return 13 + WORKERS * (25 + length * (5 + 9 * blocks))


def cast(elements: int, source: torch.dtype, target: torch.dtype) -> float:
    """A conversion of types.

    >>> cast(1200, torch.float32, torch.float16), cast(1200, torch.float16, torch.float32)
    (846, 840)
    """
    return 12 + WORKERS * (18 + _cast_loop(per_worker(elements), source, target))


def _cast_loop(elements: int, source: torch.dtype, target: torch.dtype) -> float:
    narrow = {source, target}
    if source.is_floating_point and target.is_floating_point:
        many, each = (4, 2) if source.itemsize >= 4 else (2, 1)
        return 19 + each * (elements // many + 1)
    if torch.float16 in narrow and torch.uint8 in narrow | {torch.uint8 if t is torch.bool else t for t in narrow}:
        turns = max(0, elements // 4 - 1)
        return 4 + 14 + 9 * turns if target is torch.float16 else 8 + 19 + 16 * turns
    each = 5 if target.itemsize == 8 else 2
    return 19 + each * (elements + 1)


def select(elements: int, dtype: torch.dtype, broadcast: bool = False) -> float:
    """One of two values for each element; ``broadcast``: one of the two is a number."""
    each = per_worker(elements)
    if broadcast:
        return WORKERS * ((18 if dtype.itemsize >= 4 else 30) + 4 * each)
    return WORKERS * (5 + 6 + 5 * each)


def clamp(elements: int, dtype: torch.dtype) -> float:
    """Values between two bounds."""
    each = per_worker(elements)
    loop = InnerLoop(2, vector_width(dtype)) if dtype.is_floating_point else InnerLoop(7, 1)
    return WORKERS * (5 + 6 + loop.over(each))


def fill(elements: int, dtype: torch.dtype) -> float:
    """The same value everywhere, by one worker for each region."""
    width = max(1, 8 // dtype.itemsize)
    return {1: 39, 2: 26}.get(dtype.itemsize, 23) + elements / width


def iota(elements: int, dtype: torch.dtype) -> float:
    """Ascending numbers."""
    return WORKERS * (10 + 4 + 3 * -(-per_worker(elements) // vector_width(dtype)))


def not_a_number(elements: int, dtype: torch.dtype, infinities: bool = False) -> float:
    """Look for NaN, or for infinities too."""
    each = per_worker(elements)
    if dtype.itemsize >= 4:
        scan, check = 10 + (3 if infinities else 2) * -(-each // 4), 8
    else:
        scan, check = (12 + 2 * -(-each // 8) if infinities else 12 + 3 * -(-each // 4)), 12
    return 24 + WORKERS * (17 + scan + check)


def one_hot(indices: int, dtype: torch.dtype) -> float:
    """A one at each index."""
    return _SUPERVISOR + (74 if dtype.itemsize == 2 else 100) * indices


def histogram(elements: int, bins: int, dtype: torch.dtype) -> float:
    """Count elements between limits."""
    return WORKERS * (20 + max(0, bins - 1) * (17 + 3 * -(-per_worker(elements) // vector_width(dtype))))


def fused(elements: int, operations: int, dtype: torch.dtype) -> float:
    """Several operations in one generated codelet."""
    width = vector_width(dtype)
    work = (elements // width + elements % width) * operations
    return 20 + math.ceil(work / WORKERS) * WORKERS


__all__ = [
    "binary", "cast", "clamp", "fill", "fused", "histogram", "iota", "not_a_number", "one_hot", "scalar", "select",
    "unary", "vector_inner", "vector_outer",
]  # fmt: skip
