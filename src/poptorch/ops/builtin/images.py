"""Operators of ``ai.graphcore`` for convolutions, images and splines."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Float, Int, Ints, TypedAttribute
from poptorch.ops.builtin.convolutions import convolved
from poptorch.ops.builtin.definitions import graphcore

_PER_CONVOLUTION: dict[str, TypedAttribute] = {
    name: Ints(None) for name in ("strides", "pads", "dilations", "outPads", "inDilations")
}


@graphcore("MultiConv", types="F", outputs=0, attributes=_PER_CONVOLUTION, numConvs=Int(1))
def _multi_conv(
    *tensors: torch.Tensor,
    numConvs: int,
    strides: list[int] | None,
    pads: list[int] | None,
    dilations: list[int] | None,
    outPads: list[int] | None,
    inDilations: list[int] | None,
) -> list[torch.Tensor]:
    if numConvs < 1 or len(tensors) not in (2 * numConvs, 3 * numConvs):
        raise createPoptorchError(
            f"{numConvs} convolutions need {2 * numConvs} inputs (data and weights of each) or {3 * numConvs} (with a "
            f"bias), not {len(tensors)}."
        )
    width = len(tensors) // numConvs
    groups = [tensors[i : i + width] for i in range(0, len(tensors), width)]
    ranks = [group[0].dim() - 2 for group in groups]
    each_strides, each_pads = _each("strides", strides, ranks, 1, 1), _each("pads", pads, ranks, 2, 0)
    each_dilations, spread = _each("dilations", dilations, ranks, 1, 1), _each("inDilations", inDilations, ranks, 1, 1)
    each_out_pads = _each("outPads", outPads, ranks, 2, 0)
    results = []
    for number, (data, weights, *bias) in enumerate(groups):
        result = convolved(
            _dilated(data, spread[number]),
            weights,
            bias[0] if bias and bias[0].numel() else None,
            strides=each_strides[number],
            pads=each_pads[number],
            dilations=each_dilations[number],
        )
        out_pads = each_out_pads[number]
        rank = ranks[number]
        padding = [out_pads[axis + side * rank] for axis in reversed(range(rank)) for side in (0, 1)]
        results.append(F.pad(result, padding) if any(padding) else result)
    return results


def _each(name: str, values: list[int] | None, ranks: list[int], factor: int, default: int) -> list[list[int]]:
    """The part of a flat list that belongs to each convolution."""
    sizes = [rank * factor for rank in ranks]
    if values is None:
        return [[default] * size for size in sizes]
    if len(values) != sum(sizes):
        raise createPoptorchError(
            f"The attribute '{name}' must have {sum(sizes)} values for these {len(ranks)} convolutions, not "
            f"{len(values)}."
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [values[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _dilated(data: torch.Tensor, factors: list[int]) -> torch.Tensor:
    """Zeros between the elements of each spatial axis."""
    for axis, factor in enumerate(factors, 2):
        if factor == 1:
            continue
        wide = data.unsqueeze(axis + 1)
        wide = torch.cat([wide, *[torch.zeros_like(wide)] * (factor - 1)], axis + 1).flatten(axis, axis + 1)
        data = wide.narrow(axis, 0, wide.shape[axis] - factor + 1)
    return data


@graphcore("NormalizeImage", types=("N", "F", "F"), scale=Float(1.0))
def _normalize_image(image: torch.Tensor, offsets: torch.Tensor, scales: torch.Tensor, *, scale: float) -> torch.Tensor:
    if not image.dim() or image.shape[-1] != 3:
        raise createPoptorchError(f"The image requires the inner dimension to be 3. Its shape is {list(image.shape)}.")
    for name, values in (("offsets", offsets), ("scales", scales)):
        if values.numel() != 3:
            raise createPoptorchError(f"The {name} must have 3 elements, not the shape {list(values.shape)}.")
    if not (image.is_floating_point() or image.dtype is torch.uint8):
        raise createPoptorchError(f"An image of type {image.dtype} is not supported; use uint8, float16 or float32.")
    if math.isclose(scale, 0.0, abs_tol=1e-12):
        raise createPoptorchError(f"The scale should be greater than 0. It is {scale}.")
    kind = image.dtype if image.is_floating_point() else torch.float16
    values = image.to(kind)
    normal = (values * scale - offsets.reshape(3).to(kind)) * scales.reshape(3).to(kind)
    return F.pad(normal, (0, 1))


@graphcore("SplineBasis", types=("F", "I", "A"), outputs=2, degree=Int(0))
def _spline_basis(
    pseudo: torch.Tensor, kernel_size: torch.Tensor, is_open: torch.Tensor, *, degree: int
) -> tuple[torch.Tensor, torch.Tensor]:
    if pseudo.dim() != 2:
        raise createPoptorchError(f"The pseudo tensor is not a 2-D tensor: it has shape {list(pseudo.shape)}.")
    for name, vector in (("kernel_size", kernel_size), ("is_open_spline", is_open)):
        if vector.dim() != 1 or vector.shape[0] != pseudo.shape[1]:
            raise createPoptorchError(
                f"The {name} tensor is not a 1-D tensor of {pseudo.shape[1]} elements: its shape is "
                f"{list(vector.shape)}."
            )
    if degree not in _PIECES:
        raise createPoptorchError(f"Degree {degree} is not valid: must be between 0 and 3.")
    basis = pseudo.new_ones(pseudo.shape[0], 1)
    place = torch.zeros(pseudo.shape[0], 1, dtype=torch.int64)
    stride = torch.ones((), dtype=torch.int64)
    for dimension in range(pseudo.shape[1]):
        size = kernel_size[dimension].long()
        value = pseudo[:, dimension] * (size - degree * is_open[dimension].long()).to(pseudo.dtype)
        whole = value.detach().floor()
        pieces = torch.stack(_PIECES[degree](value - whole), 1)  # (edges, degree + 1)
        knots = (whole.long()[:, None] + torch.arange(degree + 1)) % size
        # The digit of the first dimension is the lowest: it changes fastest.
        basis = (pieces[:, :, None] * basis[:, None, :]).flatten(1)
        place = (knots[:, :, None] * stride + place[:, None, :]).flatten(1)
        stride = stride * size
    return basis, place.to(torch.int32)


def _constant(f: torch.Tensor) -> list[torch.Tensor]:
    return [torch.ones_like(f)]


def _linear(f: torch.Tensor) -> list[torch.Tensor]:
    return [1 - f, f]


def _quadratic(f: torch.Tensor) -> list[torch.Tensor]:
    return [0.5 * f * f - f + 0.5, -f * f + f + 0.5, 0.5 * f * f]


def _cubic(f: torch.Tensor) -> list[torch.Tensor]:
    square, cube = f * f, f * f * f
    return [(1 - f) ** 3 / 6, (3 * cube - 6 * square + 4) / 6, (-3 * cube + 3 * square + 3 * f + 1) / 6, cube / 6]


_PIECES = {0: _constant, 1: _linear, 2: _quadratic, 3: _cubic}


@graphcore("SplineWeighting", types=("F", "F", "F", "I"))
def _spline_weighting(
    x: torch.Tensor, weight: torch.Tensor, basis: torch.Tensor, weight_index: torch.Tensor
) -> torch.Tensor:
    for name, tensor, rank in (("input", x, 2), ("weight", weight, 3), ("basis", basis, 2), ("index", weight_index, 2)):
        if tensor.dim() != rank:
            raise createPoptorchError(f"The {name} tensor is not a {rank}-D tensor: its shape is {list(tensor.shape)}.")
    if not x.dtype == weight.dtype == basis.dtype:
        raise createPoptorchError(
            f"Input, weight and basis have different data types: {x.dtype}, {weight.dtype} and {basis.dtype}."
        )
    if x.shape[1] != weight.shape[1] or not x.shape[0] == basis.shape[0] == weight_index.shape[0]:
        raise createPoptorchError(
            f"The shapes {list(x.shape)}, {list(weight.shape)}, {list(basis.shape)} and {list(weight_index.shape)} do "
            "not fit: they must be [edges, in], [kernel, in, out], [edges, sums] and [edges, sums]."
        )
    mixture = F.one_hot(weight_index.long(), weight.shape[0]).to(basis.dtype) * basis.unsqueeze(-1)
    return torch.einsum("ek,ei,kio->eo", mixture.sum(1), x, weight)
