"""RMSprop, in PyTorch's and in TensorFlow's form."""

from __future__ import annotations

from typing import Any

import torch

from poptorch.optim.attributes import VariableAttributes, check_accumulation_types
from poptorch.optim.base import Optimizer, given


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop with L2 regularisation, optionally centred, optionally with momentum.

    ``use_tf_variant`` takes the square root after adding ``eps``, multiplies the learning rate into the
    momentum and starts the average of squares at one.

    >>> optimizer = RMSprop([torch.nn.Parameter(torch.ones(3))], lr=0.01, use_tf_variant=True)
    >>> optimizer.use_tf_variant, optimizer.defaults["alpha"]
    (True, 0.99)
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
        *,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        capturable: bool | None = None,
    ) -> None:
        Optimizer.__init__(self)
        tunable = given(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered)
        torch_only = given(foreach=foreach, maximize=maximize, differentiable=differentiable, capturable=capturable)
        torch.optim.RMSprop.__init__(self, params, **tunable, **torch_only)
        self.loss_scaling = 1.0 if loss_scaling is None else loss_scaling
        self.accum_type = accum_type or torch.float32
        self.first_order_momentum_accum_type = first_order_momentum_accum_type or torch.float32
        self.second_order_momentum_accum_type = second_order_momentum_accum_type or torch.float32
        check_accumulation_types(
            self.accum_type, self.first_order_momentum_accum_type, self.second_order_momentum_accum_type
        )
        self.use_tf_variant = bool(use_tf_variant)
        self.variable_attrs = VariableAttributes(
            [*tunable, *given(loss_scaling=loss_scaling)], [*self.defaults, "loss_scaling"]
        )
