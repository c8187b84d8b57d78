"""From the gradients of single micro-batches and replicas to the one that an update rule receives.

| reduction | strategy | accumulator after k micro-batches | over replicas | left for the rule to divide by |
|---|---|---|---|---|
| Sum  |         | ``s + g``               | sum  | 1 |
| Mean | Post    | ``s + g``               | sum  | micro-batches × replicas |
| Mean | Running | ``(1 − 1/k)·s + g/k``   | mean | 1 |

The last column is why a rule's gradients are *not* divided under ``Post``: the division is part of the rule's
scalars, and clipping sees what was there before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poptorch.enums import MeanReductionStrategy, ReductionType
from poptorch.optim.rules.vectors import axpy_, scale_
from poptorch.optim.settings import UpdateSettings


@dataclass(frozen=True)
class GradientReduction:
    """One row of the table, for given numbers of micro-batches and replicas.

    >>> reduction = GradientReduction(running=False, micro_batches=2, replicas=1, divisor=2)
    >>> total = [torch.zeros(2)]
    >>> for index, value in enumerate((1.0, 3.0)):
    ...     reduction.accumulate_(total, [torch.full((2,), value)], index)
    >>> total
    [tensor([4., 4.])]
    """

    running: bool
    micro_batches: int
    replicas: int
    divisor: int

    @staticmethod
    def of(settings: UpdateSettings) -> GradientReduction:
        """The row that the options ask for."""
        mean = settings.reduction == ReductionType.Mean
        running = mean and settings.strategy == MeanReductionStrategy.Running
        divisor = settings.contributions if mean and not running else 1
        return GradientReduction(running, settings.micro_batches, settings.replicas, divisor)

    @staticmethod
    def summing(settings: UpdateSettings) -> GradientReduction:
        """Plain sums with nothing left to divide: combined SGD puts the mean into a scalar of its own."""
        return GradientReduction(False, settings.micro_batches, settings.replicas, 1)

    def accumulate_(self, accumulators: Sequence[Tensor], grads: Sequence[Tensor], index: int | Tensor) -> None:
        """Add the gradients of micro-batch number ``index`` (from 0) to accumulators that started at zero."""
        if self.running:
            share = 1.0 / (index + 1)
            scale_(accumulators, 1.0 - share)
            axpy_(accumulators, grads, share)
        else:
            axpy_(accumulators, grads, 1.0)

    def combine(self, replicas: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """One list of gradients from one list for each replica, always added in the same order."""
        assert len(replicas) == self.replicas, f"{len(replicas)} replicas instead of {self.replicas}"
        if len(replicas) == 1:
            return list(replicas[0])
        share = 1.0 / self.replicas if self.running else 1.0
        # Each share before the sum: a float16 sum of many replicas might overflow where their mean does not.
        total = list(torch._foreach_mul(list(replicas[0]), share))
        for grads in replicas[1:]:
            axpy_(total, grads, share)
        return total
