"""Numbering the tensors of the model under capture."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakTensorKeyDictionary

from poptorch import ambient
from poptorch.errors import createPoptorchError
from poptorch.ops.recorded import is_recorded

_EXTRA = "ops.tensor_ids"


def getIpuTensorId(t: torch.Tensor) -> int:
    """The number of a tensor of the model under capture: equal for the same tensor, different for others.

    >>> getIpuTensorId(torch.ones(1))
    Traceback (most recent call last):
    ...
    poptorch.errors.Error: 'poptorch_py_error': You may only call getIpuTensorId on an IPU tensor
    """
    context = ambient.current()
    if context is None or not isinstance(t, torch.Tensor) or not _is_captured(t):
        raise createPoptorchError("You may only call getIpuTensorId on an IPU tensor")
    numbers = context.extras.setdefault(_EXTRA, WeakTensorKeyDictionary())
    if t not in numbers:
        numbers[t] = context.extras[_EXTRA + ".next"] = context.extras.get(_EXTRA + ".next", 0) + 1
    return int(numbers[t])


def _is_captured(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or is_recorded(tensor)
