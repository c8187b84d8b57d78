"""Which attributes of an optimizer are baked into the program, and which may change while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

ACCUMULATION_TYPES = (torch.float16, torch.float32)


@dataclass(frozen=True)
class HyperValue:
    """One number of an optimizer: its value now, and whether the compiled program may rely on it.

    >>> HyperValue.derived(lambda lr, scale: lr / scale, HyperValue(0.5, False), HyperValue(2.0, True))
    HyperValue(value=0.25, is_constant=False)
    """

    value: float
    is_constant: bool

    @staticmethod
    def derived(formula: Callable[..., float], *sources: HyperValue) -> HyperValue:
        """``formula`` of the sources' values: constant only if every source is.

        A division by zero gives NaN: :func:`poptorch.optim.ranges.check_ranges` refuses the attribute at
        fault.
        """
        try:
            value = float(formula(*(source.value for source in sources)))
        except ZeroDivisionError:
            value = math.nan
        return HyperValue(value, all(source.is_constant for source in sources))

    def is_always(self, value: float) -> bool:
        """Whether the program may take ``value`` for granted."""
        return self.is_constant and self.value == value


class VariableAttributes:
    """The attributes of a ``poptorch.optim`` optimizer that may change after compilation.

    Attributes passed to the optimizer's constructor start as variable, all others as constant.

    >>> attributes = VariableAttributes(["lr"], ["lr", "momentum"])
    >>> attributes.isConstant("lr"), attributes.isConstant("momentum")
    (False, True)
    >>> attributes.markAsVariable("momentum")
    >>> attributes.isConstant("momentum")
    False
    """

    def __init__(self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]) -> None:
        self._variable_attributes = list(variable_attributes)
        self._allowed_attributes = list(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        """Whether ``attr`` will be (or was) compiled into the program."""
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Compile the value of ``attr`` into the program; has to happen before compilation."""
        self._check_known(attr)
        self._variable_attributes = [name for name in self._variable_attributes if name != attr]

    def markAsVariable(self, attr: str) -> None:
        """Let ``attr`` change after compilation; has to happen before compilation."""
        self._check_known(attr)
        if attr not in self._variable_attributes:
            self._variable_attributes.append(attr)

    def copy(self) -> VariableAttributes:
        """An independent object with the same marks."""
        return VariableAttributes(self._variable_attributes, self._allowed_attributes)

    def _check_known(self, attr: str) -> None:
        assert attr in self._allowed_attributes, (
            f"Unknown attribute {attr!r}, allowed values: {self._allowed_attributes}"
        )

    def __repr__(self) -> str:
        return f"VariableAttributes({self._variable_attributes}, {self._allowed_attributes})"


def check_accumulation_types(*types: torch.dtype) -> None:
    """Refuse a type that gradients or momenta cannot be accumulated in.

    >>> check_accumulation_types(torch.float16, torch.float64)
    Traceback (most recent call last):
    ...
    AssertionError: Accumulation types must be either torch.float32 or torch.float16, not torch.float64
    """
    for dtype in types:
        assert dtype in ACCUMULATION_TYPES, (
            f"Accumulation types must be either torch.float32 or torch.float16, not {dtype}"
        )
