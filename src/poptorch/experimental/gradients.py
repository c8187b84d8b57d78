"""Gradients of the arguments of captured code: they are added to the ``grad`` of leaf tensors, as in eager mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from poptorch.experimental.arguments import collects_gradient


@dataclass(frozen=True)
class LeafGradients:
    """What a run of captured code does to the ``grad`` of its arguments, given by their positions."""

    replaced: tuple[int, ...] = ()
    """Arguments with another tensor as ``grad``. Values come in this order, those of ``written`` after it."""

    written: tuple[int, ...] = ()
    """Arguments with other values in the ``grad`` that they had."""

    cleared: tuple[int, ...] = ()
    """Arguments that lose their ``grad``."""

    def __bool__(self) -> bool:
        return bool(self.replaced or self.written)

    def give(self, arguments: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Do it to the user's tensors."""
        for index in self.cleared:
            arguments[index].grad = None
        for index, value in zip((*self.replaced, *self.written), values, strict=True):
            tensor = arguments[index]
            given = tensor.grad if index in self.written else None
            value = value.as_subclass(torch.Tensor).reshape(tensor.shape)
            if given is None:
                tensor.grad = value.to(tensor.dtype)
            else:
                with torch.no_grad():
                    given.copy_(value)

    def add(self, arguments: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Add the values to what the user's tensors have; those that collect no gradient get none."""
        for index, value in zip(self.replaced, values, strict=True):
            tensor = arguments[index]
            if collects_gradient(tensor):
                added = value.as_subclass(torch.Tensor).reshape(tensor.shape).to(tensor.dtype)
                with torch.no_grad():
                    tensor.grad = added if tensor.grad is None else tensor.grad.add_(added)


class GradientWatch:
    """Looks at the gradients of stand-ins before and after the function has run under capture."""

    def __init__(
        self, positions: Sequence[int], stand_ins: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> None:
        """``given`` are the gradients that the stand-ins start with; empty: none."""
        self._positions, self._stand_ins = positions, stand_ins
        self._given: list[torch.Tensor | None] = [*given] or [None] * len(stand_ins)
        for stand_in, gradient in zip(stand_ins, self._given, strict=True):
            stand_in.grad = gradient
        self._versions = [None if g is None else g._version for g in self._given]

    def changes(self) -> tuple[LeafGradients, list[torch.Tensor]]:
        """What has changed, and the new values."""
        replaced, written, cleared = {}, {}, []
        for index, stand_in, given, version in zip(
            self._positions, self._stand_ins, self._given, self._versions, strict=True
        ):
            gradient = stand_in.grad
            if gradient is None:
                cleared += [] if given is None else [index]
            elif gradient is not given:
                replaced[index] = gradient
            elif gradient._version != version:
                written[index] = gradient
        values = [gradient.detach() for gradient in (*replaced.values(), *written.values())]
        return LeafGradients(tuple(replaced), tuple(written), tuple(cleared)), values
