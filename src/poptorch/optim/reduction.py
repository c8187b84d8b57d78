"""How the gradients of single micro-batches and replicas become the one that an update rule receives.

| reduction | strategy | accumulator after k gradients | left for the rule to divide by |
|---|---|---|---|
| Sum  |         | ``s + g``               | 1 |
| Mean | Post    | ``s + g``               | micro-batches × replicas |
| Mean | Running | ``(1 − 1/k)·s + g/k``   | 1 |

:mod:`poptorch.runtime.accumulate` does the additions. The last column is why a rule's gradients are *not* divided
under ``Post``: the division is part of the rule's scalars, and clipping sees what was there before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from poptorch.enums import MeanReductionStrategy, ReductionType
from poptorch.optim.settings import UpdateSettings


@dataclass(frozen=True)
class GradientReduction:
    """One row of the table.

    >>> GradientReduction.of(UpdateSettings(micro_batches=4, replicas=2))
    GradientReduction(running=False, divisor=8)
    """

    running: bool
    divisor: int

    @staticmethod
    def of(settings: UpdateSettings) -> GradientReduction:
        """The row that the options ask for."""
        mean = settings.reduction == ReductionType.Mean
        running = mean and settings.strategy == MeanReductionStrategy.Running
        return GradientReduction(running, settings.contributions if mean and not running else 1)
