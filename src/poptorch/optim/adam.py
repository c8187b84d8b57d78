"""Adam, with L2 regularisation or decoupled weight decay."""

from __future__ import annotations

from typing import Any

import torch

from poptorch._logging import logger
from poptorch.optim.attributes import VariableAttributes, check_accumulation_types
from poptorch.optim.base import Optimizer, given


class Adam(Optimizer, torch.optim.Adam):
    """Adam with L2 regularisation.

    Every argument that is passed may be changed after compilation, those left out may not; this includes
    ``lr``.

    >>> optimizer = Adam([torch.nn.Parameter(torch.ones(3))], lr=1e-3)
    >>> optimizer.variable_attrs.isConstant("lr"), optimizer.variable_attrs.isConstant("betas")
    (False, True)
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        Optimizer.__init__(self)
        tunable = given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        torch_only = given(
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        torch.optim.Adam.__init__(self, params, **tunable, **torch_only)
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.accum_type = accum_type or torch.float32
        self.first_order_momentum_accum_type = first_order_momentum_accum_type or torch.float32
        self.second_order_momentum_accum_type = second_order_momentum_accum_type or torch.float32
        check_accumulation_types(
            self.accum_type, self.first_order_momentum_accum_type, self.second_order_momentum_accum_type
        )
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm
        self.variable_attrs = VariableAttributes(
            [*tunable, *given(loss_scaling=loss_scaling)], [*self.defaults, "loss_scaling"]
        )


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with weight decay that does not enter the moments.

    ``bias_correction=False`` selects the type without bias correction, which on the device of the original
    has never differed in its numbers from the type with it; here it does not either, and says so.

    >>> optimizer = AdamW([torch.nn.Parameter(torch.ones(3))], lr=1e-3, weight_decay=0.1)
    >>> optimizer.defaults["weight_decay"], optimizer.bias_correction
    (0.1, True)
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        Optimizer.__init__(self)
        tunable = given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        torch_only = given(
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        torch.optim.AdamW.__init__(self, params, **tunable, **torch_only)
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.bias_correction = True if bias_correction is None else bias_correction
        if not self.bias_correction:
            logger.warning(
                "AdamW applies bias correction with bias_correction=False too, like the original: "
                "the flag selects another internal type, not other numbers."
            )
        self.accum_type = accum_type or torch.float32
        self.first_order_momentum_accum_type = first_order_momentum_accum_type or torch.float32
        self.second_order_momentum_accum_type = second_order_momentum_accum_type or torch.float32
        check_accumulation_types(
            self.accum_type, self.first_order_momentum_accum_type, self.second_order_momentum_accum_type
        )
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm
        self.variable_attrs = VariableAttributes(
            [*tunable, *given(loss_scaling=loss_scaling)], [*self.defaults, "loss_scaling"]
        )
