"""Help for testing your own models; import it explicitly as ``poptorch.testing``."""

from __future__ import annotations

from typing import Any

import torch


def allclose(ref: Any, other: Any) -> bool:
    """Whether two outputs are nearly equal: tensors by value, tuples and lists element by element.

    >>> allclose((torch.ones(2), [torch.zeros(1)]), (torch.ones(2), [torch.zeros(1)]))
    True
    >>> allclose((torch.ones(2),), [torch.ones(2)])
    False
    """
    if isinstance(ref, torch.Tensor):
        return isinstance(other, torch.Tensor) and ref.shape == other.shape and torch.allclose(other, ref)
    if isinstance(ref, (tuple, list)):
        return type(ref) is type(other) and len(ref) == len(other) and all(map(allclose, ref, other))
    raise TypeError(f"allclose compares tensors and (nested) tuples and lists of tensors, not {type(ref).__name__}")
