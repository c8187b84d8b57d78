"""Torch's fused optimizer kernels, written out for compilers that fuse by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from poptorch.program.update import UpdateProgram

aten = torch.ops.aten
MANY_ELEMENTS = 1 << 20
MANY_WEIGHTS = 100


def replay_update(graph_module: fx.GraphModule) -> Callable[..., Any]:
    """A function that does what the update's graph does, without fused kernels."""
    interpreter = _Expanding(graph_module)
    return lambda *flat: interpreter.run(*flat, enable_io_processing=False)


def updates_in_library(update: UpdateProgram) -> bool:
    """Whether torch's own kernel is the better one: it is for Adam on many elements.

    Measured on two cores, a step of the benchmark's recommender: 1.6 times as long as eager's with Adam in Inductor's
    code, 0.9 times with torch's kernel. With few elements the call costs more than the work.
    """
    graph = update.graph_module.graph
    fused = graph.find_nodes(op="call_function", target=aten._fused_adam_.tensor_lr)
    return sum(n.meta["val"].numel() for node in fused for n in node.args[0]) > MANY_ELEMENTS


def updates_many_weights(update: UpdateProgram) -> bool:
    """Whether the update would take too long to compile by itself: every weight is a kernel of its own."""
    return sum(map(len, update.parameters)) > MANY_WEIGHTS


class _Expanding(fx.Interpreter):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is aten._fused_adam_.tensor_lr:
            return _adam_(*args, **kwargs)
        return super().call_function(target, args, kwargs)


def _adam_(
    params: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    firsts: Sequence[torch.Tensor],
    seconds: Sequence[torch.Tensor],
    largest: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    *,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
) -> None:
    """Adam in place, as the fused kernel computes it (the update never asks it for decay, AMSGrad or maximising)."""
    assert not weight_decay
    assert not amsgrad
    assert not maximize
    for param, gradient, first, second, step in zip(params, gradients, firsts, seconds, steps, strict=True):
        count = step.double()
        rate = (lr / (1.0 - torch.pow(beta1, count))).to(param.dtype)
        correction = (1.0 - torch.pow(beta2, count)).sqrt().to(param.dtype)
        first.lerp_(gradient, 1.0 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        param.sub_(rate * first / (second.sqrt() / correction + eps))
