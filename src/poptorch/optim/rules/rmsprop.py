"""RMSprop in PyTorch's and in TensorFlow's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poptorch.optim.rules.base import Rule, State, unscaled, zeros_like
from poptorch.optim.rules.vectors import average_, axpy, axpy_, cast_like, scale_, scaled, shift_, shifted


@dataclass(frozen=True)
class RMSpropRule(Rule):
    """The gradient over the root of its moving average of squares."""

    first_type: torch.dtype = torch.float32
    second_type: torch.dtype = torch.float32
    accum_type: torch.dtype = torch.float32
    decays: bool = False
    centered: bool = False
    has_momentum: bool = False
    tf_variant: bool = False

    def init_state(self, params: Sequence[Tensor]) -> State:
        """``Accl1`` averages squares, ``Accl2`` gradients (centred form), ``Accl3`` is momentum."""
        squares = zeros_like(params, self.second_type)
        if self.tf_variant:
            shift_(squares, 1.0)  # a group may have nothing to update
        state = {"Accl1": squares}
        if self.centered:
            state["Accl2"] = zeros_like(params, self.first_type)
        if self.has_momentum:
            state["Accl3"] = zeros_like(params, torch.float32)
        return state

    def prepare_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """The unscaled gradient with the L2 term."""
        factor = self.unscaling("adaptiveGradientScaling", hyper)
        gradients = unscaled(grads, factor, self.accum_type, self.first_type, self.second_type)
        return axpy(gradients, params, self.scalar("weightDecay", hyper)) if self.decays else gradients

    def apply_(
        self,
        params: Sequence[Tensor],
        clipped: Sequence[Tensor],
        state: State,
        hyper: Mapping[str, Tensor],
        clip: Tensor | None,
    ) -> None:
        """Averages, direction, momentum, step."""
        gradients = list(clipped) if clip is None else scaled(clipped, clip)
        direction = list(torch._foreach_div(gradients, self._denominators(gradients, state, hyper)))
        rate = self.scalar("learningRate", hyper)
        if not self.has_momentum:
            axpy_(params, cast_like(direction, params), -rate)
            return
        momentum = state["Accl3"]
        scale_(momentum, self.scalar("adaptiveMomentum", hyper))
        # TensorFlow remembers steps, PyTorch directions: they differ when the learning rate changes.
        axpy_(momentum, direction, rate if self.tf_variant else 1.0)
        axpy_(params, momentum, -1.0 if self.tf_variant else -rate)

    def _denominators(self, gradients: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]) -> list[Tensor]:
        keep, eps = self.scalar("adaptiveAlpha", hyper), self.scalar("adaptiveEps", hyper)
        squares = state["Accl1"]
        own_type = cast_like(gradients, squares)
        average_(squares, torch._foreach_mul(own_type, own_type), keep)
        variances = squares
        if self.centered:
            means = state["Accl2"]
            average_(means, gradients, keep)
            means = cast_like(means, squares)
            variances = list(torch._foreach_addcmul(squares, means, means, value=-1.0))
            # exact arithmetic never goes below zero; rounding may, and the root must not become NaN
            torch._foreach_clamp_min_(variances, 0.0)
        if self.tf_variant:
            return list(torch._foreach_sqrt(shifted(variances, eps)))
        roots = list(torch._foreach_sqrt(variances))
        shift_(roots, eps)
        return roots
