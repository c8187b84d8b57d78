"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

import torch

from poptorch._logging import logger
from poptorch.optim.attributes import VariableAttributes, check_accumulation_types
from poptorch.optim.base import Optimizer, given


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent with optional momentum, in two variants.

    The *separate* variant (default) keeps the accumulated gradient and the velocity in two tensors, with
    types of their own. The *combined* variant keeps both in one tensor of the weight's type, scaled by
    ``velocity_scaling``.

    Every argument that is passed may be changed after compilation, those left out may not; see
    ``variable_attrs``.

    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimizer = SGD([weight], lr=0.01, loss_scaling=2.0, use_combined_accum=False)
    >>> optimizer.loss_scaling, optimizer.variable_attrs.isConstant("momentum")
    (2.0, True)
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        Optimizer.__init__(self)
        tunable = given(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        torch_only = given(maximize=maximize, foreach=foreach, differentiable=differentiable, fused=fused)
        torch.optim.SGD.__init__(self, params, **tunable, **torch_only)
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.use_combined_accum = bool(use_combined_accum)
        self.accum_type = accum_type or torch.float32
        self.velocity_accum_type = velocity_accum_type or torch.float32
        check_accumulation_types(self.accum_type, self.velocity_accum_type)
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm

        variable = [*tunable, *given(loss_scaling=loss_scaling)]
        if self.use_combined_accum:
            variable += given(velocity_scaling=velocity_scaling)
            self.defaults["velocity_scaling"] = 1.0 if velocity_scaling is None else velocity_scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.defaults["velocity_scaling"])
        elif velocity_scaling is not None:
            logger.warning("velocity_scaling value ignored when using the separate variant of SGD")
        self.variable_attrs = VariableAttributes(variable, [*self.defaults, "loss_scaling"])
