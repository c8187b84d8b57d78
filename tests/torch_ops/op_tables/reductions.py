"""Reductions, comparisons and the rest of section 3.5."""

from __future__ import annotations

import torch
from op_samples import between, bools, const, distinct, ints, normal, op

X = normal(3, 4, 5)
Y = normal(3, 4, 5, seed=1)
D = distinct(3, 4, 5)
M = normal(3, 4)
INTEGERS = ints(-4, 5, 3, 4)
B = bools(3, 4)
NAN = torch.tensor([[1.0, float("nan"), 2.0], [float("nan"), float("inf"), 0.0]])
LISTED = ("mean", "prod", "std", "sum", "var", "amax", "amin", "nansum", "nanmean")
COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")

ROWS = [
    *(op(f"{n} all", getattr(torch, n), X) for n in LISTED if n != "prod"),
    op("prod all", torch.prod, between(0.8, 1.2, 3, 4, 5)),  # of normal numbers it is nearly zero, whatever is left out
    *(op(f"{n} dim", lambda x, n=n: getattr(torch, n)(x, 1), X) for n in LISTED),
    *(op(f"{n} negative dim keepdim", lambda x, n=n: getattr(torch, n)(x, dim=-1, keepdim=True), X) for n in LISTED),
    *(op(f"{n} dims", lambda x, n=n: getattr(torch, n)(x, dim=(0, 2)), X) for n in LISTED if n != "prod"),
    op("std unbiased off", lambda x: torch.std(x, dim=1, unbiased=False), X),
    op("var correction", lambda x: torch.var(x, dim=1, correction=2), X),
    op("std_mean", torch.std_mean, X),
    op("std_mean dim", lambda x: torch.std_mean(x, dim=(0, 1), keepdim=True), X),
    op("var_mean", torch.var_mean, X),
    op("var_mean dim", lambda x: torch.var_mean(x, dim=2, unbiased=False), X),
    op("logsumexp", lambda x: torch.logsumexp(x, dim=1), X),
    op("logsumexp dims", lambda x: torch.logsumexp(x, dim=(0, 2), keepdim=True), X),
    op("median", torch.median, D),
    op("median dim", lambda x: torch.median(x, dim=1), D),
    op("median keepdim", lambda x: torch.median(x, dim=-1, keepdim=True), D),
    op("nanmedian", torch.nanmedian, D),
    op("max all", torch.max, D),
    op("min all", torch.min, D),
    op("max dim", lambda x: torch.max(x, dim=1), D),
    op("min dim", lambda x: torch.min(x, dim=-1, keepdim=True), D),
    op("aminmax", lambda x: torch.aminmax(x, dim=1), D),
    op("quantile", lambda x: torch.quantile(x, 0.4, dim=1), D),
    const("sum int", torch.sum, INTEGERS),
    const("sum int dim", lambda i: i.sum(1), INTEGERS),
    const("prod int", lambda i: torch.prod(i, 1), INTEGERS),
    const("sum int32", torch.sum, INTEGERS.int()),
    const("sum bool", torch.sum, B),
    const("sum bool dim", lambda b: b.sum(dim=1), B),
    const("prod bool", lambda b: b.prod(dim=1), B),
    op("sum dtype", lambda x: x.sum(dtype=torch.float32), X),
    const("mean int as float", lambda i: i.mean(dtype=torch.float32), INTEGERS),
    *(const(f"{n} bool", getattr(torch, n), B) for n in ("all", "any")),
    *(const(f"{n} dim", lambda b, n=n: getattr(torch, n)(b, dim=1), B) for n in ("all", "any")),
    *(const(f"{n} float keepdim", lambda x, n=n: getattr(torch, n)(x, 0, keepdim=True), M) for n in ("all", "any")),
    *(const(f"{n} all", getattr(torch, n), D) for n in ("argmax", "argmin")),
    *(const(f"{n} dim", lambda x, n=n: getattr(torch, n)(x, dim=1), D) for n in ("argmax", "argmin")),
    *(const(f"{n} keepdim", lambda x, n=n: getattr(torch, n)(x, -1, keepdim=True), D) for n in ("argmax", "argmin")),
    const("count_nonzero", torch.count_nonzero, INTEGERS),
    const("count_nonzero dim", lambda i: torch.count_nonzero(i, dim=1), INTEGERS),
    const("nansum with nan", lambda x: torch.nansum(x[:, :1], dim=1), NAN),
    # norms
    *(
        op(f"norm {p}", lambda x, p=p: torch.norm(x, p=p), M)
        for p in ("fro", float("inf"), float("-inf"), 1, 2, 3, 2.5)
    ),
    op("norm dim", lambda x: torch.norm(x, dim=1), X),
    op("norm dims keepdim", lambda x: x.norm(p=2, dim=(0, 2), keepdim=True), X),
    op("norm 3 dim", lambda x: torch.norm(x, p=3, dim=-1), X),
    op("linalg.norm", torch.linalg.norm, M),
    op("linalg.norm dim", lambda x: torch.linalg.norm(x, ord=1, dim=1), X),
    *(op(f"matrix_norm {o}", lambda x, o=o: torch.linalg.matrix_norm(x, o), X) for o in ("fro", 1, -1, float("inf"))),
    op("matrix_norm nuclear", lambda x: torch.linalg.matrix_norm(x, "nuc"), M),
    op("matrix_norm 2", lambda x: torch.linalg.matrix_norm(x, 2), M),
    *(op(f"vector_norm {o}", lambda x, o=o: torch.linalg.vector_norm(x, o), X) for o in (1, 2, 3.5, float("inf"))),
    # comparison
    *(const(n, getattr(torch, n), X.round(), Y.round()) for n in COMPARISONS),
    *(const(f"{n} scalar", lambda x, n=n: getattr(torch, n)(x, 0.5), X) for n in COMPARISONS),
    *(const(f"{n} int", lambda i, n=n: getattr(torch, n)(i, 1), INTEGERS) for n in COMPARISONS),
    *(const(n, getattr(torch, n), NAN) for n in ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit")),
    const("isclose", torch.isclose, X, X + 1e-7),
    const("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), X),
    const("bucketize right", lambda i, b: torch.bucketize(i, b, right=True), INTEGERS, torch.tensor([-2, 0, 3])),
    const("searchsorted", torch.searchsorted, D.flatten().sort().values, X),
    # order
    op("topk", lambda x: torch.topk(x, 2), D),
    op("topk dim", lambda x: torch.topk(x, 2, dim=1), D),
    op("topk smallest", lambda x: torch.topk(x, 2, dim=0, largest=False), D),
    op("sort", torch.sort, D),
    op("sort descending", lambda x: torch.sort(x, dim=1, descending=True), D),
    const("sort stable", lambda i: torch.sort(i, dim=1, stable=True), INTEGERS),
    const("argsort", torch.argsort, D),
    const("argsort descending", lambda x: torch.argsort(x, dim=1, descending=True), D),
    op("kthvalue", lambda x: torch.kthvalue(x, 2, dim=1), D),
    op("msort", torch.msort, D),
    const("mode", lambda i: torch.mode(i, dim=1), ints(0, 3, 3, 9)),
    # running
    op("cumsum", lambda x: torch.cumsum(x, 1), X),
    const("cumsum int", lambda i: torch.cumsum(i, 0), INTEGERS),
    op("cumsum dtype", lambda x: torch.cumsum(x, 0, dtype=torch.float32), X),
    const("cumsum int to float", lambda i: torch.cumsum(i, 0, dtype=torch.float32), INTEGERS),
    op("cumprod", lambda x: torch.cumprod(x, -1), between(0.5, 2.0, 3, 4)),
    op("cummax", lambda x: torch.cummax(x, 1), D),
    op("logcumsumexp", lambda x: torch.logcumsumexp(x, 1), X),
    op("diff", lambda x: torch.diff(x, dim=1), X),
    op("trapezoid", lambda x: torch.trapezoid(x, dim=1), X),
    # products and distances
    op("cross", lambda x, y: torch.cross(x, y, dim=0), X, Y),
    op("cross last", lambda x, y: torch.linalg.cross(x, y), normal(4, 3), normal(4, 3, seed=1)),
    op("meshgrid", lambda a, b: torch.meshgrid(a, b, indexing="ij"), normal(3), normal(4)),
    op("meshgrid xy", lambda a, b: torch.meshgrid(a, b, indexing="xy"), normal(3), normal(4)),
    op("cartesian_prod", torch.cartesian_prod, normal(3), normal(2), normal(4)),
    op("tensordot", lambda x, y: torch.tensordot(x, y, dims=2), X, normal(4, 5, 2)),
    op("tensordot dims", lambda x, y: torch.tensordot(x, y, dims=([1, 0], [0, 1])), X, normal(4, 3, 2)),
    op("einsum", lambda x, y: torch.einsum("ij,jk->ik", x, y), M, normal(4, 5)),
    op("einsum implicit", lambda x, y: torch.einsum("ij,jk", x, y), M, normal(4, 5)),
    op("einsum spaces and transpose", lambda x, y: torch.einsum("b i j, b k j -> k i b", x, y), X, normal(3, 2, 5)),
    op("einsum outer", lambda x, y: torch.einsum("i,j->ij", x, y), normal(3), normal(4)),
    op(
        "einsum bilinear",
        lambda a, b, c: torch.einsum("bn,anm,bm->ba", a, b, c),
        normal(2, 3),
        normal(4, 3, 5),
        normal(2, 5),
    ),
    op("einsum ellipsis", lambda x, y: torch.einsum("...ij,...jk->...ik", x, y), X, normal(3, 5, 2)),
    op("einsum diagonal", lambda x: torch.einsum("ii->i", x), normal(4, 4)),
    *(
        op(
            f"pairwise_distance {p}",
            lambda x, y, p=p: torch.nn.functional.pairwise_distance(x, y, p=p),
            M,
            normal(3, 4, seed=1),
        )
        for p in (1.0, 2.0, 3.0, 4.0)
    ),
    op("cosine_similarity", lambda x, y: torch.cosine_similarity(x, y, dim=1), X, Y),
    *(
        op(f"cdist {p}", lambda x, y, p=p: torch.cdist(x, y, p=p), M, normal(5, 4))
        for p in (1.0, 2.0, 3.0, float("inf"))
    ),
    op("pdist", lambda x: torch.nn.functional.pdist(x), M),
    op("dist", lambda x, y: torch.dist(x, y), X, Y),
    op("renorm", lambda x: torch.renorm(x, 2, 0, 1.0), M),
]
