"""Loop costs of elementwise codelets: cycles for so many elements, by operation and type."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch

from poptorch.ipu_model.architecture import vector_width

WORKERS = 6


@dataclass(frozen=True)
class InnerLoop:
    """One turn of a worker's loop."""

    cycles: float
    elements: int

    def over(self, elements: int) -> float:
        """Cycles of a worker for so many elements."""
        return self.cycles * -(-elements // self.elements)


def per_worker(elements: int) -> int:
    """Elements of the busiest of the workers that share a vertex."""
    return -(-elements // WORKERS)


def _rows(text: str) -> dict[str, tuple[InnerLoop | str, InnerLoop | str]]:
    """Rows of ``names: fp32 fp16``; ``3/2`` are cycles per elements, ``2v`` cycles for a vector without overhead."""
    rows: dict[str, tuple[InnerLoop | str, InnerLoop | str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        names, _, costs = line.partition(":")
        single, half = costs.split()
        for name in names.split():
            rows[name] = (_entry(single), _entry(half))
    return rows


def _entry(text: str) -> InnerLoop | str:
    if text.endswith("v"):
        return text
    cycles, _, elements = text.partition("/")
    return InnerLoop(float(cycles), int(elements))


def _loop(entry: InnerLoop | str, dtype: torch.dtype, overhead: float) -> InnerLoop:
    if isinstance(entry, InnerLoop):
        return entry
    return InnerLoop(float(entry[:-1]) + overhead, vector_width(dtype))


_UNARY = MappingProxyType(
    _rows("""
    relu: 3/2 3/4
    exp exp2: 6/2 4/4
    log: 12/2 4/4
    tanh: 12/2 4/4
    sigmoid: 12/2 6/4
    sqrt: 10/2 23/4
    rsqrt: 8/2 19/4
    inverse: 6/2 15/4
    square: 2/2 2/4
    negate: 2/2 2/4
    erf: 41/1 13/1
    gelu_erf: 22/1 16/1
    sin cos: 2304/1 25/1
    tan: 5100/1 5700/1
    asin: 106/1 106/1
    cbrt: 27v 17v
    log1p: 18v 18v
    expm1: 8/1 5v
    abs: 5/1 5/1
    ceil floor round: 2v 2v
    trunc: 3/2 11/4
    signum: 5v 5v
    isnan: 3v 3v
    isinf: 3v 5v
    isfinite: 5v 5v
    bitwise_not: 1v 1v
    logical_not: 21/1 21/1
    variance_to_inverse: 12/2 24/4
""")
)
_UNARY_IN_PLACE = MappingProxyType(
    _rows("""
    relu: 2/2 2/4
    log: 14/2 6/4
    tanh: 10/2 2/4
    sigmoid: 10/2 4/4
    negate: 3/2 3/4
    abs: 1v 1v
    log1p: 18v 17v
    trunc: 4/2 11/4
""")
)
_BINARY = MappingProxyType(
    _rows("""
    divide: 10/2 21/4
    maximum minimum: 3/2 4/4
    power: 312/1 325/1
    remainder: 133/2 300/4
    atan2: 272/2 578/4
    compare: 14/4 9/4
    not_equal: 20/4 11/4
""")
)
_SCALAR = MappingProxyType(
    _rows("""
    divide: 6/2 8/2
    maximum minimum: 3/2 3/4
    compare not_equal: 12/4 8/4
""")
)
_WHOLE = MappingProxyType({"divide": InnerLoop(277, 1), "remainder": InnerLoop(292, 1)})
_WHOLE_UNSIGNED = MappingProxyType({"divide": InnerLoop(265, 1), "remainder": InnerLoop(282, 1)})
_FAST = {"add", "subtract", "multiply"}

UNARY_NAMES = frozenset(_UNARY)
BINARY_NAMES = frozenset({*_BINARY, *_FAST, "integer"})
_UNSIGNED = {torch.uint8, torch.uint16, torch.uint32, torch.bool}


def _column(dtype: torch.dtype) -> int:
    return 1 if dtype.is_floating_point and dtype.itemsize <= 2 else 0


def unary_loop(name: str, dtype: torch.dtype, in_place: bool = False) -> InnerLoop:
    """The loop of an operation with one operand."""
    row = _UNARY_IN_PLACE.get(name, _UNARY[name]) if in_place else _UNARY[name]
    return _loop(row[_column(dtype)], dtype, 4)


def binary_loop(name: str, dtype: torch.dtype, in_place: bool = False) -> InnerLoop:
    """The loop of an operation with two operands of one size."""
    if name == "integer" or (not dtype.is_floating_point and name not in ("compare", "not_equal")):
        return (_WHOLE_UNSIGNED if dtype in _UNSIGNED else _WHOLE).get(name, InnerLoop(7, 1))
    if name in _FAST:
        return InnerLoop(3, vector_width(dtype))
    if in_place and name in ("maximum", "minimum") and not _column(dtype):
        return InnerLoop(4, 2)
    return _loop(_BINARY[name][_column(dtype)], dtype, 5)


def scalar_loop(name: str, dtype: torch.dtype) -> InnerLoop:
    """The loop of an operation with a tensor and one number."""
    if name == "integer" or (not dtype.is_floating_point and name not in ("compare", "not_equal")):
        return (_WHOLE_UNSIGNED if dtype in _UNSIGNED else _WHOLE).get(name, InnerLoop(6, 1))
    if name in _FAST:
        return InnerLoop(2, vector_width(dtype))
    row = _SCALAR.get(name)
    return binary_loop(name, dtype) if row is None else _loop(row[_column(dtype)], dtype, 4)


__all__ = [
    "BINARY_NAMES",
    "UNARY_NAMES",
    "WORKERS",
    "InnerLoop",
    "binary_loop",
    "per_worker",
    "scalar_loop",
    "unary_loop",
]
