"""Cycles of decompositions and solvers on a whole IPU, from published measurements."""

from __future__ import annotations

import math

_QR = {32: 162e3, 64: 245e3, 128: 424e3, 256: 825e3, 512: 1.86e6, 1024: 6.5e6, 2048: 26.9e6}
"""Cycles of the vendor's QR decomposition of a square matrix on one IPU, by its size."""

_EIGEN = {32: 335e3, 64: 960e3, 128: 2.8e6, 256: 9.6e6}
"""Of a Jacobi eigen-decomposition with six sweeps."""

_SHARE_OF_QR = {
    "qr": 1.0, "lu": 0.5, "cholesky": 0.25, "triangular": 0.25, "inverse": 1.0, "solve": 0.75, "least_squares": 1.25,
}  # fmt: skip
"""Work compared with a QR decomposition, by the number of operations of the textbook algorithms. An assumption: only QR
and eigenvalues were published."""


def decomposition(kind: str, size: int) -> float:
    """Cycles for one square matrix.

    >>> decomposition("qr", 256), decomposition("cholesky", 256), round(decomposition("qr", 4096) / 1e6)
    (825000.0, 206250.0, 215)
    """
    if kind == "eigen":
        return _between(_EIGEN, size)
    if kind == "singular":
        return 2 * _between(_EIGEN, size)
    return _SHARE_OF_QR[kind] * _between(_QR, size)


def _between(points: dict[int, float], size: int) -> float:
    """On straight lines between points, both axes logarithmic; beyond the last, the cube; before the first, in
    proportion to the size."""
    sizes = sorted(points)
    if size <= sizes[0]:
        return points[sizes[0]] * max(1, size) / sizes[0]
    if size >= sizes[-1]:
        return points[sizes[-1]] * (size / sizes[-1]) ** 3
    upper = next(known for known in sizes if known >= size)
    lower = sizes[sizes.index(upper) - 1]
    place = math.log(size / lower) / math.log(upper / lower)
    return points[lower] * (points[upper] / points[lower]) ** place


__all__ = ["decomposition"]
