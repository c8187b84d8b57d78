"""Gathering and scattering by index (second part of section 3.2)."""

from __future__ import annotations

import torch
from op_samples import bools, const, ints, normal, op
from torch.nn import functional as F

X = normal(3, 4, 5)
M = normal(4, 6)
SRC = normal(4, 6, seed=1)
COLUMNS = ints(0, 6, 4, 3)
ROWS_INDEX = ints(0, 4, 2, 6)
UNIQUE = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i))[:3] for i in range(4)])
IDX = torch.tensor([2, 0, 1])
PICK = torch.tensor([0, 3, 3, 1, 2])
MASK = bools(4, 6)
REDUCTIONS = ("sum", "mean", "amin", "amax", "prod")
INF = float("inf")


def _scatter_reduce(reduce: str, include_self: bool) -> object:
    return lambda x, i, s: torch.scatter_reduce(x, 1, i, s, reduce, include_self=include_self)


def _index_reduce(reduce: str) -> object:
    return lambda x, i, s: torch.index_reduce(x, 0, i, s, reduce)


def _assign(key: object, value: object) -> object:
    def assign(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[key] = value
        return y

    return assign


def _assign_tensor(make_key: object) -> object:
    """Assign the second argument where the others, tensors, point to."""

    def assign(x: torch.Tensor, value: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[make_key(*indices)] = value
        return y

    return assign


ROWS = [
    op("gather", lambda x, i: torch.gather(x, 1, i), M, COLUMNS),
    op("gather rows", lambda x, i: torch.gather(x, 0, i), M, ROWS_INDEX),
    op("gather larger index", lambda x, i: torch.gather(x, 1, i), M, ints(0, 6, 4, 9)),
    op("gather five dims", lambda x, i: torch.gather(x, -2, i), normal(2, 2, 3, 4, 2), ints(0, 4, 2, 2, 3, 2, 2)),
    op("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), M, COLUMNS),
    op("take_along_dim flat", torch.take_along_dim, M, ints(0, 24, 7)),
    op("take", torch.take, M, ints(0, 24, 3, 2)),
    op("index_select", lambda x, i: torch.index_select(x, 1, i), X, PICK),
    op("index_select negative dim", lambda x, i: torch.index_select(x, -3, i), X, IDX),
    const("scatter larger source", lambda x, i, s: torch.scatter(x, 1, i, s), M, UNIQUE, SRC),
    op("scatter", lambda x, i, s: x.scatter(1, i, s), M, UNIQUE, normal(4, 3)),
    op("scatter scalar", lambda x, i: x.scatter(1, i, 2.5), M, UNIQUE),
    op("scatter rows", lambda x, i, s: x.scatter(0, i, s), M, torch.tensor([[0, 1, 2, 3, 0, 1]]), normal(1, 6)),
    op("scatter_", lambda x, i, s: (x * 2).scatter_(1, i, s), M, UNIQUE, normal(4, 3)),
    const("scatter reduce add", lambda x, i, s: x.scatter(1, i, s, reduce="add"), M, COLUMNS, SRC),
    const("scatter reduce multiply", lambda x, i, s: x.scatter(1, i, s, reduce="multiply"), M, COLUMNS, SRC),
    op("scatter_add", lambda x, i, s: torch.scatter_add(x, 1, i, s), M, COLUMNS, normal(4, 3)),
    const("scatter_add larger source", lambda x, i, s: torch.scatter_add(x, 1, i, s), M, COLUMNS, SRC),
    op("scatter_add_", lambda x, i, s: torch.zeros_like(x).scatter_add_(0, i, s), M, ROWS_INDEX, normal(2, 6)),
    op(
        "scatter_add message passing",
        lambda s, i: torch.zeros(5, 6).scatter_add(0, i[:, None].expand_as(s), s),
        SRC,
        ints(0, 5, 4),
    ),
    *(op(f"scatter_reduce {r}", _scatter_reduce(r, True), M, COLUMNS, normal(4, 3)) for r in REDUCTIONS),
    *(op(f"scatter_reduce {r} alone", _scatter_reduce(r, False), M, COLUMNS, normal(4, 3)) for r in REDUCTIONS),
    *(const(f"index_reduce {r}", _index_reduce(r), M, PICK, normal(5, 6)) for r in REDUCTIONS[1:]),
    op("index_reduce mean trained", _index_reduce("mean"), M, PICK, normal(5, 6)),
    op("index_add", lambda x, i, s: torch.index_add(x, 0, i, s, alpha=0.5), M, PICK, normal(5, 6)),
    op("index_copy", lambda x, i, s: torch.index_copy(x, 1, i, s), M, IDX, normal(4, 3)),
    op("index_fill", lambda x, i: torch.index_fill(x, 1, i, 0.5), M, IDX),
    op("index_fill_", lambda x, i: (x * 2).index_fill_(0, i, -1.0), M, IDX),
    op("index_put", lambda x, i, s: torch.index_put(x, (i,), s), M, torch.tensor([2, 0]), normal(2, 6)),
    op("index_put accumulate", lambda x, i, s: torch.index_put(x, (i,), s, accumulate=True), M, PICK, normal(5, 6)),
    const("bincount", lambda i: torch.bincount(i, minlength=6), ints(0, 6, 20)),
    const("bincount int32", lambda i: torch.bincount(i, minlength=8), ints(0, 6, 20, dtype=torch.int32)),
    const("bincount weights", lambda i, w: torch.bincount(i, weights=w, minlength=6), ints(0, 6, 20), normal(20)),
    const("bincount method", lambda i: i.bincount(minlength=6), ints(0, 6, 20)),
    const("histc", lambda x: torch.histc(x, bins=4, min=-2, max=2), M),
    # reading by index
    op("index", lambda x, i: x[i], X, IDX),
    op("index 2-d", lambda x, i: x[i], X, ints(0, 3, 2, 2)),
    op("index second dim", lambda x, i: x[:, i], X, PICK),
    op("index pair", lambda x, i, j: x[i, j], X, IDX, torch.tensor([3, 1, 0])),
    op("index :,i,i", lambda x, i: x[:, i, i], X, IDX),
    op("index i,:,i", lambda x, i: x[i, :, i], X, IDX),
    op("index broadcast", lambda x, i, j: x[i[:, None], j], X, IDX, torch.tensor([3, 1])),
    op("index list", lambda x: x[[0, 2]], X),
    op("index negative", lambda x, i: x[:, i], X, torch.tensor([-1, 0, -2])),
    op("index int32", lambda x, i: x[i], X, IDX.int()),
    op("index after slice", lambda x, i: x[1:, i, 2:], X, PICK),
    op("index 0-d", lambda x, i: x[i], X, torch.tensor(1)),
    op("index constant", lambda x: x[:, torch.tensor([1, 3])], X),
    # writing by index
    op("assign row", _assign(1, 5.0), M),
    op("assign slice scalar", _assign(slice(1, 3), -1.0), M),
    op("assign slice step", _assign((slice(None), slice(0, 6, 2)), 3.0), M),
    op("assign ellipsis", _assign((..., 0), 3.0), M),
    op("assign everything", _assign(slice(None), 0.25), M),
    op("assign tensor to slice", lambda x, s: _assign(slice(0, 2), s)(x), M, normal(2, 6)),
    op("assign broadcast to slice", lambda x, s: _assign(slice(0, 2), s)(x), M, normal(6)),
    op("assign by index", _assign_tensor(lambda i: i), M, normal(3, 6), IDX),
    op("assign by index broadcast", _assign_tensor(lambda i: i), M, normal(6), IDX),
    op("assign by index second", _assign_tensor(lambda i: (slice(None), i)), M, normal(4, 3), IDX),
    op("assign by index pair", _assign_tensor(lambda i, j: (i, j)), M, normal(3), IDX, torch.tensor([5, 0, 2])),
    op("assign by index scalar", lambda x, i: _assign(i, 9.0)(x), M, IDX),
    op("assign by mask scalar", lambda x, m: _assign(m, 9.0)(x), M, MASK),
    op(
        "assign by mask inf",
        lambda x, m: _assign(m, -INF)(x).softmax(0),
        normal(4, 6),
        MASK & (torch.arange(4) > 0)[:, None],
    ),
    op("assign by mask 0-d tensor", lambda x, m, v: _assign(m, v)(x), M, MASK, torch.tensor(1.5)),
    op("assign by mask one element", lambda x, m, v: _assign(m, v)(x), M, MASK, torch.tensor([1.5])),
    op("assign by row mask", lambda x, m: _assign(m, 0.5)(x), M, torch.tensor([True, False, True, False])),
    op(
        "assign by row mask broadcast",
        lambda x, m, v: _assign(m, v)(x),
        M,
        torch.tensor([True, False, True, False]),
        normal(6),
    ),
    op("assign by column mask", lambda x, m: _assign((slice(None), m), 0.5)(x), M, bools(6)),
    op("assign by column mask tensor", lambda x, m, v: _assign((slice(None), m), v)(x), M, bools(6), torch.tensor(2.0)),
    const("assign values by mask", lambda x, m, v: _assign(m, v)(x), M, torch.arange(4) < 2, normal(2, 6)),
    const("assign to int by mask", lambda i, m: _assign(m, 3)(i), ints(0, 9, 4), torch.arange(4) < 2),
    op("assign by comparison", lambda x: _assign(x > 0, 0.0)(x), M),
    op("masked_fill", lambda x, m: x.masked_fill(m, 0.5), M, MASK),
    op("masked_fill broadcast", lambda x, m: x.masked_fill(m, 0.5), M, MASK[:1]),
    op("masked_fill -inf", lambda x, m: x.masked_fill(m, -INF), M, MASK),
    op("masked_fill inf", lambda x, m: x.masked_fill(m, INF), M, MASK),
    op("masked_fill tensor", lambda x, m, v: x.masked_fill(m, v), M, MASK, torch.tensor(2.0)),
    op("masked_fill_", lambda x, m: (x * 2).masked_fill_(m, 0.5), M, MASK),
    op("masked_scatter", lambda x, m, s: x.masked_scatter(m, s), M, MASK, SRC),
    op("where", torch.where, MASK, M, SRC),
    op("where broadcast", torch.where, MASK, M, normal(6)),
    op("where scalar", lambda m, x: torch.where(m, x, 0.0), MASK, M),
    op("where scalar left", lambda m, x: torch.where(m, 1.0, x), MASK, M),
    const("where scalars", lambda m: torch.where(m, 1.0, 2.0), MASK),
    op("where condition broadcast", torch.where, MASK[:, :1], M, SRC),
    op("select_scatter", lambda x, s: torch.select_scatter(x, s, 0, 1), M, normal(6)),
    op("slice_scatter", lambda x, s: torch.slice_scatter(x, s, 0, 1, 3), M, normal(2, 6)),
    op("diagonal_scatter", torch.diagonal_scatter, M, normal(4)),
    const("one_hot", lambda i: F.one_hot(i, num_classes=5), ints(0, 5, 3, 2)),
    op("one_hot product", lambda i, x: F.one_hot(i, 5).float() @ x, ints(0, 5, 3), normal(5, 2)),
    op("embedding function", lambda i, w: F.embedding(i, w), ints(0, 5, 3, 2), normal(5, 4)),
    op("gather of argmax", lambda x: x.gather(1, x.argmax(1, keepdim=True)), M),
]
