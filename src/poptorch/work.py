"""How much work an operation is: arithmetic, bytes, and the time of both on one core of a host.

The time is a rough one, made from shapes alone, so that the same program gives the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_BYTES_PER_SECOND = 5e9
_FLOPS_PER_SECOND = 5e10


def has_formula(operator: Any) -> bool:
    """Whether torch can count the arithmetic of an operator overload.

    >>> has_formula(torch.ops.aten.mm.default), has_formula(torch.ops.aten.add.Tensor)
    (True, False)
    """
    return getattr(operator, "overloadpacket", None) in flop_registry


def flops(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> float:
    """Floating-point operations of a call; none, for what torch has no formula.

    >>> a = torch.ones(2, 3)
    >>> flops(torch.ops.aten.mm.default, (a, a.t()), {}, a @ a.t())
    24.0
    """
    if not has_formula(operator):
        return 0.0
    return float(flop_registry[operator.overloadpacket](*args, **kwargs, out_val=result))


def num_bytes(values: Iterable[Any]) -> int:
    """The size of the tensors among some values.

    >>> num_bytes([torch.ones(2), None, torch.zeros(3, dtype=torch.int8)])
    11
    """
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))


def host_seconds(flops: float, moved: int) -> float:
    """The time that one core takes for so much arithmetic and so many bytes, one after the other.

    >>> host_seconds(5e10, 5_000_000_000)
    2.0
    """
    return moved / _BYTES_PER_SECOND + flops / _FLOPS_PER_SECOND
