"""An operation as rules see it: names, shapes and types, nothing of the graph around it.

Two operations with the same description cost the same, so a cost is computed once for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from poptorch.ipu_model.architecture import Architecture
from poptorch.ipu_model.steps import OpCost, spread

ON_IPU = {
    torch.float64: torch.float32,
    torch.bfloat16: torch.float16,
    torch.int64: torch.int32,
    torch.complex128: torch.complex64,
}
"""Types that IPUs lack, and what is used in their place."""


@dataclass(frozen=True)
class CostedOperand:
    """What is known about one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] = field(default=())
    home: int = 0
    """Which mapping to tiles it has, counted among the operands of one call: equal numbers, equal mappings."""

    resident: bool = False
    """Whether it is a weight or input of the program that lies as its forward operation wants it."""

    @cached_property
    def elements(self) -> int:
        """How many there are; a complex number counts two."""
        return math.prod(self.shape) * (2 if self.dtype.is_complex else 1)

    @property
    def element_type(self) -> torch.dtype:
        """The type of one element on an IPU."""
        return real_type(self.dtype)

    @property
    def bytes(self) -> int:
        """On an IPU."""
        return self.elements * self.element_type.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie in the order of their indices, with nothing between them."""
        if not self.strides:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def share(self, chip: Architecture) -> int:
        """Elements on the busiest tile, when all tiles share them."""
        return spread(self.elements, self.element_type.itemsize, chip.tiles)


def real_type(dtype: torch.dtype) -> torch.dtype:
    """The type of a real number on an IPU.

    >>> real_type(torch.float64), real_type(torch.complex64)
    (torch.float32, torch.float32)
    """
    if dtype.is_complex:
        return torch.float16 if dtype == torch.complex32 else torch.float32
    return ON_IPU.get(dtype, dtype)


@dataclass(frozen=True)
class CostedCall:
    """One operation on one kind of chip."""

    operator: torch._ops.OpOverload
    arguments: tuple[tuple[str, Any], ...]
    """Every argument by its name in the schema; tensors are operands."""

    results: tuple[CostedOperand, ...]
    chip: Architecture
    partials: torch.dtype = torch.float32
    """Type of partial sums, for products."""

    proportion: float = 0.6
    """Share of tile memory that the operation may use temporarily."""

    cycles: float | None = None
    """What the author of a custom operator says."""

    @cached_property
    def name(self) -> str:
        """``add`` for ``aten.add_.Tensor``."""
        return bare_name(self.operator)

    @cached_property
    def by_name(self) -> dict[str, Any]:
        """The arguments as a dictionary."""
        return dict(self.arguments)

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name]

    def get(self, name: str, otherwise: Any = None) -> Any:
        """The argument with this name, if the operator has it."""
        return self.by_name.get(name, otherwise)

    @cached_property
    def operands(self) -> tuple[CostedOperand, ...]:
        """All tensors among the arguments."""
        return tuple(_operands(tuple(value for _, value in self.arguments)))

    @property
    def result(self) -> CostedOperand:
        """The first result; of an operation that only writes, what it writes to."""
        return self.results[0] if self.results else self.operands[0]

    @property
    def in_place(self) -> bool:
        """Whether it writes to its first operand."""
        return self.operator._schema.is_mutable


def bare_name(operator: torch._ops.OpOverload) -> str:
    """The name of an operator without the mark of forms that write in place.

    >>> bare_name(torch.ops.aten.add_.Tensor)
    'add'
    """
    name = operator._schema.name.rpartition("::")[2]
    return name.rstrip("_") if not name.endswith("__") else name


def _operands(value: Any) -> Iterator[CostedOperand]:
    if isinstance(value, CostedOperand):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _operands(item)


Rule = Callable[[CostedCall], OpCost]
"""Says what an operation costs."""

Table = dict[str, Rule]
"""Rules by the bare names of operations."""

__all__ = ["ON_IPU", "CostedCall", "CostedOperand", "Rule", "Table", "bare_name", "real_type"]
