"""Gradients on their way between processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch


class Collective(Protocol):
    """One of the operations of a transfer."""

    def advance(self) -> None:
        """Wait for the others, and do what there is to do before the next time that all meet."""

    def wait(self) -> None:
        """Wait for its end."""


class Transfer:
    """Some gradients on their way."""

    def __init__(self) -> None:
        self._parts: list[tuple[Collective, Callable[[], Mapping[str, torch.Tensor]]]] = []

    def add(self, operation: Collective, finish: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """One more operation, and what to do after it."""
        self._parts.append((operation, finish))

    def advance(self) -> None:
        """Bring all operations as far as they get before the last time that all processes meet."""
        for operation, _ in self._parts:
            operation.advance()

    def take(self) -> Mapping[str, torch.Tensor]:
        """Wait for the results, by parameter name; once."""
        result: dict[str, torch.Tensor] = {}
        parts, self._parts = self._parts, []
        for operation, finish in parts:
            operation.wait()
            result.update(finish())
        return result
