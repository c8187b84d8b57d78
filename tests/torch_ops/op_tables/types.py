"""Element types (section 2) as PyTorch has them, narrowed to what the device returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from op_samples import const, ints, normal
from torch import Tensor

MIXED = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
ALL = (*MIXED, torch.int16, torch.int8, torch.uint8, torch.bool)
HALF: dict[str, Any] = {"dtype": torch.float16}


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def values(dtype: torch.dtype, seed: int = 0) -> Tensor:
    if dtype.is_floating_point:
        return normal(3, 4, seed=seed, dtype=dtype)
    return ints(0, 2 if dtype is torch.bool else 5, 3, 4, seed=seed).to(dtype)


def with_each(operation: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., list[Tensor]]:
    return lambda x, *others: [operation(x, y) for y in others] + [operation(y, x) for y in others]


OTHERS = [values(dtype, 1) for dtype in MIXED]

ROWS = [
    *(const(f"pass {name(d)} through", lambda x: (x, x.reshape(4, 3)), values(d)) for d in ALL),
    *(
        const(f"{operation.__name__} of {name(a)} with each type", with_each(operation), values(a), *OTHERS, **HALF)
        for operation in (torch.add, torch.mul, torch.lt, torch.eq)
        for a in MIXED
    ),
    *(const(f"{name(a)} to each type", lambda x: [x.to(b) for b in ALL], values(a)) for a in ALL),
    *(const(f"sum of {name(d)}", lambda x: (x.sum(), x.sum(1)), values(d), **HALF) for d in ALL),
    *(const(f"argmax of {name(d)}", lambda x: x.argmax(1), values(d)) for d in ALL if d is not torch.bool),
    *(const(f"bool and {name(d)}", lambda b, x: b * x, values(torch.bool), values(d)) for d in ALL),
    *(const(f"{name(d)} and a Python float", lambda x: x + 1.5, values(d), **HALF) for d in ALL),
    *(const(f"{name(d)} and a Python int", lambda x: x * 2, values(d)) for d in ALL),
    const("half matmul", torch.matmul, values(torch.float16), values(torch.float16).T.contiguous(), **HALF),
    const("int8 bits", torch.bitwise_and, values(torch.int8), values(torch.int8, 1)),
    const("int64 stays exact", lambda i: i * 2**20 + 1, ints(0, 1000, 5)),
    const("float64 constant", lambda x: x + torch.tensor(0.5, dtype=torch.float64), values(torch.float32)),
    const("double()", lambda x: x.double() * 2, values(torch.float32)),
    const("long()", lambda x: x.long() + 1, values(torch.float32)),
]
