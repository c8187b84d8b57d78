"""LAMB: Adam's direction, rescaled for each weight to the length of that weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poptorch.optim.attributes import VariableAttributes, check_accumulation_types
from poptorch.optim.base import Optimizer, given

UNLIMITED_WEIGHT_NORM = 65500.0
"""Default of ``max_weight_norm``: larger than any norm met in practice, and a float16."""


class LAMB(Optimizer, torch.optim.Optimizer):
    """Layer-wise adaptive moments with decoupled weight decay.

    ``max_weight_norm`` caps the weight norm in the trust ratio; 0 switches the ratio off.

    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimizer = LAMB([weight], lr=0.1)
    >>> weight.grad = torch.ones(3)
    >>> optimizer.step()
    >>> weight.data
    tensor([0.9000, 0.9000, 0.9000])
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        Optimizer.__init__(self)
        tunable = given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_weight_norm=max_weight_norm)
        defaults = {
            "lr": 1e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 1e-2,
            "max_weight_norm": UNLIMITED_WEIGHT_NORM,
            **tunable,
        }
        torch.optim.Optimizer.__init__(self, params, defaults)
        self.bias_correction = True if bias_correction is None else bias_correction
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.max_weight_norm = defaults["max_weight_norm"]
        self.accum_type = accum_type or torch.float32
        self.first_order_momentum_accum_type = first_order_momentum_accum_type or torch.float32
        self.second_order_momentum_accum_type = second_order_momentum_accum_type or torch.float32
        check_accumulation_types(
            self.accum_type, self.first_order_momentum_accum_type, self.second_order_momentum_accum_type
        )
        self.variable_attrs = VariableAttributes(
            [*tunable, *given(loss_scaling=loss_scaling)], [*defaults, "loss_scaling"]
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update on the CPU, from the ``grad`` of each parameter; the device never calls this."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)
        return loss

    def _step_one(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        assert weight.grad is not None
        first, second = state["exp_avg"], state["exp_avg_sq"]
        beta1, beta2 = group["betas"]
        state["step"] += 1
        first.mul_(beta1).add_(weight.grad, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(weight.grad, weight.grad, value=1 - beta2)
        if self.bias_correction:
            first = first / (1 - beta1 ** state["step"])
            second = second / (1 - beta2 ** state["step"])
        direction = first / (second.sqrt() + group["eps"]) + group["weight_decay"] * weight
        weight.sub_(group["lr"] * _trust_ratio(weight, direction, group["max_weight_norm"]) * direction)


def _trust_ratio(weight: torch.Tensor, direction: torch.Tensor, max_weight_norm: float) -> float:
    weight_norm, length = float(weight.float().norm()), float(direction.float().norm())
    if weight_norm == 0 or length == 0 or max_weight_norm == 0:
        return 1.0
    return min(weight_norm, max_weight_norm) / length
