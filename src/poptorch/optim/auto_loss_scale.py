"""Automatic loss scaling: halve the scale when float16 gradients come close to overflow, double it otherwise.

The factor ``f`` multiplies the optimizer's own ``loss_scaling``. In every optimizer step

1. back-propagation starts from ``loss_scaling · f`` and the update rules divide by it again;
2. the program counts, over all tracked float16 gradients, micro-batches and replicas, the elements at or beyond
   the edge (U) and the others (L): see :func:`poptorch.compiler.passes.precision.watch_gradients`;
3. the weights are updated in any case: no step is ever skipped;
4. :func:`next_factor` gives the factor for the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from poptorch.errors import backend_error

LARGEST_HALF = 65504.0

STATE_NAME = "lossScaleUpdateFactor"
"""Key of the factor in ``ipu_state``."""


@dataclass(frozen=True)
class LossScalingSettings:
    """The tunable numbers, all with the defaults of the original."""

    bin_edge: float = 0.125
    """Where "large" begins, as a share of the largest float16."""
    upper_proportion: float = 1e-7
    """The share of large elements from which the scale is halved."""
    update_period: int = 1
    """Statistics and updates happen only every that many optimizer steps."""

    def __post_init__(self) -> None:
        for name, value in (
            ("binEdgeLocation", self.bin_edge),
            ("thresholdUpperCountProportion", self.upper_proportion),
        ):
            if not 0.0 <= value <= 1.0:
                raise backend_error(f"automaticLossScalingSettings.{name} must lie in [0, 1], not {value}")
        if self.update_period < 1:
            raise backend_error(
                f"automaticLossScalingSettings.updatePeriod must be at least 1, not {self.update_period}"
            )

    @property
    def edge(self) -> float:
        """Smallest magnitude that counts as large.

        >>> LossScalingSettings().edge
        8188.0
        """
        return self.bin_edge * LARGEST_HALF


def next_factor(factor: Tensor, large: Tensor, small: Tensor, settings: LossScalingSettings) -> Tensor:
    """The factor of the next step: half of this one if ``U > L·τ/(1−τ)``, else twice this one.

    >>> counts = torch.tensor(0), torch.tensor(100)
    >>> next_factor(torch.tensor(4.0), *counts, LossScalingSettings())
    tensor(8.)
    """
    share = settings.upper_proportion
    # U·(1−τ) > L·τ is the same comparison and stays defined for τ = 1
    too_many = large.double() * (1.0 - share) > small.double() * share
    return torch.where(too_many, factor * 0.5, factor * 2.0)


class AutomaticLossScale:
    """The factor together with the counts gathered since it last changed.

    >>> scale = AutomaticLossScale(LossScalingSettings())
    >>> scale.add_counts(large=torch.tensor(0), small=torch.tensor(100))
    >>> scale.step()
    >>> scale.factor
    tensor(2.)
    """

    def __init__(self, settings: LossScalingSettings, dtype: torch.dtype = torch.float32) -> None:
        self.settings = settings
        self.factor = torch.ones((), dtype=dtype)
        """In the loss's type."""
        self._steps = 0
        self._large = torch.zeros((), dtype=torch.int64)
        self._small = torch.zeros((), dtype=torch.int64)

    @property
    def observes(self) -> bool:
        """Whether gradients of the step under way are counted (see ``update_period``)."""
        return (self._steps + 1) % self.settings.update_period == 0

    def add_counts(self, large: Tensor, small: Tensor) -> None:
        """Take what the program counted in the step under way."""
        self._large = self._large + large
        self._small = self._small + small

    def step(self) -> None:
        """End one optimizer step."""
        if self.observes:
            self.factor = next_factor(self.factor, self._large, self._small, self.settings)
            self._large, self._small = torch.zeros_like(self._large), torch.zeros_like(self._small)
        self._steps += 1
