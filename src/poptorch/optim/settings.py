"""The options that change what one weight update computes, gathered in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poptorch.enums import MeanReductionStrategy, ReductionType
from poptorch.optim.auto_loss_scale import LossScalingSettings

if TYPE_CHECKING:
    from poptorch.options import Options

_POPART_PREFIX = "automaticLossScalingSettings."


@dataclass(frozen=True)
class UpdateSettings:
    """How many gradients make one update, how they are combined, and whether the loss scale finds itself.

    >>> import poptorch
    >>> options = poptorch.Options().replicationFactor(2)
    >>> _ = options.Training.gradientAccumulation(8)
    >>> UpdateSettings.from_options(options).contributions
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

    @staticmethod
    def from_options(options: Options | None) -> UpdateSettings:
        """Read them from a model's options; ``None`` stands for the defaults."""
        if options is None:
            return UpdateSettings()
        popart = options._Popart.options
        automatic = None
        if popart.get(_POPART_PREFIX + "enabled", False):
            automatic = LossScalingSettings(
                bin_edge=float(popart.get(_POPART_PREFIX + "binEdgeLocation", 0.125)),
                upper_proportion=float(popart.get(_POPART_PREFIX + "thresholdUpperCountProportion", 1e-7)),
                update_period=int(popart.get(_POPART_PREFIX + "updatePeriod", 1)),
            )
        training = options.Training
        return UpdateSettings(
            micro_batches=training.gradient_accumulation,
            replicas=options.replication_factor * options.Distributed.numDataParts,
            reduction=ReductionType(training.accumulation_and_replication_reduction_type),
            strategy=MeanReductionStrategy(training.meanAccumulationAndReplicationReductionStrategy),
            loss_scaling=automatic,
            strict=options.strict_compatibility,
        )

    @property
    def contributions(self) -> int:
        """How many micro-batch gradients one update combines."""
        return self.micro_batches * self.replicas

    def with_strategy(self, strategy: MeanReductionStrategy) -> UpdateSettings:
        """The same with another way to compute means."""
        return replace(self, strategy=strategy)
