"""Batch normalisation with ``momentum=None``: a cumulative mean, whose factor changes with every micro-batch.

torch reads the counter of batches as a Python number, which capture would freeze. The forward below computes the same
with tensors, so that the factor stays a value of the program.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def cumulative_norms(model: nn.Module) -> Iterator[None]:
    """Give such layers of ``model`` a forward that can be captured."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and _is_cumulative(m)]
    for layer in layers:
        layer.__dict__["forward"] = functools.partial(_cumulative_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _is_cumulative(layer: _BatchNorm) -> bool:
    own = "forward" not in layer.__dict__ and type(layer).forward is _BatchNorm.forward
    return own and layer.momentum is None and layer.training and layer.track_running_stats


def _cumulative_forward(layer: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
    layer._check_input_dim(x)
    mean, variance, count = layer.running_mean, layer.running_var, layer.num_batches_tracked
    assert mean is not None
    assert variance is not None
    assert count is not None
    with torch.no_grad():
        count.add_(1)
        factor = 1.0 / count.to(mean.dtype)
        others = [d for d in range(x.dim()) if d != 1]
        mean.add_((x.mean(others) - mean) * factor)
        variance.add_((x.var(others) - variance) * factor)
    return F.batch_norm(x, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)
