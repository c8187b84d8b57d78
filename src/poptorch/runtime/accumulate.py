"""Gradients of several micro-batches and replicas, combined for one update. The order of additions is fixed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch.executable.executable import Executable


class GradientAccumulator:
    """Adds up the gradients of one update, or keeps their mean so far.

    A mean that is taken *after* the sum is not taken here: the division is part of the update's scalars.
    """

    def __init__(self, executable: Executable) -> None:
        self._names = executable.program.gradients
        self._types = executable.accumulator_types
        self._count = executable.loop.micro_batches_per_update
        self._running = executable.running_mean
        self._totals: list[torch.Tensor] | None = None
        self._seen = 0

    def add(self, gradients: Sequence[torch.Tensor]) -> None:
        """Take the gradients of one micro-batch."""
        gradients = [self._typed(n, g) for n, g in zip(self._names, gradients, strict=True)]
        if self._count == 1:
            self._totals = gradients
            return
        if self._seen == 0:
            self._start(gradients)
        elif self._totals is not None and self._running:
            # The accumulator always holds the mean so far: it cannot overflow where the sum would.
            share = 1.0 / (self._seen + 1)
            torch._foreach_mul_(self._totals, 1.0 - share)
            torch._foreach_add_(self._totals, gradients, alpha=share)
        elif self._totals is not None:
            torch._foreach_add_(self._totals, gradients, alpha=1)
        self._seen += 1

    def _start(self, gradients: list[torch.Tensor]) -> None:
        if self._totals is None:
            self._totals = [torch.empty_like(g, memory_format=torch.contiguous_format) for g in gradients]
        torch._foreach_copy_(self._totals, gradients)

    def _typed(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        wanted = self._types.get(name)
        return gradient if wanted is None or wanted is gradient.dtype else gradient.to(wanted)

    def take(self) -> dict[str, torch.Tensor]:
        """The combined gradients by parameter name; the next update starts afresh."""
        assert self._totals is not None
        self._seen = 0
        return dict(zip(self._names, self._totals, strict=True))
