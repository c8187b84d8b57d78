"""Operators of ``ai.graphcore`` that gather, scatter, sort and count."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch.errors import createPoptorchError
from poptorch.ops.builtin.attributes import Floats, Int, Ints, String
from poptorch.ops.builtin.definitions import graphcore
from poptorch.ops.builtin.values import axes_of, axis_of


@graphcore("GroupedGather", types=("A", "I"), axis=Int(0), group_size=Int(1))
def _grouped_gather(data: torch.Tensor, indices: torch.Tensor, *, axis: int, group_size: int) -> torch.Tensor:
    if group_size < 1:
        raise createPoptorchError(f"group_size = {group_size} must be > 0")
    axis = axis_of(axis, data.dim())
    if group_size == 1:
        return gathered(data, indices, axis)
    if axis == 0:
        raise createPoptorchError("The axis is 0, which indicates the dimension of the group.")
    if data.shape[0] != group_size or not indices.dim() or indices.shape[0] != group_size:
        raise createPoptorchError(
            f"group_size is {group_size}, but the first dimensions of data and indices are {list(data.shape[:1])} and "
            f"{list(indices.shape[:1])}."
        )
    each = [gathered(data[group], indices[group], axis - 1) for group in range(group_size)]
    return torch.stack(each)


def gathered(data: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    """``axis`` replaced by the shape of the indices; zeros where an index is out of range."""
    size = data.shape[axis]
    places = indices.reshape(-1).long()
    taken = data.index_select(axis, places.clamp(0, size - 1))
    valid = ((places >= 0) & (places < size)).reshape([-1 if d == axis else 1 for d in range(data.dim())])
    taken = torch.where(valid, taken, torch.zeros((), dtype=data.dtype))
    return taken.reshape([*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]])


_SCATTERS = {"sum": "sum", "max": "amax", "min": "amin", "mul": "prod", "none": "none"}


@graphcore(
    "ScatterReduce",
    types=("N", "I", "N"),
    axis_size=Int(),
    axis=Int(-1),
    reduction=String("sum"),
    group_size=Int(1),
    enable_index_broadcast=Int(1),
)
def _scatter_reduce(
    src: torch.Tensor,
    index: torch.Tensor,
    initial: torch.Tensor | None = None,
    *,
    axis_size: int,
    axis: int,
    reduction: str,
    group_size: int,
    enable_index_broadcast: int,
) -> torch.Tensor:
    if axis_size < 1:
        raise createPoptorchError(f"axis_size = {axis_size} must be > 0")
    if group_size < 1:
        raise createPoptorchError(f"group_size = {group_size} must be > 0")
    if enable_index_broadcast not in (0, 1):
        raise createPoptorchError(f"enable_index_broadcast = {enable_index_broadcast} must be either 0 or 1")
    kind = _SCATTERS.get(reduction.lower())
    if kind is None:
        raise createPoptorchError(f"The reduction {reduction!r} must be one of {', '.join(_SCATTERS)}.")
    axis = axis_of(axis, src.dim())
    if group_size > 1:
        return _grouped_scatter(src, index, initial, axis_size, axis, kind, group_size)
    index = _index_like(src, index, axis)
    shape = [axis_size if d == axis else n for d, n in enumerate(src.shape)]
    if initial is not None and list(initial.shape) != shape:
        raise createPoptorchError(f"The initial values have shape {list(initial.shape)} instead of {shape}.")
    return _scattered(src, index, initial, shape, axis, kind)


def _grouped_scatter(
    src: torch.Tensor,
    index: torch.Tensor,
    initial: torch.Tensor | None,
    axis_size: int,
    axis: int,
    kind: str,
    group_size: int,
) -> torch.Tensor:
    """The first dimension counts the groups."""
    if axis == 0:
        raise createPoptorchError("The axis is 0, which indicates the dimension of the group.")
    if src.shape[0] != group_size or not index.dim() or index.shape[0] != group_size:
        raise createPoptorchError(
            f"group_size is {group_size}, but the first dimensions of source and index are {list(src.shape[:1])} and "
            f"{list(index.shape[:1])}."
        )
    if index.dim() == 2 and src.dim() > 2:
        if index.shape[1] != src.shape[axis]:
            raise createPoptorchError("Partial broadcasting of indices is not currently supported.")
        index = index.reshape([n if d in (0, axis) else 1 for d, n in enumerate(src.shape)]).expand(src.shape)
    elif index.shape != src.shape:
        raise createPoptorchError("Partial broadcasting of indices is not currently supported.")
    shape = [axis_size if d == axis else n for d, n in enumerate(src.shape)]
    if initial is not None and list(initial.shape) != shape:
        raise createPoptorchError(f"The initial values have shape {list(initial.shape)} instead of {shape}.")
    return _scattered(src, index.long(), initial, shape, axis, kind)


def _index_like(src: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
    """The index in the shape of the source: as it is, or a vector along the axis."""
    sizes = [n if d == axis else 1 for d, n in enumerate(src.shape)]
    if index.shape == src.shape:
        return index.long()
    if list(index.shape) in ([src.shape[axis]], sizes) or (
        index.dim() < src.dim() and list(index.shape) == sizes[axis:][: index.dim()] and index.dim() + axis == src.dim()
    ):
        return index.long().reshape(sizes).expand(src.shape)
    raise createPoptorchError(
        f"Partial broadcasting of indices is not currently supported. The index has shape {list(index.shape)}; it must "
        f"have the shape of the source, {list(src.shape)}, or be a vector of {src.shape[axis]} elements."
    )


def _scattered(
    src: torch.Tensor, index: torch.Tensor, initial: torch.Tensor | None, shape: Sequence[int], axis: int, kind: str
) -> torch.Tensor:
    if kind == "none":
        start = torch.zeros(shape, dtype=src.dtype) if initial is None else initial
        return start.scatter(axis, index, src.to(start.dtype))
    if kind == "sum":
        start = torch.zeros(shape, dtype=src.dtype) if initial is None else initial
        return start.scatter_add(axis, index, src.to(start.dtype))
    if kind == "prod":
        start = torch.ones(shape, dtype=src.dtype) if initial is None else initial
        return start.scatter_reduce(axis, index, src.to(start.dtype), kind)
    return _extreme(src, index, initial, shape, axis, kind)


def _extreme(
    src: torch.Tensor, index: torch.Tensor, initial: torch.Tensor | None, shape: Sequence[int], axis: int, kind: str
) -> torch.Tensor:
    """The largest or smallest of each slot. The gradient goes to all that equal it, whole."""
    start = torch.zeros(shape, dtype=src.dtype) if initial is None else initial.detach()
    best = start.scatter_reduce(axis, index, src.detach(), kind, include_self=initial is not None)
    # Zero in value; the gradient of each winner.
    won = (src == best.gather(axis, index)).to(src.dtype)
    result = best + torch.zeros_like(best).scatter_add(axis, index, (src - src.detach()) * won)
    if initial is not None:
        result = result + (initial - initial.detach()) * (initial == best).to(src.dtype)
    return result


@graphcore("Sort", types="N", outputs=2, axis=Int(-1), descending=Int(0), stable=Int(0))
def _sort(x: torch.Tensor, *, axis: int, descending: int, stable: int) -> tuple[torch.Tensor, torch.Tensor]:
    for name, flag in (("descending", descending), ("stable", stable)):
        if flag not in (0, 1):
            raise createPoptorchError(f"{name} = {flag} must be either 0 or 1")
    values, indices = torch.sort(x, dim=axis_of(axis, x.dim()), descending=bool(descending), stable=bool(stable))
    return values, indices.to(torch.int32)


@graphcore("ReduceMedian", types="N", outputs=2, axes=Ints(None), keepdims=Int(1))
def _reduce_median(x: torch.Tensor, *, axes: list[int] | None, keepdims: int) -> tuple[torch.Tensor, torch.Tensor]:
    reduced = sorted(axes_of(axes, x.dim()))
    kept = [axis for axis in range(x.dim()) if axis not in reduced]
    rows = x.permute([*kept, *reduced]).reshape([*[x.shape[axis] for axis in kept], -1])
    values, indices = rows.median(-1)
    if keepdims:
        shape = [1 if axis in reduced else n for axis, n in enumerate(x.shape)]
        values, indices = values.reshape(shape), indices.reshape(shape)
    return values, indices.to(torch.int32)


@graphcore("Histogram", differentiable=False, levels=Floats(), absoluteOfInput=Int())
def _histogram(x: torch.Tensor, *, levels: list[float], absoluteOfInput: int) -> torch.Tensor:
    if not x.is_floating_point():
        raise createPoptorchError(f"The input of type {x.dtype} is not supported; it must be float16 or float32.")
    values = (x.abs() if absoluteOfInput else x).reshape(-1)
    borders = torch.tensor(sorted(levels), dtype=values.dtype)
    bins = torch.bucketize(values, borders, right=True)
    counts = torch.zeros(len(levels) + 1, dtype=torch.int32)
    return counts.index_add(0, bins, torch.ones(values.numel(), dtype=torch.int32))


@graphcore("Bucketize", types="N", differentiable=False, right=Int(0))
def _bucketize(x: torch.Tensor, boundaries: torch.Tensor, *, right: int) -> torch.Tensor:
    if boundaries.dim() != 1:
        raise createPoptorchError(f"The boundaries tensor is not a 1-D tensor: it has shape {list(boundaries.shape)}.")
    if x.dtype != boundaries.dtype:
        raise createPoptorchError(f"Input and boundaries have different data types: {x.dtype} and {boundaries.dtype}.")
    if right not in (0, 1):
        raise createPoptorchError(f"right = {right} must be either 0 or 1")
    return torch.bucketize(x, boundaries, right=bool(right)).to(torch.int32)
