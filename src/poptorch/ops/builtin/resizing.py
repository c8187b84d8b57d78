"""Resizing images, and regions of them, as ONNX has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Float, Floats, Int, String
from poptorch.ops.builtin.definitions import onnx
from poptorch.ops.builtin.values import absent, along, values_of

Coordinate = Callable[[int, float, int, int], float]
"""From a place in the result, the scale and both lengths to a place in the input."""

_COORDINATES: dict[str, Coordinate] = {
    "half_pixel": lambda x, scale, old, new: (x + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda x, scale, old, new: (x + 0.5) / scale - 0.5 if new > 1 else 0.0,
    "align_corners": lambda x, scale, old, new: x * (old - 1) / (new - 1) if new > 1 else 0.0,
    "asymmetric": lambda x, scale, old, new: x / scale,
    "tf_half_pixel_for_nn": lambda x, scale, old, new: (x + 0.5) / scale,
}

_ROUNDED: dict[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}

Taps = list[list[tuple[int, float]]]
"""For each place of the result, which elements of the input it consists of, and how much of each."""


def _taps(places: Sequence[float], old: int, mode: str, rounding: str, a: float, exclude: bool) -> Taps:
    if mode == "nearest":
        return [[(min(max(_ROUNDED[rounding](x), 0), old - 1), 1.0)] for x in places]
    taps = []
    for x in places:
        first = math.floor(x)
        part = x - first
        if mode == "linear":
            found = [(first, 1 - part), (first + 1, part)]
        else:
            found = [(first + n, _cubic(abs(part - n), a)) for n in (-1, 0, 1, 2)]
            if exclude:
                found = [(at, w if 0 <= at < old else 0.0) for at, w in found]
                total = sum(w for _, w in found)
                found = [(at, w / total) for at, w in found]
        taps.append([(min(max(at, 0), old - 1), w) for at, w in found])
    return taps


def _cubic(distance: float, a: float) -> float:
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a if distance < 2 else 0.0


def _resized(
    x: torch.Tensor,
    scales: Sequence[float],
    sizes: Sequence[int] | None,
    mode: str,
    coordinates: str = "asymmetric",
    rounding: str = "floor",
    a: float = -0.75,
    exclude: bool = False,
) -> torch.Tensor:
    """One axis after the other: all kinds of interpolation are products of those along the axes."""
    if mode not in ("nearest", "linear", "cubic"):
        raise createPoptorchError(f"The mode {mode!r} of resizing must be nearest, linear or cubic.")
    if coordinates not in _COORDINATES:
        raise createPoptorchError(
            f"The attribute 'coordinate_transformation_mode' is not supported with the value {coordinates!r}; use one "
            f"of {', '.join(_COORDINATES)}."
        )
    if rounding not in _ROUNDED:
        raise createPoptorchError(f"The attribute 'nearest_mode' must be one of {', '.join(_ROUNDED)}.")
    count = len(scales if sizes is None else sizes)
    if count != x.dim():
        raise createPoptorchError(f"There must be one scale or size for each of {x.dim()} axes, not {count}.")
    for axis, old in enumerate(x.shape):
        new = sizes[axis] if sizes is not None else math.floor(np.float32(old) * np.float32(scales[axis]))
        scale = new / old if sizes is not None else float(scales[axis])
        if new < 1 or scale <= 0:
            raise createPoptorchError(f"Axis {axis} of size {old} cannot be resized to {new} elements.")
        if new == old and scale == 1:
            continue
        places = [_COORDINATES[coordinates](i, scale, old, new) for i in range(new)]
        x = _interpolated(x, axis, _taps(places, old, mode, rounding, a, exclude))
    return x


def _interpolated(x: torch.Tensor, axis: int, taps: Taps) -> torch.Tensor:
    total = None
    for number in range(len(taps[0])):
        part = x.index_select(axis, torch.tensor([tap[number][0] for tap in taps], dtype=torch.int64))
        if len(taps[0]) == 1:
            return part
        shares = torch.tensor([tap[number][1] for tap in taps], dtype=x.dtype)
        part = part * along(shares, axis, x.dim())
        total = part if total is None else total + part
    assert total is not None
    return total


@onnx("Resize", 10, types=("N", "F"), mode=String("nearest"))
def _resize_by_scales(x: torch.Tensor, scales: torch.Tensor, *, mode: str) -> torch.Tensor:
    return _resized(x, values_of(scales, "scales"), None, mode)


@onnx(
    "Resize",
    11,
    types=("N", "F", "F", "I"),
    coordinate_transformation_mode=String("half_pixel"),
    cubic_coeff_a=Float(-0.75),
    exclude_outside=Int(0),
    extrapolation_value=Float(0.0),
    mode=String("nearest"),
    nearest_mode=String("round_prefer_floor"),
)
def _resize(
    x: torch.Tensor,
    roi: torch.Tensor,
    scales: torch.Tensor,
    sizes: torch.Tensor | None = None,
    *,
    coordinate_transformation_mode: str,
    cubic_coeff_a: float,
    exclude_outside: int,
    extrapolation_value: float,
    mode: str,
    nearest_mode: str,
) -> torch.Tensor:
    settings = (mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(exclude_outside))
    if sizes is not None and not absent(sizes):
        return _resized(x, (), [int(size) for size in values_of(sizes, "sizes")], *settings)
    if absent(scales):
        raise createPoptorchError("Either scales or sizes must be given, the other as an empty tensor.")
    return _resized(x, values_of(scales, "scales"), None, *settings)


@onnx("Upsample", 7, types="N", scales=Floats(), mode=String("nearest"))
def _upsample(x: torch.Tensor, *, scales: list[float], mode: str) -> torch.Tensor:
    return _resized(x, scales, None, mode)


@onnx("Upsample", 9, types=("N", "F"), mode=String("nearest"))
def _upsample_by_input(x: torch.Tensor, scales: torch.Tensor, *, mode: str) -> torch.Tensor:
    return _resized(x, values_of(scales, "scales"), None, mode)


# -- regions -----------------------------------------------------------------------------------------------------------


@onnx(
    "RoiAlign",
    10,
    types=("F", "F", "I"),
    mode=String("avg"),
    output_height=Int(1),
    output_width=Int(1),
    sampling_ratio=Int(0),
    spatial_scale=Float(1.0),
)
def _roi_align(
    x: torch.Tensor,
    rois: torch.Tensor,
    batch: torch.Tensor,
    *,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> torch.Tensor:
    if x.dim() != 4 or rois.dim() != 2 or rois.shape[1] != 4 or list(batch.shape) != [rois.shape[0]]:
        raise createPoptorchError(
            f"The shapes {list(x.shape)}, {list(rois.shape)} and {list(batch.shape)} do not fit: they must be "
            "[N, C, H, W], [regions, 4] and [regions]."
        )
    if mode not in ("avg", "max"):
        raise createPoptorchError(f"The mode {mode!r} must be avg or max.")
    exact = rois.detach().float() if rois.dtype is torch.float16 else rois.detach()
    borders = exact * spatial_scale  # places in an image need more digits than halves have
    rows = _Samples(borders[:, 1], borders[:, 3], output_height, x.shape[2], sampling_ratio)
    columns = _Samples(borders[:, 0], borders[:, 2], output_width, x.shape[3], sampling_ratio)
    images = x.index_select(0, batch.long())
    if mode == "avg":
        weights = rows.means().to(x.dtype), columns.means().to(x.dtype)
        return torch.einsum("rph,rchw,rqw->rcpq", weights[0], images, weights[1])
    weights = rows.weights.to(x.dtype), columns.weights.to(x.dtype)
    values = torch.einsum("rpih,rchw,rqjw->rcpiqj", weights[0], images, weights[1])
    taken = rows.taken[:, None, None, :, None, None] & columns.taken[:, None, None, None, None, :]
    return torch.where(taken, values, torch.full((), torch.finfo(x.dtype).min, dtype=x.dtype)).amax((3, 5))


class _Samples:
    """Where each bin of each region takes its samples along one axis, as weights of the pixels."""

    def __init__(self, low: torch.Tensor, high: torch.Tensor, bins: int, size: int, ratio: int) -> None:
        length = (high - low).clamp(min=1.0)
        # As many samples as pixels: for a compiled program at most as many as the image has.
        most = ratio if ratio > 0 else -(-size // bins)
        if ratio > 0:
            count = torch.full_like(length, ratio)
        else:
            count = torch.ceil(length / bins).clamp(1, most)
        number = torch.arange(most, dtype=low.dtype)
        self.taken = number < count[:, None]
        """Which samples a region has, [regions, samples]."""

        width = (length / bins)[:, None, None]
        start = low[:, None, None] + torch.arange(bins, dtype=low.dtype)[:, None] * width
        places = start + (number + 0.5) * width / count[:, None, None]  # [regions, bins, samples]
        inside = (places >= -1) & (places <= size) & self.taken[:, None]
        clamped = places.clamp(0, size - 1)
        weights = (1 - (clamped[..., None] - torch.arange(size, dtype=low.dtype)).abs()).clamp(min=0)
        self.weights = weights * inside[..., None].to(low.dtype)
        """[regions, bins, samples, pixels]."""

        self._count = count

    def means(self) -> torch.Tensor:
        """The weights of the mean of the samples of each bin."""
        return self.weights.sum(2) / self._count[:, None, None]
