"""Floating-point exceptions: an operation that makes a NaN or an infinity out of ordinary numbers is an error.

The rules are those of IEEE 754. *Invalid*: a NaN without a NaN among the operands, or an order comparison with a NaN.
*Overflow* and *division by zero*: an infinity without one among the operands. As on the device, dividing by an infinity
is refused as well. Moving, choosing and filling in values is never an exception, so masks may hold infinities.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from poptorch.errors import createPoptorchError
from poptorch.host.interpret.half import is_arithmetic
from poptorch.host.interpret.lines import described
from poptorch.ops.traits import OpKind, traits_of

_BY_ELEMENT = frozenset({OpKind.ELEMENTWISE, OpKind.ACTIVATION, OpKind.COPY})
"""Operations whose results depend on the operands at the same place alone, if the shapes say so."""


def check_of(node: fx.Node) -> Check | None:
    """A function of the node's result and operands that raises for an exception; ``None`` where none can occur."""
    traits = traits_of(node)
    if traits.compares_order:
        return _ComparisonCheck(node)
    if not is_arithmetic(node):
        return None
    return _WriteCheck(node) if traits.is_in_place else _ResultCheck(node)


class Check:
    """Looks at the result and the operands of one operation, and knows what to say about it when it fails."""

    def __init__(self, node: fx.Node) -> None:
        self._divides = traits_of(node).divides
        self._where = described(node)

    def fault(self, result: Any, operands: tuple[Any, ...]) -> str | None:
        """What is wrong; ``None``: nothing."""
        raise NotImplementedError

    def __call__(self, result: Any, operands: tuple[Any, ...]) -> None:
        what = self.fault(result, operands)
        if what is None:
            return
        raise createPoptorchError(
            f"Floating point exception: {what} in {self._where}. The values of this call are lost, the model "
            "can be called again. options.Precision.enableFloatingPointExceptions(False) lets such values through."
        )


class _ComparisonCheck(Check):
    """An order comparison with a NaN has no right answer."""

    def fault(self, result: Any, operands: tuple[Any, ...]) -> str | None:
        return "invalid operation (comparison with NaN)" if _any_nan(operands) else None


class _ResultCheck(Check):
    """New NaNs and new infinities. One that was there before hides none in other elements."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(node)
        self._by_element = traits_of(node).kind in _BY_ELEMENT

    def fault(self, result: Any, operands: tuple[Any, ...]) -> str | None:
        if self._divides and len(operands) > 1 and _any_inf(operands[1:2]):
            return "invalid operation (division by infinity)"
        if all(torch.isfinite(t).all() for t in _floats(result)):
            return None
        nan, inf = self._within(torch.isnan, result, operands), self._within(torch.isinf, result, operands)
        if any(bool((torch.isnan(t) & ~nan).any()) for t in _floats(result)):
            return "invalid operation (the result is not a number)"
        if any(bool((torch.isinf(t) & ~inf & ~nan).any()) for t in _floats(result)):
            zero = self._divides and (len(operands) < 2 or _any_zero(operands[1:2]))
            return "division by zero" if zero else "overflow"
        return None

    def _within(self, test: Callable[[torch.Tensor], torch.Tensor], result: Any, operands: Any) -> torch.Tensor:
        """Which elements of the result have such an operand; for operations that mix elements, all or none."""
        found = [test(operand) for operand in _floats(operands)]
        if self._by_element and isinstance(result, torch.Tensor) and all(_fits(it, result) for it in found):
            return functools.reduce(torch.logical_or, found, torch.zeros(result.shape, dtype=torch.bool))
        return torch.tensor(any(bool(it.any()) for it in found))


class _WriteCheck(Check):
    """After an operation in place the operands of before are gone: what was written must be ordinary numbers."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(node)
        arguments = node.target._schema.arguments  # type: ignore[union-attr]
        self._written = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]

    def fault(self, result: Any, operands: tuple[Any, ...]) -> str | None:
        written = [operands[i] for i in self._written if i < len(operands)]
        if _any_nan(written):
            return "invalid operation (the result is not a number)"
        return "overflow" if _any_inf(written) else None


def _floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, float):
        yield torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _floats(item)


def _fits(operand: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether each element of the operand belongs to certain elements of the result."""
    try:
        return torch.broadcast_shapes(operand.shape, result.shape) == result.shape
    except RuntimeError:
        return False


def _any_nan(value: Any) -> bool:
    return any(bool(torch.isnan(t).any()) for t in _floats(value))


def _any_inf(value: Any) -> bool:
    return any(bool(torch.isinf(t).any()) for t in _floats(value))


def _any_zero(value: Any) -> bool:
    return any(bool((t == 0).any()) for t in _floats(value)) or any(v == 0 for v in value if isinstance(v, int))
