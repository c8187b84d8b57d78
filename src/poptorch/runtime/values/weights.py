"""The weights as the engine hands them to generated code, with what that code derives from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Copies:
    """float32 copies of weights, each made at its first use and refreshed when the weights changed."""

    def __init__(self) -> None:
        self._known: dict[int, torch.Tensor] = {}
        self._fresh: set[int] = set()

    def __call__(self, index: int, weight: torch.Tensor) -> torch.Tensor:
        found = self._known.get(index)
        if found is None:
            found = self._known[index] = weight.float()
            self._fresh.add(index)
        elif index not in self._fresh:
            found.copy_(weight)
            self._fresh.add(index)
        return found

    def outdated(self) -> None:
        """The weights changed."""
        self._fresh.clear()


class Weights(list[torch.Tensor]):
    """The parameters of an engine, with float32 copies that live as long as the parameters do not change.

    >>> weights = Weights([torch.ones(2, dtype=torch.float16)])
    >>> weights.copies(0, weights[0]) is weights.copies(0, weights[0])
    True
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        super().__init__(tensors)
        self.copies = Copies()
        self.derived: dict[Any, Any] = {}
        """What generated code computed from the weights ahead of its calls, by that code."""

    def changed(self) -> None:
        """To be called whenever an element, or a buffer that goes with the weights, was written to."""
        self.copies.outdated()
        self.derived.clear()


def copies_of(parameters: Any) -> Copies:
    """The float32 copies that go with ``parameters``; a plain list has none that outlive the call."""
    return parameters.copies if isinstance(parameters, Weights) else Copies()
