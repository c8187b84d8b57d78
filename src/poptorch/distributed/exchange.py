"""Gradients and counts between processes: what an engine calls from the last back-propagation on until the update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from poptorch.distributed import process_group
from poptorch.distributed.process_group import Pending, ProcessGroup

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


class Transfer:
    """Some gradients on their way."""

    def __init__(self) -> None:
        self._parts: list[tuple[Pending, Callable[[], Mapping[str, torch.Tensor]]]] = []

    def add(self, pending: Pending, finish: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """One more operation, and what to do after it."""
        self._parts.append((pending, finish))

    def take(self) -> Mapping[str, torch.Tensor]:
        """Wait for the results, by parameter name; once."""
        result: dict[str, torch.Tensor] = {}
        parts, self._parts = self._parts, []
        for pending, finish in parts:
            pending.wait()
            result.update(finish())
        return result


class ProcessExchange:
    """Sums gradients over the processes of the job.

    Gradients are copied together into buckets, each of which is summed on its own while the next is filled. Large ones
    are summed where they are. Half-precision gradients are summed in float32: the result is rounded once, whatever the
    number of processes. Every process gets the same bits.

    With ``averaged``, the gradients of each process are means, and so is the result. ``replicas`` are those of one
    process.
    """

    is_local = False

    def __init__(self, group: ProcessGroup, averaged: bool = False, replicas: int = 1) -> None:
        self._everybody = group
        self._replicas = replicas
        self._averaged = averaged
        self._buckets: dict[tuple[str, ...], list[Bucket]] = {}

    @property
    def group(self) -> ProcessGroup:
        """The processes that take part now."""
        return process_group.current() or self._everybody

    def start(self, gradients: Mapping[str, torch.Tensor], held: Ranges) -> Transfer:
        """Begin to sum some gradients over all processes (of means: to take the mean).

        Of the parameters in ``held`` the result has only the elements of this process, in one dimension. What is left
        of such a gradient may be freed at once.
        """
        transfer = Transfer()
        self._start_sums(transfer, {name: g for name, g in gradients.items() if name not in held}, reuse=not held)
        self._start_scatter(transfer, {name: g for name, g in gradients.items() if name in held}, held)
        return transfer

    def abandon(self) -> None:
        """A call has failed while gradients were on their way: the others cannot go on either, and hear of it."""
        self.group.give_up("has failed in the middle of a training step")

    def _start_sums(self, transfer: Transfer, gradients: Mapping[str, torch.Tensor], reuse: bool) -> None:
        """Whole tensors; with ``reuse``, small ones are summed in the same memory in each round."""
        small = {name: g for name, g in gradients.items() if not _travels_alone(g)}
        for name, gradient in gradients.items():
            if name not in small:
                total = partial(self._mean_of, gradient)
                transfer.add(self.group.start_sum(gradient), partial(_named, name, total))
        for bucket in self._buckets_for(small) if reuse else make_buckets(small):
            _fill(bucket, small)
            pending = self.group.start_sum(bucket.room)
            like = {name: small[name] for name in bucket.names}
            transfer.add(pending, partial(self._contents, bucket, like))

    def _start_scatter(self, transfer: Transfer, gradients: Mapping[str, torch.Tensor], held: Ranges) -> None:
        group = self._everybody
        for rows in self._rows_of(gradients):
            parts, own = rows.room(group.size), rows.room(1)
            for name, part in rows.parts(parts):
                _to_rows(gradients[name], part)
            types = {name: gradients[name].dtype for name in rows.widths}
            pending = group.start_scatter_sum(parts.view(-1), own.view(-1))
            transfer.add(pending, partial(self._own_elements, rows, own, types, held))

    def _mean_of(self, total: torch.Tensor) -> torch.Tensor:
        return total.div_(self.group.size) if self._averaged else total

    def _contents(self, bucket: Bucket, like: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        self._mean_of(bucket.room)
        return _contents(bucket, like)

    def _own_elements(
        self, rows: Rows, own: torch.Tensor, types: Mapping[str, torch.dtype], held: Ranges
    ) -> Mapping[str, torch.Tensor]:
        self._mean_of(own)
        found = {}
        for name, part in rows.parts(own):
            start, stop = held[name]
            found[name] = part[0, : stop - start].to(types[name])
        return found

    def gather(self, tensors: Mapping[str, torch.Tensor], held: Ranges) -> None:
        """Complete tensors, in place, of which each process has only the elements in ``held``."""
        group = self._everybody
        for rows in self._rows_of(tensors, travelling=False):
            parts, own = rows.room(group.size), rows.room(1)
            for name, part in rows.parts(own):
                start, stop = held[name]
                part[0, : stop - start] = tensors[name].reshape(-1)[start:stop]
            group.start_gather_parts(own.view(-1), parts.view(-1)).wait()
            for name, part in rows.parts(parts):
                _from_rows(part, tensors[name])

    def _rows_of(self, tensors: Mapping[str, torch.Tensor], travelling: bool = True) -> Iterator[Rows]:
        """The tensors in portions, each of one type, with the number of elements that a process holds of each."""
        replicas = self._replicas * self._everybody.size
        under_way: dict[torch.dtype, Rows] = {}
        for name, tensor in tensors.items():
            dtype = _travelling_type(tensor.dtype) if travelling else tensor.dtype
            rows = under_way.setdefault(dtype, Rows({}, dtype))
            rows.widths[name] = math.ceil(tensor.numel() / replicas) * self._replicas
            if rows.width * dtype.itemsize * self._everybody.size >= BUCKET_BYTES:
                yield under_way.pop(dtype)
        yield from under_way.values()

    def sum_counts(self, count: int) -> int:
        """The sum of a number over all processes."""
        return int(self.group.sum(torch.tensor([count])))

    def _buckets_for(self, gradients: Mapping[str, torch.Tensor]) -> Sequence[Bucket]:
        """The buckets of these gradients, made once."""
        key = tuple(gradients)
        if key not in self._buckets:
            self._buckets[key] = make_buckets(gradients)
        return self._buckets[key]


def make_buckets(gradients: Mapping[str, torch.Tensor], limit: int = BUCKET_BYTES) -> list[Bucket]:
    """Divide gradients into buckets, each of one type, in their order: the same on every process.

    >>> buckets = make_buckets({"a": torch.ones(2, 3), "b": torch.ones(40), "c": torch.ones(1)}, limit=256)
    >>> [bucket.names for bucket in buckets]
    [['a', 'b'], ['c']]
    """
    open_buckets: dict[torch.dtype, tuple[list[str], list[int]]] = {}
    ends: dict[torch.dtype, int] = {}
    done: list[Bucket] = []

    def close(dtype: torch.dtype) -> None:
        names, offsets = open_buckets.pop(dtype)
        done.append(Bucket(names, offsets, torch.zeros(ends.pop(dtype), dtype=dtype)))

    for name, gradient in gradients.items():
        dtype = _travelling_type(gradient.dtype)
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


def _named(name: str, value: Callable[[], torch.Tensor]) -> Mapping[str, torch.Tensor]:
    return {name: value()}


def _travels_alone(gradient: torch.Tensor) -> bool:
    big = gradient.numel() * gradient.element_size() >= BUCKET_BYTES // 2
    return big and gradient.is_contiguous() and gradient.dtype not in _HALF


def _travelling_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALF else dtype


def _to_rows(tensor: torch.Tensor, rows: torch.Tensor) -> None:
    """Write the elements of a tensor to rows, of which the last ones may stay incomplete or empty."""
    flat, width = tensor.reshape(-1), rows.shape[1]
    full, rest = divmod(flat.numel(), width)
    rows[:full] = flat[: full * width].view(full, width)
    if rest:
        rows[full, :rest] = flat[full * width :]


def _from_rows(rows: torch.Tensor, tensor: torch.Tensor) -> None:
    """The reverse of :func:`_to_rows`."""
    tensor.copy_(rows.reshape(-1)[: tensor.numel()].view(tensor.shape))


def _fill(bucket: Bucket, gradients: Mapping[str, torch.Tensor]) -> None:
    for name, offset in zip(bucket.names, bucket.offsets, strict=True):
        gradient = gradients[name]
        bucket.room[offset : offset + gradient.numel()].view(gradient.shape).copy_(gradient)


def _contents(bucket: Bucket, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a bucket, in the types that they had before."""
    found = {}
    for name, offset in zip(bucket.names, bucket.offsets, strict=True):
        old = like[name]
        value = bucket.room[offset : offset + old.numel()].view(old.shape)
        if value.dtype is not old.dtype or not old.is_contiguous():
            value = old.copy_(value)  # the update was made for gradients that lie as these do
        found[name] = value
    return found
