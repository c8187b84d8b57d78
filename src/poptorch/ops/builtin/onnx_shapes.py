"""Operators of ``ai.onnx`` on shapes, types and places."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import REQUIRED, Float, Int, Ints, String, TypedAttribute, refused
from poptorch.ops.builtin.definitions import Situation, onnx
from poptorch.ops.builtin.elementwise import check_ratio
from poptorch.ops.builtin.slicing import depth_to_space, four_axes, reshaped, sliced
from poptorch.ops.builtin.values import axes_of, axis_of, onnx_type, values_of
from poptorch.ops.hints import NOP

# -- types and creation ------------------------------------------------------------------------------------------------


@onnx("Cast", to=Int())
def _cast(x: torch.Tensor, *, to: int) -> torch.Tensor:
    return x.to(onnx_type(to))


class _Value(TypedAttribute):
    """A value of any kind: the backend's tensor attribute, for which ``custom_op`` has numbers and lists of them."""

    def read(self, name: str, given: object) -> object:
        assert isinstance(given, dict)
        kind, value = given.get(name, ("", None))
        if kind == "" and self.default is None:
            return None
        if kind in ("", "String", "Strings"):
            raise createPoptorchError(f"no attribute key {name}. It is required: a number, or a list of numbers.")
        return torch.tensor(value, dtype=torch.float32 if kind.startswith("Float") else torch.int32)


@onnx("Constant", value=_Value("", REQUIRED))
def _constant(*, value: torch.Tensor) -> torch.Tensor:
    return value.clone()


@onnx("ConstantOfShape", 9, types="I", value=_Value("", None))
def _constant_of_shape(shape: torch.Tensor, *, value: torch.Tensor | None) -> torch.Tensor:
    sizes = values_of(shape, "shape")
    if value is None:
        return torch.zeros(sizes)
    if value.numel() != 1:
        raise createPoptorchError(f"The attribute 'value' must have one element, not {value.numel()}.")
    return torch.full(sizes, value.item(), dtype=value.dtype)


@onnx("Shape", differentiable=False)
def _shape(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(x.shape), dtype=torch.int32)


@onnx("Size", differentiable=False)
def _size(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.numel(), dtype=torch.int32)


_NORMAL: dict[str, TypedAttribute] = {"mean": Float(0.0), "scale": Float(1.0), "seed": refused("seed")}
_UNIFORM: dict[str, TypedAttribute] = {"low": Float(0.0), "high": Float(1.0), "seed": refused("seed")}


@onnx("RandomNormal", attributes=_NORMAL, shape=Ints(), dtype=Int(1))
def _random_normal(*, shape: list[int], dtype: int, mean: float, scale: float, seed: None) -> torch.Tensor:
    return torch.randn(shape, dtype=_float_type(dtype)) * scale + mean


@onnx("RandomNormalLike", attributes=_NORMAL, differentiable=False, dtype=Int(None))
def _random_normal_like(x: torch.Tensor, *, dtype: int | None, mean: float, scale: float, seed: None) -> torch.Tensor:
    return torch.randn(list(x.shape), dtype=_like(x, dtype)) * scale + mean


@onnx("RandomUniform", attributes=_UNIFORM, shape=Ints(), dtype=Int(1))
def _random_uniform(*, shape: list[int], dtype: int, low: float, high: float, seed: None) -> torch.Tensor:
    return torch.rand(shape, dtype=_float_type(dtype)) * (high - low) + low


@onnx("RandomUniformLike", attributes=_UNIFORM, differentiable=False, dtype=Int(None))
def _random_uniform_like(x: torch.Tensor, *, dtype: int | None, low: float, high: float, seed: None) -> torch.Tensor:
    return torch.rand(list(x.shape), dtype=_like(x, dtype)) * (high - low) + low


def _float_type(number: int) -> torch.dtype:
    kind = onnx_type(number)
    if not kind.is_floating_point:
        raise createPoptorchError(f"Random numbers of type {kind} are not supported; use 1 (float32) or 10 (float16).")
    return kind


def _like(x: torch.Tensor, number: int | None) -> torch.dtype:
    if number is not None:
        return _float_type(number)
    if not x.is_floating_point():
        raise createPoptorchError(f"Random numbers of type {x.dtype} are not supported: give the attribute 'dtype'.")
    return x.dtype


def _dropout(x: torch.Tensor, ratio: float, active: bool) -> list[torch.Tensor]:
    check_ratio(ratio)
    if not active or not ratio:
        return [NOP(x), torch.ones_like(x.detach(), dtype=torch.bool)]
    y, mask = torch.native_dropout(x, ratio, True)
    return [y, mask]


@onnx("Dropout", 6, types="F", outputs=2, ratio=Float(0.5), is_test=Int(0))
def _dropout_with_flag(x: torch.Tensor, *, ratio: float, is_test: int, at: Situation) -> list[torch.Tensor]:
    return _dropout(x, ratio, at.training and not is_test)


@onnx("Dropout", 7, types="F", outputs=2, ratio=Float(0.5))
def _dropout_by_mode(x: torch.Tensor, *, ratio: float, at: Situation) -> list[torch.Tensor]:
    return _dropout(x, ratio, at.training)


# -- shapes ------------------------------------------------------------------------------------------------------------


@onnx("Concat", axis=Int())
def _concat(first: torch.Tensor, *others: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cat([first, *others], axis_of(axis, first.dim()))


@onnx("DepthToSpace", blocksize=Int())
def _depth_to_space(x: torch.Tensor, *, blocksize: int) -> torch.Tensor:
    return depth_to_space(x, blocksize=blocksize, mode="DCR")


onnx("DepthToSpace", 11, blocksize=Int(), mode=String("DCR"))(depth_to_space)


@onnx("SpaceToDepth", blocksize=Int())
def _space_to_depth(x: torch.Tensor, *, blocksize: int) -> torch.Tensor:
    (n, c, h, w), b = four_axes(x), blocksize
    if b < 1 or h % b or w % b:
        raise createPoptorchError(f"An image of {h} by {w} cannot be divided into blocks of {b} by {b}.")
    blocks = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * b * b, h // b, w // b)


@onnx("Expand", 8, types=("A", "I"))
def _expand(x: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    sizes = values_of(shape, "shape")
    return x.expand(torch.broadcast_shapes(x.shape, sizes)).clone()


@onnx("Flatten", axis=Int(1))
def _flatten(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    axis = axis + x.dim() if axis < 0 else axis
    if not 0 <= axis <= x.dim():
        raise createPoptorchError(f"The axis {axis} is outside the acceptable range of a tensor of rank {x.dim()}.")
    rows = 1
    for size in x.shape[:axis]:
        rows *= size
    return x.reshape(rows, -1 if x.numel() else 0)


@onnx("Reshape", types=("A", "I"))
def _reshape(x: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    return reshaped(x, values_of(shape, "shape"))


@onnx("Slice", 6, starts=Ints(), ends=Ints(), axes=Ints(None))
def _slice(x: torch.Tensor, *, starts: list[int], ends: list[int], axes: list[int] | None) -> torch.Tensor:
    return sliced(x, starts, ends, axes)


@onnx("Slice", 10, types=("A", "I"))
def _slice_by_inputs(
    x: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    axes: torch.Tensor | None = None,
    steps: torch.Tensor | None = None,
) -> torch.Tensor:
    given = [
        None if value is None or not value.numel() else values_of(value, name)
        for name, value in (("starts", starts), ("ends", ends), ("axes", axes), ("steps", steps))
    ]
    return sliced(x, given[0] or [], given[1] or [], given[2], given[3])


@onnx("Split", outputs=0, axis=Int(0), split=Ints(None))
def _split(x: torch.Tensor, *, axis: int, split: list[int] | None, at: Situation) -> list[torch.Tensor]:
    axis = axis_of(axis, x.dim())
    count = len(at.templates)
    if split is None:
        if not count or x.shape[axis] % count:
            raise createPoptorchError(
                f"{x.shape[axis]} elements along axis {axis} cannot be split into {count} equal outputs."
            )
        split = [x.shape[axis] // count] * count
    if sum(split) != x.shape[axis]:
        raise createPoptorchError(f"The parts {split} do not add up to {x.shape[axis]}, the size of axis {axis}.")
    return [part.clone() for part in torch.split(x, split, axis)]


@onnx("Squeeze", axes=Ints(None))
def _squeeze(x: torch.Tensor, *, axes: list[int] | None) -> torch.Tensor:
    if axes is None:
        return x.squeeze()
    for axis in axes_of(axes, x.dim()):
        if x.shape[axis] != 1:
            raise createPoptorchError(f"Axis {axis} of shape {list(x.shape)} cannot be squeezed: its size is not 1.")
    return x.squeeze(tuple(axes_of(axes, x.dim())))


@onnx("Unsqueeze", axes=Ints())
def _unsqueeze(x: torch.Tensor, *, axes: list[int]) -> torch.Tensor:
    for axis in sorted(axes_of(axes, x.dim() + len(axes))):
        x = x.unsqueeze(axis)
    return x


@onnx("Tile", types=("A", "I"))
def _tile(x: torch.Tensor, repeats: torch.Tensor) -> torch.Tensor:
    counts = values_of(repeats, "repeats")
    if len(counts) != x.dim():
        raise createPoptorchError(f"There must be one number of repeats for each of {x.dim()} axes, not {len(counts)}.")
    return x.repeat(counts)


@onnx("Transpose", perm=Ints(None))
def _transpose(x: torch.Tensor, *, perm: list[int] | None) -> torch.Tensor:
    order = list(reversed(range(x.dim()))) if perm is None else axes_of(perm, x.dim())
    if len(order) != x.dim():
        raise createPoptorchError(f"perm is {perm}, which does not order the axes of shape {list(x.shape)}.")
    return x.permute(order)


# -- padding -----------------------------------------------------------------------------------------------------------


@onnx("Pad", 6, types="A", mode=String("constant"), pads=Ints(), value=Float(0.0))
def _pad(x: torch.Tensor, *, mode: str, pads: list[int], value: float) -> torch.Tensor:
    return _padded(x, pads, mode, value)


@onnx("Pad", 11, types=("A", "I", "A"), mode=String("constant"))
def _pad_by_inputs(
    x: torch.Tensor, pads: torch.Tensor, value: torch.Tensor | None = None, *, mode: str
) -> torch.Tensor:
    given = 0.0 if value is None or not value.numel() else values_of(value, "constant_value")[0]
    return _padded(x, values_of(pads, "pads"), mode, given)


def _padded(x: torch.Tensor, pads: Sequence[int], mode: str, value: float) -> torch.Tensor:
    rank = x.dim()
    if len(pads) != 2 * rank:
        raise createPoptorchError(f"pads must have {2 * rank} values for the shape {list(x.shape)}, not {len(pads)}.")
    if mode == "constant":
        amounts = [pads[axis + side * rank] for axis in reversed(range(rank)) for side in (0, 1)]
        return F.pad(x, amounts, value=value)
    if mode not in ("reflect", "edge"):
        raise createPoptorchError(f"The mode {mode!r} of padding must be constant, reflect or edge.")
    for axis in range(rank):
        before, after, size = pads[axis], pads[axis + rank], x.shape[axis]
        if before or after:
            if mode == "reflect" and max(before, after) >= size:
                raise createPoptorchError(
                    f"Axis {axis} of size {size} cannot be reflected for {max(before, after)} rows."
                )
            places = range(-before, size + after)
            x = x.index_select(axis, torch.tensor([_mirrored(p, size, mode) for p in places], dtype=torch.int64))
    return x


def _mirrored(place: int, size: int, mode: str) -> int:
    """Which element stands at a place outside of the tensor."""
    if mode == "edge":
        return min(max(place, 0), size - 1)
    return -place if place < 0 else 2 * (size - 1) - place if place >= size else place


# -- gathering and scattering ------------------------------------------------------------------------------------------


@onnx("Gather", types=("A", "I"), axis=Int(0))
def _gather(x: torch.Tensor, indices: torch.Tensor, *, axis: int) -> torch.Tensor:
    axis = axis_of(axis, x.dim())
    places = indices.reshape(-1).long()
    taken = x.index_select(axis, torch.where(places < 0, places + x.shape[axis], places))
    return taken.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def _scatter(x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, *, axis: int) -> torch.Tensor:
    axis = axis_of(axis, x.dim())
    if indices.shape != updates.shape:
        raise createPoptorchError(
            f"Indices of shape {list(indices.shape)} and updates of {list(updates.shape)} differ."
        )
    places = indices.long()
    return x.scatter(axis, torch.where(places < 0, places + x.shape[axis], places), updates.to(x.dtype))


onnx("Scatter", 9, types=("A", "I", "A"), axis=Int(0))(_scatter)
onnx("ScatterElements", 11, types=("A", "I", "A"), axis=Int(0))(_scatter)


@onnx("OneHot", 9, types=("N", "N", "A"), axis=Int(-1))
def _one_hot(indices: torch.Tensor, depth: torch.Tensor, values: torch.Tensor, *, axis: int) -> torch.Tensor:
    size = int(values_of(depth, "depth")[0])
    if values.numel() != 2:
        raise createPoptorchError(f"The values must be [off, on], not of shape {list(values.shape)}.")
    axis = axis_of(axis, indices.dim() + 1)
    places = indices.long().unsqueeze(axis)
    classes = torch.arange(size).reshape([-1 if d == axis else 1 for d in range(indices.dim() + 1)])
    off, on = values.reshape(-1)
    return torch.where(torch.where(places < 0, places + size, places) == classes, on, off)


def _top_k(x: torch.Tensor, k: int, axis: int, largest: int = 1, in_order: int = 1) -> list[torch.Tensor]:
    axis = axis_of(axis, x.dim())
    if not 0 < k <= x.shape[axis]:
        raise createPoptorchError(f"k is {k}, but axis {axis} of shape {list(x.shape)} has {x.shape[axis]} elements.")
    values, indices = torch.topk(x, k, axis, bool(largest), bool(in_order))
    return [values, indices.to(torch.int32)]


@onnx("TopK", 6, types="N", outputs=2, axis=Int(-1), k=Int())
def _top_k_of_attribute(x: torch.Tensor, *, axis: int, k: int) -> list[torch.Tensor]:
    return _top_k(x, k, axis)


@onnx("TopK", 10, types=("N", "I"), outputs=2, axis=Int(-1))
def _top_k_of_input(x: torch.Tensor, k: torch.Tensor, *, axis: int) -> list[torch.Tensor]:
    return _top_k(x, int(values_of(k, "k")[0]), axis)


@onnx("TopK", 11, types=("N", "I"), outputs=2, axis=Int(-1), largest=Int(1), sorted=Int(1))
def _top_k_either_way(x: torch.Tensor, k: torch.Tensor, *, axis: int, largest: int, sorted: int) -> list[torch.Tensor]:
    return _top_k(x, int(values_of(k, "k")[0]), axis, largest, sorted)


@onnx("Where", 9)
def _where(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(condition if condition.dtype is torch.bool else condition != 0, a, b)
