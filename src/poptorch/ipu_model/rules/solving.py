"""Rules for linear algebra and Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

from poptorch.ipu_model.cycles.solving import decomposition
from poptorch.ipu_model.rules.call import CostedCall, CostedOperand, Rule, Table
from poptorch.ipu_model.rules.expressions import sequence
from poptorch.ipu_model.rules.passes import move
from poptorch.ipu_model.rules.products import joined, product
from poptorch.ipu_model.steps import CostStep, Exchange, OpCost, Vertices


def _matrix(call: CostedCall) -> CostedOperand:
    return max((operand for operand in call.operands if len(operand.shape) > 1), key=lambda o: o.elements)


def _decomposition(kind: str, products: int = 0) -> Rule:
    """Cycles of one matrix, spread over about as many tiles as it has columns; a batch shares the others.

    ``products`` of matrices of this size come on top: results that are put together, gradients.
    """

    def rule(call: CostedCall) -> OpCost:
        matrix = _matrix(call)
        chip, size = call.chip, max(matrix.shape[-2:])
        batch = max(1, math.prod(matrix.shape[:-2]))
        together = max(1, chip.tiles // max(1, size))
        turns = -(-batch // together)
        columns = float(size * matrix.element_type.itemsize)
        # The published cycles include synchronisation and exchange: they count as computation of one long step.
        cycles = decomposition(kind, size) * max(1.0, size / chip.tiles)
        tiles = min(chip.tiles, size * batch)
        step = CostStep(
            call.name, cycles * turns, cycles * turns * tiles, Exchange(columns, columns * tiles, 4),
            (Vertices("search", 4, 4 * tiles, 40),), tiles, 1, 2 * columns,
        )  # fmt: skip
        more = [product(call, batch, size, size, size, matrix.dtype)] * products
        return joined([OpCost((step,), (4 / 3) * batch * size**3), *more])

    return rule


# -- Fourier transforms ------------------------------------------------------------------------------------------------


def _transform(call: CostedCall) -> OpCost:
    """Each dimension as two products with small matrices of roots of unity, and factors between them."""
    data, result = call.operands[0], call.result
    large = max((data, result), key=lambda operand: operand.elements)
    dims: Any = call.get("dim", -1)
    chosen = (dims,) if isinstance(dims, int) else tuple(dims)
    numbers = math.prod(large.shape)
    costs: list[OpCost] = []
    for dim in chosen:
        length = max(1, large.shape[dim])
        first = _factor(length)
        for size in {first, length // first} - {1} or {1}:
            # A complex product is one of real matrices twice as large in one direction.
            costs.append(product(call, 1, max(1, numbers // size), 2 * size, 2 * size, large.element_type))
        steps = sequence(call.chip, f"{call.name}: factors", "multiply multiply add", 2 * numbers, large.element_type)
        turn = move(call.chip, f"{call.name}: arrange", 2 * numbers, large.element_type, aligned=False)
        costs.append(OpCost((*steps, turn)))
    return joined(costs)


def _factor(length: int) -> int:
    """The divisor of a length that is nearest to its root."""
    return max(size for size in range(1, math.isqrt(length) + 1) if length % size == 0)


_NAMES: dict[str, Rule] = {
    "linalg_qr geqrf orgqr ormqr linalg_householder_product": _decomposition("qr"),
    "linalg_lu linalg_lu_factor linalg_lu_factor_ex lu_unpack _linalg_det _linalg_slogdet det slogdet logdet":
        _decomposition("lu"),
    "linalg_cholesky_ex linalg_cholesky cholesky": _decomposition("cholesky"),
    "cholesky_solve cholesky_inverse": _decomposition("triangular", 1),
    "linalg_solve_triangular triangular_solve linalg_lu_solve linalg_ldl_factor_ex linalg_ldl_solve":
        _decomposition("triangular"),
    "linalg_inv_ex inverse linalg_inv": _decomposition("inverse"),
    "_linalg_solve_ex linalg_solve": _decomposition("solve"),
    "static_lstsq linalg_lstsq linalg_pinv": _decomposition("least_squares", 1),
    "_linalg_eigh linalg_eigh linalg_eigvalsh": _decomposition("eigen"),
    "linalg_eig linalg_eigvals _linalg_eigvals": _decomposition("eigen", 2),
    "_linalg_svd linalg_svd linalg_svdvals": _decomposition("singular", 1),
    "_fft_r2c _fft_c2r _fft_c2c": _transform,
}  # fmt: skip

RULES: Table = {name: rule for names, rule in _NAMES.items() for name in names.split()}

__all__ = ["RULES"]
