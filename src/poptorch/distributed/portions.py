"""Gradients in portions: those that travel together lie one after the other in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

BUCKET_BYTES = 8 << 20
"""How much travels at a time: enough for the cost of a message not to count, and little enough for the first to arrive
while the last are still copied together."""

Ranges = Mapping[str, tuple[int, int]]

_ALIGNMENT = 64
_HALF = (torch.float16, torch.bfloat16)


@dataclass
class Bucket:
    """Tensors that travel together, one after the other in memory."""

    names: list[str]
    offsets: list[int]
    shapes: list[torch.Size]
    room: torch.Tensor


@dataclass
class Rows:
    """Tensors that travel together in one row for each process, which has the elements that the process holds."""

    widths: dict[str, int]
    dtype: torch.dtype

    @property
    def width(self) -> int:
        """The length of a row."""
        return sum(self.widths.values())

    def room(self, count: int) -> torch.Tensor:
        """Memory for some rows."""
        return torch.zeros(count, self.width, dtype=self.dtype)

    def parts(self, room: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor's columns."""
        return zip(self.widths, room.split(list(self.widths.values()), dim=1), strict=True)


def make_buckets(
    gradients: Mapping[str, torch.Tensor], limit: int = BUCKET_BYTES, room: Callable[..., torch.Tensor] = torch.zeros
) -> list[Bucket]:
    """Divide gradients into buckets, each of one type, in their order: the same on every process.

    ``room`` makes the memory of a bucket, from the number of elements and ``dtype``.

    >>> buckets = make_buckets({"a": torch.ones(2, 3), "b": torch.ones(40), "c": torch.ones(1)}, limit=256)
    >>> [bucket.names for bucket in buckets]
    [['a', 'b'], ['c']]
    """
    open_buckets: dict[torch.dtype, tuple[list[str], list[int]]] = {}
    ends: dict[torch.dtype, int] = {}
    done: list[Bucket] = []

    def close(dtype: torch.dtype) -> None:
        names, offsets = open_buckets.pop(dtype)
        shapes = [gradients[name].shape for name in names]
        done.append(Bucket(names, offsets, shapes, room(ends.pop(dtype), dtype=dtype)))

    for name, gradient in gradients.items():
        dtype = travelling_type(gradient.dtype)
        elements = -(-gradient.numel() * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT // dtype.itemsize
        if dtype in ends and (ends[dtype] + elements) * dtype.itemsize > limit:
            close(dtype)
        names, offsets = open_buckets.setdefault(dtype, ([], []))
        names.append(name)
        offsets.append(ends.get(dtype, 0))
        ends[dtype] = offsets[-1] + elements
    for dtype in list(open_buckets):
        close(dtype)
    return done


def rows_of(
    tensors: Mapping[str, torch.Tensor], processes: int, replicas: int, travelling: bool = True
) -> Iterator[Rows]:
    """The tensors in portions, each of one type, with the number of elements that a process holds of each.

    ``replicas`` are those of one process. Gradients are ``travelling``: of other types than they are used in.
    """
    under_way: dict[torch.dtype, Rows] = {}
    for name, tensor in tensors.items():
        dtype = travelling_type(tensor.dtype) if travelling else tensor.dtype
        rows = under_way.setdefault(dtype, Rows({}, dtype))
        rows.widths[name] = math.ceil(tensor.numel() / (replicas * processes)) * replicas
        if rows.width * dtype.itemsize * processes >= BUCKET_BYTES:
            yield under_way.pop(dtype)
    yield from under_way.values()


def travelling_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which gradients are summed: the sum of half-precision ones is rounded once."""
    return torch.float32 if dtype in _HALF else dtype


def to_rows(tensor: torch.Tensor, rows: torch.Tensor) -> None:
    """Write the elements of a tensor to rows, of which the last ones may stay incomplete or empty."""
    flat, width = tensor.reshape(-1), rows.shape[1]
    if not width:
        return
    full, rest = divmod(flat.numel(), width)
    rows[:full] = flat[: full * width].view(full, width)
    if rest:
        rows[full, :rest] = flat[full * width :]


def from_rows(rows: torch.Tensor, tensor: torch.Tensor) -> None:
    """The reverse of :func:`to_rows`."""
    tensor.copy_(rows.reshape(-1)[: tensor.numel()].view(tensor.shape))


def fill(bucket: Bucket, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy gradients to their bucket. What :func:`contents` needs of them is returned, and the rest may be freed."""
    needed = {}
    for name, value in _views(bucket):
        gradient = gradients[name]
        value.copy_(gradient)
        if gradient.dtype is not value.dtype or not gradient.is_contiguous():
            needed[name] = gradient
    return needed


def contents(bucket: Bucket, before: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a bucket; those that lay otherwise ``before``, or had another type, are copied back."""
    return {name: before[name].copy_(value) if name in before else value for name, value in _views(bucket)}


def _views(bucket: Bucket) -> Iterator[tuple[str, torch.Tensor]]:
    for name, offset, shape in zip(bucket.names, bucket.offsets, bucket.shapes, strict=True):
        yield name, bucket.room[offset : offset + shape.numel()].view(shape)


def own_elements(
    rows: Rows, own: torch.Tensor, types: Mapping[str, torch.dtype], held: Ranges
) -> dict[str, torch.Tensor]:
    """The tensors in the row of this process, in the types that they had before."""
    found = {}
    for name, part in rows.parts(own):
        start, stop = held[name]
        found[name] = part[0, : stop - start].to(types[name])
    return found
