"""The options that change what one weight update computes, gathered in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poptorch.enums import MeanReductionStrategy, ReductionType
from poptorch.optim.auto_loss_scale import LossScalingSettings


@dataclass(frozen=True)
class UpdateSettings:
    """How many gradients make one update, how they are combined, and whether the loss scale finds itself.

    >>> UpdateSettings(micro_batches=8, replicas=2).contributions
    16
    """

    micro_batches: int = 1
    replicas: int = 1
    """Over all processes."""
    reduction: ReductionType = ReductionType.Mean
    strategy: MeanReductionStrategy = MeanReductionStrategy.Post
    loss_scaling: LossScalingSettings | None = None
    """``None``: automatic loss scaling is off."""
    strict: bool = False

    @property
    def contributions(self) -> int:
        """How many micro-batch gradients one update combines."""
        return self.micro_batches * self.replicas

    def with_strategy(self, strategy: MeanReductionStrategy) -> UpdateSettings:
        """The same with another way to compute means."""
        return replace(self, strategy=strategy)
