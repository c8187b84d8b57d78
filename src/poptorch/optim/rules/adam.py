"""Adam and AdamW, and the part of them that LAMB shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poptorch.optim.rules.base import Rule, State, unscaled, zeros_like
from poptorch.optim.rules.vectors import (
    Scalar,
    average_,
    axpy,
    axpy_,
    cast_like,
    scale_,
    scale_each_,
    scaled,
    scaled_each,
    shift_,
)


@dataclass(frozen=True)
class MomentRule(Rule):
    """Two moving averages: of the gradient (``Accl1``) and of its square (``Accl2``)."""

    first_type: torch.dtype = torch.float32
    second_type: torch.dtype = torch.float32
    accum_type: torch.dtype = torch.float32
    bias_correction: bool = True
    decays: bool = False

    def init_state(self, params: Sequence[Tensor]) -> State:
        """Moments of zero and no steps done."""
        state = {"Accl1": zeros_like(params, self.first_type), "Accl2": zeros_like(params, self.second_type)}
        if self.bias_correction:
            state["Step"] = [torch.zeros((), dtype=torch.float32, device=param.device) for param in params]
        return state

    def unscaled(self, grads: Sequence[Tensor], hyper: Mapping[str, Tensor]) -> list[Tensor]:
        """Gradients without loss scaling and averaging divisor."""
        factor = self.unscaling("adamGradientScaling", hyper)
        return unscaled(grads, factor, self.accum_type, self.first_type, self.second_type)

    def direction(
        self, params: Sequence[Tensor], gradients: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Advance the moments and return ``m̂ / (√v̂ + eps)``, in the second moment's type."""
        first, second = state["Accl1"], state["Accl2"]
        beta1, beta2 = self.scalar("adamBeta1", hyper), self.scalar("adamBeta2", hyper)
        average_(first, gradients, beta1)
        own_type = cast_like(gradients, second)
        average_(second, torch._foreach_mul(own_type, own_type), beta2)
        numerators = first
        denominators = list(torch._foreach_sqrt(second))
        if self.bias_correction:
            torch._foreach_add_(state["Step"], 1.0)
            steps = torch.stack(state["Step"]).double()
            numerators = scaled_each(first, 1.0 / (1.0 - _power(beta1, steps)))
            scale_each_(denominators, (1.0 - _power(beta2, steps)).rsqrt())
        shift_(denominators, self.scalar("adamEps", hyper))
        return list(torch._foreach_div(cast_like(numerators, denominators), denominators))


@dataclass(frozen=True)
class AdamRule(MomentRule):
    """Adam: weight decay in the gradient, or (``decoupled``) beside it."""

    decoupled: bool = False

    def prepare_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Clipping measures the unscaled gradient, with the L2 term if there is one."""
        gradients = self.unscaled(grads, hyper)
        if self.decays and not self.decoupled:
            gradients = axpy(gradients, params, self.scalar("weightDecay", hyper))
        return gradients

    def apply_(
        self,
        params: Sequence[Tensor],
        clipped: Sequence[Tensor],
        state: State,
        hyper: Mapping[str, Tensor],
        clip: Tensor | None,
    ) -> None:
        """Moments, bias correction, step."""
        gradients = list(clipped) if clip is None else scaled(clipped, clip)
        rate, decay = self.scalar("learningRate", hyper), self.scalar("weightDecay", hyper)
        if self._fits_fused_kernel(params, gradients, state):
            if self.decays and self.decoupled:
                scale_(params, 1.0 - rate * decay)
            self._fused_step_(params, gradients, state, rate)
            return
        direction = cast_like(self.direction(params, gradients, state, hyper), params)
        if self.decays and self.decoupled:
            direction = axpy(direction, params, decay)
        axpy_(params, direction, -rate)

    def _fits_fused_kernel(self, params: Sequence[Tensor], gradients: Sequence[Tensor], state: State) -> bool:
        """Torch's kernel wants numbers for betas and eps, one type, and memory that it may walk linearly."""
        if not {"adamBeta1", "adamBeta2", "adamEps"} <= set(self.constants):
            return False
        tensors = [*params, *gradients, *state["Accl1"], *state["Accl2"]]
        return all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors)

    def _fused_step_(self, params: Sequence[Tensor], gradients: Sequence[Tensor], state: State, rate: Scalar) -> None:
        torch._foreach_add_(state["Step"], 1.0)
        torch._fused_adam_(
            list(params),
            list(gradients),
            state["Accl1"],
            state["Accl2"],
            [],
            state["Step"],
            lr=rate,
            beta1=self.constants["adamBeta1"],
            beta2=self.constants["adamBeta2"],
            weight_decay=0.0,
            eps=self.constants["adamEps"],
            amsgrad=False,
            maximize=False,
        )


def _power(base: Scalar, exponents: Tensor) -> Tensor:
    return torch.pow(base, exponents)
