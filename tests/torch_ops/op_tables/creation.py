"""Creating tensors (section 3.1)."""

from __future__ import annotations

import torch
from op_samples import const, ints, normal, op

X = normal(3, 4)

DTYPES = (torch.float16, torch.float32, torch.int32, torch.bool)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


ROWS = [
    op("arange", lambda x: x + torch.arange(4), X),
    op("arange from to step", lambda x: x * torch.arange(1, 9, 2), X),
    op("arange float", lambda x: x * torch.arange(0, 2, 0.5), X),
    const("arange alone", lambda x: torch.arange(x.shape[1]), X),
    const("arange alone float", lambda x: torch.arange(0.0, 1.0, 0.25), X),
    const("arange int32", lambda x: torch.arange(5, dtype=torch.int32), X),
    op("full", lambda x: x * torch.full((3, 1), 2.5), X),
    const("full int", lambda x: torch.full((2, 3), 4), X),
    const("full from a truth value", lambda x: torch.full((2,), True), X),
    op("full_like", lambda x: x + torch.full_like(x, 3), X),
    const("full_like int", lambda i: torch.full_like(i, 3) + i, ints(0, 9, 4)),
    op("ones", lambda x: x + torch.ones(3, 4), X),
    op("zeros", lambda x: x + torch.zeros(4), X),
    op("ones_like", lambda x: x * torch.ones_like(x), X),
    op("zeros_like", lambda x: x + torch.zeros_like(x), X),
    op("empty_like then fill", lambda x: x + torch.empty_like(x).fill_(2), X),
    op("new_ones", lambda x: x + x.new_ones(3, 1), X),
    op("new_zeros", lambda x: x + x.new_zeros(4), X),
    op("new_full", lambda x: x + x.new_full((4,), 1.5), X),
    op("new_tensor", lambda x: x + x.new_tensor([1, 2, 3, 4]), X),
    op("fill_", lambda x: x + (x * 2).fill_(1.25), X),
    const("fill_ int", lambda i: (i + 1).fill_(7), ints(0, 9, 4)),
    const("zero_", lambda x: (x + 1).zero_(), X),
    op("tensor constant", lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), X),
    op("tensor scalar", lambda x: x + torch.tensor(2), X),
    const("tensor returned", lambda x: [torch.tensor([1, 2], dtype=torch.int32), (torch.tensor(1.5), x + 0)], X),
    op("eye", lambda x: x @ torch.eye(4), X),
    op("linspace", lambda x: x + torch.linspace(0, 1, 4), X),
    op("logspace", lambda x: x + torch.logspace(0, 1, 4), X),
    op("tril_indices", lambda x: x[tuple(torch.tril_indices(3, 4))], X),
    *(const(f"ones {_name(d)}", lambda x, d=d: torch.ones(2, 3, dtype=d), X) for d in DTYPES),
    *(const(f"zeros {_name(d)}", lambda x, d=d: torch.zeros(2, 3, dtype=d), X) for d in DTYPES),
    *(const(f"full {_name(d)}", lambda x, d=d: torch.full((2,), 1, dtype=d), X) for d in DTYPES),
    *(const(f"new_ones {_name(d)}", lambda x, d=d: x.new_ones((2,), dtype=d), X) for d in DTYPES),
    *(const(f"ones_like {_name(d)}", lambda x, d=d: torch.ones_like(x, dtype=d), X) for d in DTYPES),
]
