"""LAMB: the step of each weight is as long as the weight's norm says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poptorch.optim.rules.adam import MomentRule
from poptorch.optim.rules.base import State
from poptorch.optim.rules.vectors import axpy_, cast_like, norms, scale_each_, scaled


@dataclass(frozen=True)
class LambRule(MomentRule):
    """``w ← w − lr · q · x`` with ``x`` AdamW's direction and ``q = min(‖w‖, max_weight_norm) / ‖x‖``."""

    def prepare_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """The unscaled gradient."""
        return self.unscaled(grads, hyper)

    def apply_(
        self,
        params: Sequence[Tensor],
        clipped: Sequence[Tensor],
        state: State,
        hyper: Mapping[str, Tensor],
        clip: Tensor | None,
    ) -> None:
        """Moments, direction, trust ratio, step."""
        gradients = list(clipped) if clip is None else scaled(clipped, clip)
        direction = cast_like(self.direction(params, gradients, state, hyper), params)
        if self.decays:
            axpy_(direction, params, self.scalar("weightDecay", hyper))
        scale_each_(direction, self.scalar("learningRate", hyper) * self._trust_ratios(params, direction, hyper))
        torch._foreach_sub_(list(params), direction)

    def _trust_ratios(
        self, params: Sequence[Tensor], direction: Sequence[Tensor], hyper: Mapping[str, Tensor]
    ) -> Tensor:
        weight_norms, lengths = norms(params), norms(direction)
        limit = self.scalar("maxWeightNorm", hyper)
        untrusted = (weight_norms == 0) | (lengths == 0)
        if isinstance(limit, Tensor):
            untrusted = untrusted | (limit == 0)
        elif limit == 0:
            return torch.ones_like(weight_norms)
        return torch.where(untrusted, 1.0, torch.clamp(weight_norms, max=limit) / lengths)
