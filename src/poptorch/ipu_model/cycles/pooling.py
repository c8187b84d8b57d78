"""Cycles of a tile for pooling."""

from __future__ import annotations

import torch

from poptorch.ipu_model.architecture import vector_width
from poptorch.ipu_model.cycles.loops import WORKERS

_EACH = {"max": (4, 3), "sum": (5, 3), "gradient": (7, 5)}


def pooling(outputs: int, window: int, channels: int, dtype: torch.dtype, kind: str) -> float:
    """Pool ``outputs`` positions of ``channels`` channels, with ``window`` positions for each.

    ``kind`` is ``"max"``, ``"sum"`` (averages too) or ``"gradient"``. Workers share the outputs; each position of the
    window is one piece of work of contiguous outputs.
    """
    positions = -(-outputs // WORKERS)
    base, each = _EACH[kind]
    vectors = -(-channels // vector_width(dtype))
    group = 5 + vectors * (3 + base + each * (positions - 1))
    worker = 17 + 4 + positions * vectors + 6 + 13 + window * (20 + group + 5)
    return 7 + WORKERS * worker + 6


__all__ = ["pooling"]
