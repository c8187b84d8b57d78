"""Matrix products (section 3.6) and linear algebra."""

from __future__ import annotations

import torch
from op_samples import const, ints, normal, op

A = normal(3, 4)
B = normal(4, 5)
P = normal(2, 3, 4)
Q = normal(2, 4, 5)
S = normal(4, 4) @ normal(4, 4).T + 4 * torch.eye(4)
V = normal(4)
CONDITION = {"steps": 8}
"""Of S, rounded up: by how much these functions enlarge the errors of their operands."""

ROWS = [
    op("matmul", torch.matmul, A, B),
    op("matmul operator", lambda a, b: a @ b, A, B),
    op("matmul vector", torch.matmul, A, V),
    op("matmul dot", torch.matmul, V, normal(4, seed=1)),
    op("matmul batch", torch.matmul, P, Q),
    op("matmul broadcast", torch.matmul, normal(5, 1, 3, 4), Q),
    const("matmul int", torch.matmul, ints(0, 5, 3, 4), ints(0, 5, 4, 2)),
    op("mm", torch.mm, A, B),
    op("mv", torch.mv, A, V),
    op("bmm", torch.bmm, P, Q),
    op("dot", torch.dot, V, normal(4, seed=1)),
    op("inner", torch.inner, A, normal(2, 4)),
    op("outer", torch.outer, V, normal(3)),
    op("addmm", torch.addmm, normal(3, 5), A, B),
    op("addmm scaled", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0), normal(5), A, B),
    op("addmv", lambda c, a, v: torch.addmv(c, a, v, beta=0.5, alpha=2.0), normal(3), A, V),
    op("addr", torch.addr, normal(3, 4), normal(3), V),
    op("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0), normal(2, 3, 5), P, Q),
    op("addbmm", torch.addbmm, normal(3, 5), P, Q),
    op("kron", torch.kron, normal(2, 2), normal(2, 3)),
    op("chain_matmul", lambda a, b, c: torch.linalg.multi_dot([a, b, c]), A, B, normal(5, 2)),
    op("matrix_power", lambda s: torch.linalg.matrix_power(s, 3), S, **CONDITION),
    op("matrix_exp", torch.matrix_exp, normal(3, 3), **CONDITION),
    op("trace", torch.trace, normal(4, 4)),
    op("linalg.inv", torch.linalg.inv, S, **CONDITION),
    op("linalg.det", torch.linalg.det, S, **CONDITION),
    op("linalg.slogdet", torch.linalg.slogdet, S, **CONDITION),
    op("linalg.cholesky", lambda s: torch.linalg.cholesky((s + s.T) / 2), S, **CONDITION),
    op("linalg.solve", torch.linalg.solve, S, normal(4, 2), **CONDITION),
    op(
        "solve_triangular",
        lambda s, b: torch.linalg.solve_triangular(s.triu(), b, upper=True),
        S,
        normal(4, 2),
        **CONDITION,
    ),
    op("linalg.qr", torch.linalg.qr, S, **CONDITION),
    op("linalg.eigvalsh", lambda s: torch.linalg.eigvalsh((s + s.T) / 2), S, **CONDITION),
    op("linalg.svdvals", torch.linalg.svdvals, A, **CONDITION),
    op("linalg.pinv", torch.linalg.pinv, A, **CONDITION),
    op("linalg.lstsq", lambda a, b: torch.linalg.lstsq(a, b).solution, normal(5, 3), normal(5, 2), **CONDITION),
    const("vander", lambda v: torch.vander(v, 3), V),
]
