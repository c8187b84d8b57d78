"""Stochastic gradient descent: without velocity, with a separate one, with a combined one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poptorch.optim.rules.base import Rule, State, zeros_like
from poptorch.optim.rules.vectors import axpy_, scale_, scale_rounded_, scaled


@dataclass(frozen=True)
class PlainSGD(Rule):
    """``w ← weightDecayScaleFactor0 · w − scaledLearningRate0 · s``: nothing is remembered between steps."""

    decays: bool = False

    def init_state(self, params: Sequence[Tensor]) -> State:
        """No state at all."""
        return {}

    def prepare_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Clipping measures the gradients as they arrive, loss scaling included."""
        return list(grads)

    def apply_(
        self,
        params: Sequence[Tensor],
        clipped: Sequence[Tensor],
        state: State,
        hyper: Mapping[str, Tensor],
        clip: Tensor | None,
    ) -> None:
        """Decay, then step."""
        rate = self.unscaling("scaledLearningRate0", hyper)
        if self.decays:
            scale_rounded_(params, params, self.scalar("weightDecayScaleFactor0", hyper))
        axpy_(params, clipped, -rate if clip is None else -rate * clip)


@dataclass(frozen=True)
class SeparateSGD(Rule):
    """Velocity in a tensor of its own, ``loss_scaling`` times the true one."""

    velocity_type: torch.dtype = torch.float32
    decays: bool = False
    nesterov: bool = False

    def init_state(self, params: Sequence[Tensor]) -> State:
        """A velocity of zero."""
        return {"Accl1": zeros_like(params, self.velocity_type)}

    def prepare_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Update the velocity; clipping measures it, or the look-ahead of Nesterov's form."""
        velocity = state["Accl1"]
        scale_rounded_(velocity, params, self.scalar("scaledMomentum2", hyper))
        if self.decays:
            axpy_(velocity, params, self.scalar("scaledWeightDecay1", hyper))
        axpy_(velocity, grads, self.unscaling("dampeningScaleFactor2", hyper))
        if not self.nesterov:
            return velocity
        ahead = scaled(velocity, self.scalar("sgdMomentum", hyper))
        gradient_scale = self.scalar("nesterovGradScaleFactor2", hyper)
        axpy_(ahead, grads, gradient_scale * self.unscaling("nesterovDampeningScaleFactor2", hyper))
        if self.decays:
            axpy_(ahead, params, gradient_scale * self.scalar("sgdWeightDecay", hyper))
        return ahead

    def apply_(
        self,
        params: Sequence[Tensor],
        clipped: Sequence[Tensor],
        state: State,
        hyper: Mapping[str, Tensor],
        clip: Tensor | None,
    ) -> None:
        """Step along the velocity; the stored one stays unclipped."""
        rate = self.scalar("scaledLearningRate2", hyper)
        axpy_(params, clipped, -rate if clip is None else -rate * clip)


@dataclass(frozen=True)
class CombinedSGD(Rule):
    """Velocity and gradient accumulator in one tensor of the weight's type.

    The tensor is left between steps as it must be when gradients are added to it: already multiplied by the
    momentum and with the weight decay in it. Changes of these two therefore count one step late.
    """

    replica_sum: int = 1
    """How many copies of the tensor are added up before the step (the specification's ρ)."""
    decays: bool = False
    nesterov: bool = False
    initial_decay: float = 0.0
    """``scaledWeightDecay1`` at the start, for the weight decay of the first step."""

    def init_state(self, params: Sequence[Tensor]) -> State:
        """The weight decay of the first step."""
        state = {"Accl": scaled([param.detach() for param in params], self.initial_decay)}
        if self.initial_decay == 1.0:  # `scaled` may hand back its argument
            state["Accl"] = [tensor.clone() for tensor in state["Accl"]]
        if self.nesterov:
            state["nesterovGrad"] = zeros_like(params)
        return state

    def prepare_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], state: State, hyper: Mapping[str, Tensor]
    ) -> list[Tensor]:
        """Add the gradients; clipping measures the sum, or the look-ahead of Nesterov's form."""
        velocity = state["Accl"]
        scale_(velocity, float(self.replica_sum))
        axpy_(velocity, grads, self.unscaling("dampeningScaleFactor1", hyper))
        if not self.nesterov:
            return velocity
        torch._foreach_copy_(state["nesterovGrad"], list(grads))
        ahead = scaled(velocity, self.scalar("sgdMomentum", hyper))
        gradient_scale = self.scalar("nesterovGradScaleFactor1", hyper)
        axpy_(ahead, grads, gradient_scale * self.unscaling("nesterovDampeningScaleFactor1", hyper))
        if self.decays:
            axpy_(ahead, params, gradient_scale * self.scalar("sgdWeightDecay", hyper))
        return ahead

    def apply_(
        self,
        params: Sequence[Tensor],
        clipped: Sequence[Tensor],
        state: State,
        hyper: Mapping[str, Tensor],
        clip: Tensor | None,
    ) -> None:
        """Step, then carry over for the next accumulation."""
        rate = self.scalar("scaledLearningRate1", hyper)
        axpy_(params, clipped, -rate if clip is None else -rate * clip)
        velocity = state["Accl"]
        scale_rounded_(velocity, params, self.scalar("scaledMomentum1", hyper))
        if self.decays:
            axpy_(velocity, params, self.scalar("scaledWeightDecay1", hyper))
