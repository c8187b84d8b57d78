"""Convolutions and pooling of ONNX, with padding of its kinds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Int, Ints, String, TypedAttribute
from poptorch.ops.builtin.definitions import onnx

_CONVOLVED = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_MAX_POOLED = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVG_POOLED = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_PADDINGS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def _spatial(x: torch.Tensor) -> int:
    rank = x.dim() - 2
    if not 1 <= rank <= 3:
        raise createPoptorchError(f"The input must have 1 to 3 spatial dimensions; its shape is {list(x.shape)}.")
    return rank


def _sized(name: str, values: Sequence[int] | None, size: int, default: int) -> list[int]:
    if values is None:
        return [default] * size
    if len(values) != size:
        raise createPoptorchError(f"The attribute '{name}' must have {size} values here, not {list(values)}.")
    return list(values)


def _pads(
    auto_pad: str,
    pads: Sequence[int] | None,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[list[int], list[int]]:
    """What to add before and after each spatial axis."""
    rank = len(sizes)
    if auto_pad not in _PADDINGS:
        raise createPoptorchError(f"The attribute 'auto_pad' must be one of {', '.join(_PADDINGS)}, not {auto_pad!r}.")
    if auto_pad in ("NOTSET", "VALID"):
        given = _sized("pads", pads if auto_pad == "NOTSET" else None, 2 * rank, 0)
        return given[:rank], given[rank:]
    before, after = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size)
        small, large = total // 2, total - total // 2
        before.append(small if auto_pad == "SAME_UPPER" else large)
        after.append(large if auto_pad == "SAME_UPPER" else small)
    return before, after


def _padded(x: torch.Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> torch.Tensor:
    amounts = [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]
    return F.pad(x, amounts, value=value) if any(amounts) else x


def convolved(
    x: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
) -> torch.Tensor:
    """A convolution with padding that may differ at both ends. Channels of data and weights tell the groups."""
    rank = _spatial(x)
    kernel = list(weights.shape[2:])
    if len(kernel) != rank:
        raise createPoptorchError(f"Weights of shape {list(weights.shape)} do not fit data of {list(x.shape)}.")
    if not weights.shape[1] or x.shape[1] % weights.shape[1]:
        raise createPoptorchError(f"Weights for {weights.shape[1]} channels do not fit data with {x.shape[1]}.")
    stride, dilation = _sized("strides", strides, rank, 1), _sized("dilations", dilations, rank, 1)
    before, after = _pads(auto_pad, pads, x.shape[2:], kernel, stride, dilation)
    groups = x.shape[1] // weights.shape[1]
    if before == after and min(before) >= 0:
        return _CONVOLVED[rank - 1](x, weights, bias, stride, before, dilation, groups)
    return _CONVOLVED[rank - 1](_padded(x, before, after), weights, bias, stride, 0, dilation, groups)


_CONV: dict[str, TypedAttribute] = {
    "auto_pad": String("NOTSET"),
    "dilations": Ints(None),
    "group": Int(1),
    "kernel_shape": Ints(None),
    "pads": Ints(None),
    "strides": Ints(None),
}


def _check_kernel(kernel_shape: list[int] | None, weights: torch.Tensor) -> None:
    if kernel_shape is not None and kernel_shape != list(weights.shape[2:]):
        raise createPoptorchError(f"kernel_shape is {kernel_shape}, but the weights have {list(weights.shape[2:])}.")


@onnx("Conv", types="F", attributes=_CONV)
def _conv(
    x: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    auto_pad: str,
    dilations: list[int] | None,
    group: int,
    kernel_shape: list[int] | None,
    pads: list[int] | None,
    strides: list[int] | None,
) -> torch.Tensor:
    _check_kernel(kernel_shape, weights)
    if x.shape[1] != group * weights.shape[1]:
        raise createPoptorchError(
            f"{x.shape[1]} channels of data do not fit {group} groups of {weights.shape[1]} channels of the weights."
        )
    return convolved(x, weights, bias, strides=strides, pads=pads, dilations=dilations, auto_pad=auto_pad)


@onnx("ConvTranspose", types="F", attributes=_CONV, output_padding=Ints(None), output_shape=Ints(None))
def _conv_transpose(
    x: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    auto_pad: str,
    dilations: list[int] | None,
    group: int,
    kernel_shape: list[int] | None,
    pads: list[int] | None,
    strides: list[int] | None,
    output_padding: list[int] | None,
    output_shape: list[int] | None,
) -> torch.Tensor:
    rank = _spatial(x)
    _check_kernel(kernel_shape, weights)
    stride, dilation = _sized("strides", strides, rank, 1), _sized("dilations", dilations, rank, 1)
    extra = _sized("output_padding", output_padding, rank, 0)
    reach = [(k - 1) * d + 1 for k, d in zip(weights.shape[2:], dilation, strict=True)]
    full = [s * (n - 1) + p + r for s, n, p, r in zip(stride, x.shape[2:], extra, reach, strict=True)]
    wanted = None if output_shape is None else output_shape[-rank:]
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
    if wanted is None:
        before, after = _pads(auto_pad, pads, x.shape[2:], reach, stride, dilation)
    else:
        totals = [have - want for have, want in zip(full, wanted, strict=True)]
        smaller, larger = [t // 2 for t in totals], [t - t // 2 for t in totals]
        before, after = (larger, smaller) if auto_pad == "SAME_UPPER" else (smaller, larger)
    y = _TRANSPOSED[rank - 1](x, weights, bias, stride, 0, 0, group, dilation)
    # All at once: what the output padding adds at the end, and what the padding takes away at both.
    before = [-n for n in before]
    after = [p - n for p, n in zip(extra, after, strict=True)]
    if all(n <= 0 for n in after) or bias is None:
        return _padded(y, before, after)
    # Rows that no input reaches hold the bias.
    bare = _TRANSPOSED[rank - 1](x, weights, None, stride, 0, 0, group, dilation)
    return _padded(bare, before, after) + bias.reshape([-1, *[1] * rank])


# -- pooling -----------------------------------------------------------------------------------------------------------

_POOL: dict[str, TypedAttribute] = {
    "auto_pad": String("NOTSET"),
    "kernel_shape": Ints(),
    "pads": Ints(None),
    "strides": Ints(None),
}


class _Windows:
    """The windows of a pooling operator."""

    def __init__(
        self,
        x: torch.Tensor,
        kernel_shape: list[int],
        auto_pad: str,
        pads: list[int] | None,
        strides: list[int] | None,
        dilations: list[int] | None,
        ceil_mode: int,
    ) -> None:
        self.rank = _spatial(x)
        self.kernel = _sized("kernel_shape", kernel_shape, self.rank, 1)
        self.strides = _sized("strides", strides, self.rank, 1)
        self.dilations = _sized("dilations", dilations, self.rank, 1)
        self.before, self.after = _pads(auto_pad, pads, x.shape[2:], self.kernel, self.strides, self.dilations)
        self.beyond = [0] * self.rank
        """Rows past the padding that the last window needs, where the number of windows is rounded up."""

        for axis, size in enumerate(x.shape[2:]):
            reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
            free = size + self.before[axis] + self.after[axis] - reach
            if free < 0:
                raise createPoptorchError(
                    f"A window of {reach} elements does not fit axis {axis + 2} of shape {list(x.shape)}."
                )
            rest = free % self.strides[axis]
            if ceil_mode and rest:
                self.beyond[axis] = self.strides[axis] - rest

    @property
    def is_plain(self) -> bool:
        """Whether torch's own padding will do."""
        halves = [k // 2 for k in self.kernel]
        fits = all(0 <= n <= half for n, half in zip(self.before, halves, strict=True))
        return self.before == self.after and fits and not any(self.beyond)

    def padded(self, x: torch.Tensor, value: float) -> torch.Tensor:
        """With rows at both ends, and those past them."""
        return _padded(x, self.before, [a + b for a, b in zip(self.after, self.beyond, strict=True)], value)


@onnx("MaxPool", types="F", attributes=_POOL)
@onnx("MaxPool", 8, types="F", attributes=_POOL, storage_order=Int(0))
@onnx("MaxPool", 10, types="F", attributes=_POOL, storage_order=Int(0), ceil_mode=Int(0), dilations=Ints(None))
def _max_pool(
    x: torch.Tensor,
    *,
    auto_pad: str,
    kernel_shape: list[int],
    pads: list[int] | None,
    strides: list[int] | None,
    storage_order: int = 0,
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
) -> torch.Tensor:
    if storage_order:
        raise createPoptorchError("The attribute 'storage_order' is not supported with another value than 0.")
    windows = _Windows(x, kernel_shape, auto_pad, pads, strides, dilations, ceil_mode)
    pool = _MAX_POOLED[windows.rank - 1]
    if windows.is_plain:
        return pool(x, windows.kernel, windows.strides, windows.before, windows.dilations)
    wide = windows.padded(x, torch.finfo(x.dtype).min)
    return pool(wide, windows.kernel, windows.strides, 0, windows.dilations)


@onnx("AveragePool", types="F", attributes=_POOL)
@onnx("AveragePool", 7, types="F", attributes=_POOL, count_include_pad=Int(0))
@onnx("AveragePool", 10, types="F", attributes=_POOL, count_include_pad=Int(0), ceil_mode=Int(0))
def _average_pool(
    x: torch.Tensor,
    *,
    auto_pad: str,
    kernel_shape: list[int],
    pads: list[int] | None,
    strides: list[int] | None,
    count_include_pad: int = 0,
    ceil_mode: int = 0,
) -> torch.Tensor:
    windows = _Windows(x, kernel_shape, auto_pad, pads, strides, None, ceil_mode)
    pool = _AVG_POOLED[windows.rank - 1]
    if windows.is_plain:
        return pool(x, windows.kernel, windows.strides, windows.before, False, bool(count_include_pad))
    means = pool(windows.padded(x, 0.0), windows.kernel, windows.strides)
    counted = torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype)
    if count_include_pad:
        counted = _padded(counted, windows.before, windows.after, 1.0)
        shares = pool(_padded(counted, [0] * windows.rank, windows.beyond), windows.kernel, windows.strides)
    else:
        shares = pool(windows.padded(counted, 0.0), windows.kernel, windows.strides)
    return means / torch.where(shares > 0, shares, torch.ones_like(shares))


@onnx("GlobalAveragePool", types="F")
def _global_average_pool(x: torch.Tensor) -> torch.Tensor:
    _spatial(x)
    return x.mean(list(range(2, x.dim())), keepdim=True)


@onnx("GlobalMaxPool", types="F")
def _global_max_pool(x: torch.Tensor) -> torch.Tensor:
    _spatial(x)
    return x.flatten(2).max(2).values.reshape([*x.shape[:2], *[1] * (x.dim() - 2)])
