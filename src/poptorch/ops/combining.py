"""Combining the values of several replicas, or IPUs, into one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch

from poptorch.errors import createPoptorchError

REDUCTIONS = ("add", "mean", "mul", "min", "max", "logical_and", "logical_or", "square_add", "local")
"""How values are combined; the place is the number of ``__collectiveOperator``."""


def reduction_of(number: int) -> str:
    """The name of a collective operator.

    >>> reduction_of(4)
    'max'
    """
    if not 0 <= number < len(REDUCTIONS):
        raise createPoptorchError(
            f"Unsupported operator: __collectiveOperator is {number}; it must be 0 to {len(REDUCTIONS) - 1}."
        )
    return REDUCTIONS[number]


def combined(name: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """One value from several, in their order; halves are added in float32.

    >>> combined("mean", [torch.tensor([1.0]), torch.tensor([3.0])])
    tensor([2.])
    """
    kind = values[0].dtype
    if kind is torch.float16 and name in ("add", "mean", "mul", "square_add"):
        values = [value.float() for value in values]
    match name:
        case "add":
            result = reduce(torch.add, values)
        case "mean":
            total = reduce(torch.add, values)
            result = total / len(values) if total.is_floating_point() else total // len(values)
        case "mul":
            result = reduce(torch.mul, values)
        case "min":
            result = reduce(torch.minimum, values)
        case "max":
            result = reduce(torch.maximum, values)
        case "logical_and":
            result = reduce(torch.logical_and, [value != 0 for value in values])
        case "logical_or":
            result = reduce(torch.logical_or, [value != 0 for value in values])
        case "square_add":
            result = reduce(torch.add, [value * value for value in values])
        case _:
            result = values[0]
    return result.to(kind)
