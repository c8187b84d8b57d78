"""Cycles of a tile for ``a += scale * b`` and its relatives: the arithmetic of optimizers."""

from __future__ import annotations

import torch

from poptorch.ipu_model.architecture import vector_width
from poptorch.ipu_model.cycles.loops import WORKERS


def scaled_add(elements: int, target: torch.dtype, source: torch.dtype, both_scaled: bool = False) -> float:
    """``target += scale * source``; with ``both_scaled`` the target has a factor too.

    >>> scaled_add(1200, torch.float16, torch.float16)
    1089
    >>> [scaled_add(n, torch.float32, torch.float32) for n in (64, 128, 256, 512)]
    [279, 369, 567, 945]
    """
    if not target.is_floating_point:
        return 53 + 26 * -(-elements // 3)
    width = vector_width(target)
    vectors, remainder = divmod(elements, width)
    narrow, wide = target.itemsize < source.itemsize, target.itemsize > source.itemsize
    setup, first, each = (16, 9, 5) if narrow else (15, 6, 4) if wide else (15, 6, 3)
    supervisor = 63 if remainder else 57
    if both_scaled:
        supervisor, setup = supervisor + 12, setup + 1
    turns = vectors // WORKERS
    worker = setup + (first + each * (turns - 1) if turns else 0) + 2 + 1 + 1
    if remainder:
        worker += 8 if target.itemsize >= 4 else 18
    return supervisor + WORKERS * worker


__all__ = ["scaled_add"]
