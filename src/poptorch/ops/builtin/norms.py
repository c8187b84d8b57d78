"""Normalisations of both domains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Float, Int
from poptorch.ops.builtin.definitions import GRAPHCORE, Situation, graphcore, onnx, operator
from poptorch.ops.builtin.values import along


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Statistics of halves are computed in float32."""
    return x.float() if x.dtype is torch.float16 else x


@graphcore("GroupNormalization", types="F", outputs=3, num_groups=Int(), epsilon=Float(1e-5))
def _group_normalization(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *, num_groups: int, epsilon: float
) -> list[torch.Tensor]:
    if x.dim() < 2:
        raise createPoptorchError(f"The input must have at least 2 dimensions, not the shape {list(x.shape)}.")
    n, channels = x.shape[:2]
    if num_groups < 1 or channels % num_groups:
        raise createPoptorchError(f"{channels} channels cannot be divided into {num_groups} groups.")
    for name, values in (("scale", scale), ("bias", bias)):
        if values.numel() != channels:
            raise createPoptorchError(f"The {name} must have one element for each of {channels} channels.")
    y = F.group_norm(x, num_groups, scale.reshape(-1).to(x.dtype), bias.reshape(-1).to(x.dtype), epsilon)
    groups = _wide(x.detach()).reshape(n * num_groups, -1)
    mean, variance = groups.mean(1), groups.var(1, correction=0)
    return [y, mean.to(x.dtype), (variance + epsilon).rsqrt().to(x.dtype)]


def _batch_normalization(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    *,
    epsilon: float,
    momentum: float,
    at: Situation,
    spatial: int = 1,
    is_test: int = 0,
) -> Sequence[torch.Tensor]:
    if at.key.domain == GRAPHCORE and x.dim() < 3:
        raise createPoptorchError(f"batch norm requires X to have a rank >= 3, but it has the shape {list(x.shape)}.")
    if x.dim() < 2:
        raise createPoptorchError(f"The input must have at least 2 dimensions, not the shape {list(x.shape)}.")
    if spatial != 1:
        raise createPoptorchError("The attribute 'spatial' is not supported with another value than 1.")
    if len(at.templates) <= 1 or is_test:
        return [F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)]
    y = F.batch_norm(x, None, None, scale, bias, True, 0.0, epsilon)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    values = _wide(x.detach())
    # The backend's own operator keeps the variance of a sample, that of ONNX the variance of a population.
    sample = values.var(axes, correction=1 if at.key.domain == GRAPHCORE else 0)
    batch_mean = values.mean(axes)
    kept = [momentum * _wide(old.detach()) + (1 - momentum) * new for old, new in ((mean, batch_mean), (var, sample))]
    saved = [batch_mean, values.var(axes, correction=0)]
    return [y, *(value.to(old.dtype) for value, old in zip([*kept, *saved], [mean, var, mean, var], strict=True))]


_SETTINGS = {"epsilon": Float(1e-5), "momentum": Float(0.9)}
operator(GRAPHCORE, "BatchNormalization", 1, types="F", outputs=5, attributes=_SETTINGS, spatial=Int(1))(
    _batch_normalization
)
onnx("BatchNormalization", 6, types="F", outputs=5, attributes=_SETTINGS, spatial=Int(1), is_test=Int(0))(
    _batch_normalization
)
onnx("BatchNormalization", 7, types="F", outputs=5, attributes=_SETTINGS, spatial=Int(1))(_batch_normalization)
onnx("BatchNormalization", 9, types="F", outputs=5, attributes=_SETTINGS)(_batch_normalization)


@onnx("InstanceNormalization", types="F", epsilon=Float(1e-5))
def _instance_normalization(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *, epsilon: float
) -> torch.Tensor:
    # One group for each channel: torch's instance_norm refuses a single element, whose result is the bias.
    return F.group_norm(x, x.shape[1], scale, bias, epsilon)


@onnx("LRN", types="F", size=Int(), alpha=Float(1e-4), beta=Float(0.75), bias=Float(1.0))
def _local_response_normalization(
    x: torch.Tensor, *, size: int, alpha: float, beta: float, bias: float
) -> torch.Tensor:
    if size < 1:
        raise createPoptorchError(f"The size must be at least 1, not {size}.")
    channels = x.shape[1]
    padding = [0, 0] * (x.dim() - 2) + [(size - 1) // 2, size // 2]
    squares = F.pad(x * x, padding)
    total = squares.narrow(1, 0, channels)
    for offset in range(1, size):
        total = total + squares.narrow(1, offset, channels)
    return x / (bias + alpha / size * total).pow(beta)


@onnx("PRelu", 6, types="F")
def _prelu_by_channel(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    if slope.dim() == 1 and slope.numel() > 1 and x.dim() > 1:
        slope = along(slope, 1, x.dim())
    return _prelu(x, slope)


@onnx("PRelu", 7, types="F")
def _prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    if slope.dim() > x.dim() or any(
        a not in (1, b) for a, b in zip(reversed(slope.shape), reversed(x.shape), strict=False)
    ):
        raise createPoptorchError(f"The slope of shape {list(slope.shape)} does not broadcast to {list(x.shape)}.")
    return torch.where(x < 0, x * slope, x)
