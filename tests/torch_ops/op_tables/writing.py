"""In-place operations (section 4); inputs that a row changes are compared with eager's too."""

from __future__ import annotations

from collections.abc import Callable

import torch
from op_samples import Sample, bools, const, ints, normal, op
from torch import Tensor

X = normal(3, 4)
Y = normal(3, 4, seed=1)
MASK = bools(3, 4)
IDX = torch.tensor([2, 0])


def changes(name: str, change: Callable[..., None], *inputs: Tensor) -> list[Sample]:
    """Three rows: the input itself is changed, with and without a result; and a differentiable intermediate is."""

    def nothing_returned(*args: Tensor) -> None:
        change(*args)

    def returned(*args: Tensor) -> Tensor:
        change(*args)
        return args[0] * 2

    def intermediate(x: Tensor, *args: Tensor) -> Tensor:
        y = x * 1.5
        change(y, *args)
        return y

    return [
        const(f"{name} (input)", nothing_returned, *inputs),
        const(f"{name} (input, returned)", returned, *inputs),
        op(f"{name} (intermediate)", intermediate, *inputs),
    ]


def iadd(x: Tensor, y: Tensor) -> None:
    x += y


def isub(x: Tensor, y: Tensor) -> None:
    x -= y


def imul(x: Tensor, y: Tensor) -> None:
    x *= y


def idiv(x: Tensor, y: Tensor) -> None:
    x /= y


def chain(x: Tensor, y: Tensor) -> None:
    x += y
    x += 2
    x += y


def slice_add(x: Tensor) -> None:
    x[0:2] += 1


def slice_mul(x: Tensor) -> None:
    x[:, 1:3] *= 3


def nested_add(x: Tensor) -> None:
    x[1][2] += 1


def row_add(x: Tensor, y: Tensor) -> None:
    x[1] += y[0]


def strided(x: Tensor) -> None:
    x[:, ::2] *= 2


def slice_assign(x: Tensor, y: Tensor) -> None:
    x[0:2] = y[1:]


def self_assign(x: Tensor) -> None:
    x[0] = x[1] + x[2]


def index_assign(x: Tensor, i: Tensor) -> None:
    x[i] = 1.5


def mask_assign(x: Tensor, m: Tensor) -> None:
    x[m] = 0.5


def swap_rows(x: Tensor) -> None:
    x[[0, 1]] = x[[1, 0]]


def view_write(x: Tensor) -> None:
    x.view(-1)[3:6].fill_(4.0)


def transposed_write(x: Tensor) -> None:
    x.t()[1].mul_(2)


def two_views(x: Tensor) -> None:
    a, b = x[0], x[:, 0]
    a.add_(1)
    b.mul_(2)


def narrow_write(x: Tensor) -> None:
    x.narrow(1, 0, 2).neg_()


def chunk_write(x: Tensor) -> None:
    first, _ = x.chunk(2, dim=1)
    first.neg_()


def clone_decouples(x: Tensor) -> Tensor:
    kept = x.clone()
    x += 1
    return kept


def other_untouched(x: Tensor, y: Tensor) -> Tensor:
    z = y + 0
    z += 1
    x.copy_(z)
    return z


METHODS: dict[str, Callable[[Tensor], object]] = {
    "abs_": lambda x: x.abs_(),
    "add_": lambda x: x.add_(1),
    "clamp_": lambda x: x.clamp_(-0.5, 0.5),
    "cos_": lambda x: x.cos_(),
    "exp_": lambda x: x.exp_(),
    "relu_": lambda x: x.relu_(),
    "sigmoid_": lambda x: x.sigmoid_(),
    "tanh_": lambda x: x.tanh_(),
    "pow_": lambda x: x.pow_(2),
    "cumsum_": lambda x: x.cumsum_(0),
    "tril_": lambda x: x.tril_(),
    "round_": lambda x: x.round_(),
    "leaky_relu_": lambda x: torch.nn.functional.leaky_relu_(x),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(2),
    "slice mul_": lambda x: x[:, :2].mul_(0),
}

ROWS = [
    *changes("+=", iadd, X, Y),
    *changes("-=", isub, X, Y),
    *changes("*=", imul, X, Y),
    *changes("/=", idiv, X, Y + 4),
    *changes("chain", chain, X, Y),
    *changes("slice +=", slice_add, X),
    *changes("slice *=", slice_mul, X),
    *changes("x[i][j] +=", nested_add, X),
    *changes("row +=", row_add, X, Y),
    *changes("strided slice", strided, X),
    *changes("slice assignment", slice_assign, X, Y),
    *changes("row from rows", self_assign, X),
    *changes("index assignment", index_assign, X, IDX),
    *changes("mask assignment", mask_assign, X, MASK),
    *changes("swapped rows", swap_rows, X),
    *changes("through a view", view_write, X),
    *changes("through a transpose", transposed_write, X),
    *changes("two overlapping views", two_views, X),
    *changes("through narrow", narrow_write, X),
    *changes("through a chunk", chunk_write, X)[:2],  # autograd refuses to write into one of several views
    *changes("copy_", lambda x, y: x.copy_(y * 2), X, Y),
    *changes("copy_ broadcast", lambda x, y: x.copy_(y[0]), X, Y),
    *changes("copy_ across types", lambda x, i: x.copy_(i), X, ints(0, 9, 3, 4)),
    *changes("masked_fill_", lambda x, m: x.masked_fill_(m, 1.0), X, MASK),
    *changes("scatter_add_", lambda x, i, y: x.scatter_add_(1, i, y), X, ints(0, 4, 3, 4), Y),
    *changes("addcmul_", lambda x, y: x.addcmul_(y, y, value=0.1), X, Y),
    *(row for name, change in METHODS.items() for row in changes(name, change, X)),
    const("copy_ float to int", lambda i, x: i.copy_(x * 3), ints(0, 9, 3, 4, dtype=torch.int32), X),
    const("int +=", lambda i: i.add_(3), ints(0, 9, 4)),
    const("int32 +=", lambda i: i.add_(3), ints(0, 9, 4, dtype=torch.int32)),
    const("bool masks", lambda b: b.logical_not_(), MASK),
    const("clone decouples", clone_decouples, X),
    const("other tensors untouched", other_untouched, X, Y),
    const("input returned after a change", lambda x: x.add_(1), X),
    const("0-d input", lambda x: x.add_(1), torch.tensor(3.0)),
    # out=
    const("matmul out", lambda a, b, out: torch.matmul(a, b, out=out), normal(3, 4), normal(4, 2), torch.zeros(3, 2)),
    const(
        "bmm out", lambda a, b, out: torch.bmm(a, b, out=out), normal(2, 3, 4), normal(2, 4, 2), torch.zeros(2, 3, 2)
    ),
    const("cumsum out", lambda x, out: torch.cumsum(x, 0, out=out), X, torch.zeros(3, 4)),
    const("add out", lambda x, y, out: torch.add(x, y, out=out), X, Y, torch.zeros(3, 4)),
    const("out not returned", lambda x, y, out: torch.mul(x, y, out=out).sum(), X, Y, torch.zeros(3, 4)),
    const("max out", lambda x, v, i: torch.max(x, 1, out=(v, i)), X, torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
    const("out that is an operand", lambda x, y: torch.add(x, y, out=x), X, Y),
]
