"""Operators of ``ai.graphcore`` that choose, move and write parts of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Int, Ints, String
from poptorch.ops.builtin.definitions import graphcore
from poptorch.ops.builtin.values import axes_of
from poptorch.ops.hints import NOP


@graphcore("DepthToSpace", blocksize=Int(), mode=String("DCR"))
def depth_to_space(x: torch.Tensor, *, blocksize: int, mode: str) -> torch.Tensor:
    """Channels become blocks of space."""
    if mode not in ("DCR", "CRD"):
        raise createPoptorchError(f"Unrecognised DepthToSpaceMode {mode!r}: it must be DCR or CRD.")
    n, c, h, w = four_axes(x)
    if blocksize < 1 or c % blocksize**2:
        raise createPoptorchError(f"{c} channels cannot be divided into blocks of {blocksize} by {blocksize}.")
    b, inner = blocksize, c // blocksize**2
    if mode == "DCR":
        blocks = x.reshape(n, b, b, inner, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, inner, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, inner, h * b, w * b)


def four_axes(x: torch.Tensor) -> tuple[int, int, int, int]:
    """The sizes of an image."""
    if x.dim() != 4:
        raise createPoptorchError(f"The input must have 4 dimensions (N, C, H, W), not the shape {list(x.shape)}.")
    n, c, h, w = x.shape
    return n, c, h, w


@graphcore("Reshape", shape=Ints())
def _reshape(x: torch.Tensor, *, shape: list[int]) -> torch.Tensor:
    return reshaped(x, shape)


def reshaped(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """In another shape, in which one -1 is inferred and 0 keeps a dimension."""
    sizes = list(shape)
    if any(size < -1 for size in sizes):
        raise createPoptorchError(f"The sizes of the shape {sizes} cannot be smaller than -1.")
    if sizes.count(-1) > 1:
        raise createPoptorchError(f"The shape {sizes} can only use -1 to specify one unknown dimension.")
    for axis, size in enumerate(sizes):
        if size == 0:
            if axis >= x.dim():
                raise createPoptorchError(
                    f"The 0 at index {axis} of {sizes} keeps a dimension that {list(x.shape)} lacks."
                )
            sizes[axis] = x.shape[axis]
    rest = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and (not rest or x.numel() % rest):
        raise createPoptorchError(
            f"Incompatible inferred dimension: {x.numel()} elements of shape {list(x.shape)} do not fit {sizes}."
        )
    if -1 not in sizes and rest != x.numel():
        raise createPoptorchError(f"{x.numel()} elements of shape {list(x.shape)} do not fit the shape {sizes}.")
    return x.reshape(sizes)


@graphcore("Reverse", dimensions=Ints(()))
def _reverse(x: torch.Tensor, *, dimensions: Sequence[int]) -> torch.Tensor:
    if any(axis < 0 for axis in dimensions):
        raise createPoptorchError(f"Only positive dimensions are supported, not {list(dimensions)}.")
    return x.flip(axes_of(dimensions, x.dim()))


@graphcore("Slice", starts=Ints(), ends=Ints(), axes=Ints(None), steps=Ints(None))
def _slice(
    x: torch.Tensor, *, starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None
) -> torch.Tensor:
    return sliced(x, starts, ends, axes, steps)


def sliced(
    x: torch.Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> torch.Tensor:
    """``x[start:end:step]`` along each axis; negative positions count from the end, and all are clamped."""
    named = axes_of(range(len(starts)) if axes is None else axes, x.dim())
    strides = [1] * len(starts) if steps is None else list(steps)
    if not len(starts) == len(ends) == len(named) == len(strides):
        raise createPoptorchError(
            f"starts, ends, axes and steps differ in length: {len(starts)}, {len(ends)}, {len(named)} and "
            f"{len(strides)}."
        )
    for axis, start, end, step in zip(named, starts, ends, strides, strict=True):
        if step == 0:
            raise createPoptorchError("The step of a slice cannot be 0.")
        begin, stop, _ = slice(start, end, step).indices(x.shape[axis])
        if step < 0:
            places = range(begin, stop, step)
            if not places:
                x = x.narrow(axis, 0, 0)
                continue
            x, begin, stop, step = x.flip(axis), x.shape[axis] - 1 - begin, x.shape[axis] - 1 - stop, -step
        index = [slice(None)] * x.dim()
        index[axis] = slice(begin, max(begin, stop), step)
        x = x[tuple(index)]
    return x


@graphcore("Subsample", types="F", strides=Ints())
def _subsample(x: torch.Tensor, *, strides: list[int]) -> torch.Tensor:
    if len(strides) != x.dim():
        raise createPoptorchError(f"There must be one stride for each of {x.dim()} axes, not {len(strides)}.")
    for index, stride in enumerate(strides):
        if stride == 0:
            raise createPoptorchError(f"Strides invalid. 0 stride at index {index}")
        if stride < 0:
            raise createPoptorchError(f"Strides invalid. {stride} is negative, at index {index}")
    return x[tuple(slice(None, None, stride) for stride in strides)]


# -- at run-time offsets -----------------------------------------------------------------------------------------------


class _Window:
    """The part of a tensor that begins at a run-time offset."""

    def __init__(self, t: torch.Tensor, offset: torch.Tensor, axes: Sequence[int], sizes: Sequence[int]) -> None:
        self.axes, self.sizes = axes_of(axes, t.dim()), list(sizes)
        if len(axes) != len(sizes) or offset.numel() != len(axes):
            raise createPoptorchError(
                f"axes ({list(axes)}), sizes ({list(sizes)}) and the offset (of {offset.numel()} elements) must have "
                "one entry for each axis of the window."
            )
        for axis, size in zip(self.axes, sizes, strict=True):
            if not 0 < size <= t.shape[axis]:
                raise createPoptorchError(f"A window of size {size} does not fit axis {axis} of shape {list(t.shape)}.")
        self.shape = list(t.shape)
        for axis, size in zip(self.axes, sizes, strict=True):
            self.shape[axis] = size
        starts = offset.reshape(-1).long()
        self._positions = [
            (starts[i] + torch.arange(size)) % t.shape[axis]
            for i, (axis, size) in enumerate(zip(self.axes, sizes, strict=True))
        ]

    def read(self, t: torch.Tensor) -> torch.Tensor:
        """What the window shows."""
        for axis, positions in zip(self.axes, self._positions, strict=True):
            t = t.index_select(axis, positions)
        return t

    def write(self, t: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """A copy of the tensor with other values in the window."""
        if list(part.shape) != self.shape:
            raise createPoptorchError(f"The slice has shape {list(part.shape)}, but the window {self.shape}.")
        return self._written(t, part.to(t.dtype), 0)

    def _written(self, t: torch.Tensor, part: torch.Tensor, number: int) -> torch.Tensor:
        axis, positions = self.axes[number], self._positions[number]
        if number + 1 < len(self.axes):
            part = self._written(t.index_select(axis, positions), part, number + 1)
        return t.index_copy(axis, positions, part)


_WINDOW = {"axes": Ints(), "sizes": Ints(), "noOverlap": Int(0)}


@graphcore("DynamicSlice", types=("A", "I", "A"), attributes=_WINDOW)
def _dynamic_slice(
    t: torch.Tensor,
    offset: torch.Tensor,
    into: torch.Tensor | None = None,
    *,
    axes: list[int],
    sizes: list[int],
    noOverlap: int,
) -> torch.Tensor:
    return _Window(t, offset, axes, sizes).read(t)


@graphcore("DynamicUpdate", types=("A", "I", "A"), attributes=_WINDOW)
def _dynamic_update(
    t: torch.Tensor, offset: torch.Tensor, part: torch.Tensor, *, axes: list[int], sizes: list[int], noOverlap: int
) -> torch.Tensor:
    return _Window(t, offset, axes, sizes).write(t, part)


@graphcore("DynamicAdd", types=("N", "I", "N"), attributes=_WINDOW)
def _dynamic_add(
    t: torch.Tensor, offset: torch.Tensor, part: torch.Tensor, *, axes: list[int], sizes: list[int], noOverlap: int
) -> torch.Tensor:
    window = _Window(t, offset, axes, sizes)
    return t + window.write(torch.zeros_like(t), part)


@graphcore("DynamicZero", types=("A", "I"), attributes=_WINDOW)
def _dynamic_zero(
    t: torch.Tensor, offset: torch.Tensor, *, axes: list[int], sizes: list[int], noOverlap: int
) -> torch.Tensor:
    window = _Window(t, offset, axes, sizes)
    return window.write(t, torch.zeros(window.shape, dtype=t.dtype))


@graphcore("SequenceSlice", types=("A", "A", "I"), zeroUnused=Int(0))
def _sequence_slice(
    source: torch.Tensor,
    destination: torch.Tensor,
    n: torch.Tensor,
    source_offset: torch.Tensor,
    destination_offset: torch.Tensor,
    *,
    zeroUnused: int,
) -> torch.Tensor:
    if source.dim() < 2 or source.shape[1:] != destination.shape[1:]:
        raise createPoptorchError(
            f"Source and destination must have at least 2 dimensions, and the same but for the first; they have the "
            f"shapes {list(source.shape)} and {list(destination.shape)}."
        )
    if n.dim() != 1 or not n.shape == source_offset.shape == destination_offset.shape:
        raise createPoptorchError(
            f"The lengths and both offsets must be vectors of one length, not of shapes {list(n.shape)}, "
            f"{list(source_offset.shape)} and {list(destination_offset.shape)}."
        )
    rows = torch.arange(destination.shape[0])
    chosen = torch.full((destination.shape[0],), -1, dtype=torch.int64)
    going_on = (n != 0).to(torch.int32).cumprod(0) != 0
    for i in range(n.shape[0]):
        place = rows - destination_offset[i].long()
        inside = (place >= 0) & (place < n[i]) & going_on[i]
        chosen = torch.where(inside, place + source_offset[i].long(), chosen)
    written = (chosen >= 0).reshape([-1, *[1] * (destination.dim() - 1)])
    taken = source.index_select(0, chosen.clamp(0, source.shape[0] - 1))
    rest = torch.zeros_like(destination) if zeroUnused else destination
    return torch.where(written, taken.to(destination.dtype), rest)


@graphcore("TensorRemap", remap_type=Int())
def _tensor_remap(x: torch.Tensor, reference: torch.Tensor | None = None, *, remap_type: int) -> torch.Tensor:
    if remap_type not in (0, 1, 2):
        raise createPoptorchError(
            f"remap_type must be 0 (forward and reverse), 1 (forward and backward) or 2 (forward), not {remap_type}."
        )
    return NOP(x)
