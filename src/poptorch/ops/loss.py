"""Marking a value as the loss of a training model."""

from __future__ import annotations

import torch

from poptorch import ambient
from poptorch.ops._library import require_tensor
from poptorch.ops.hints import NOP

_REDUCTIONS = ("sum", "mean", "none")


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Reduce ``x`` (``"sum"``, ``"mean"`` or ``"none"``) and make it the loss: back-propagation starts here.

    >>> identity_loss(torch.tensor([1.0, 3.0]), reduction="mean")
    tensor(2.)
    """
    assert reduction in _REDUCTIONS, f"Unsupported reduction type! Use one of {_REDUCTIONS}, not {reduction!r}."
    require_tensor(x, "poptorch.identity_loss")
    if reduction == "sum":
        value = x.sum()
    elif reduction == "mean":
        value = x.mean()
    else:
        # A node of its own: the mark must not be confused with a mark that x already carries.
        value = NOP(x) if ambient.current() is not None else x
    return ambient.mark_loss(value, "identity_loss")
