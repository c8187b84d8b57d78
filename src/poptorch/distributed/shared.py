"""Gradients that processes of one host exchange through the memory that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from poptorch.distributed.connections import Connections
from poptorch.distributed.portions import (
    Bucket,
    Ranges,
    Rows,
    contents,
    fill,
    make_buckets,
    own_elements,
    rows_of,
)
from poptorch.distributed.shared_buffers import Room, RoomSum, SharedMemory
from poptorch.distributed.transfer import Transfer


class SharedRooms:
    """Sums gradients in rooms that all processes see: nothing is sent but the word that something is there."""

    def __init__(self, memory: SharedMemory, averaged: bool, replicas: int) -> None:
        self._memory = memory
        self._group = memory.group
        self._averaged = averaged
        self._replicas = replicas
        self._buckets: dict[tuple[str, ...], list[tuple[Bucket, Room]] | None] = {}
        self._otherwise = Connections(memory.group, averaged, replicas)
        """How gradients travel for which there is no room; all processes find the same."""

    def start_sums(self, transfer: Transfer, gradients: Mapping[str, torch.Tensor]) -> None:
        """Whole tensors, which are summed in the same memory in each round."""
        buckets = self._buckets_for(gradients)
        if buckets is None:
            self._otherwise.start_sums(transfer, gradients)
            return
        for bucket, room in buckets:
            before = fill(bucket, gradients)
            values = room.all(bucket.room.numel(), bucket.room.dtype)
            transfer.add(RoomSum(values, self._group, self._averaged), partial(contents, bucket, before))

    def start_scatter(self, transfer: Transfer, gradients: Mapping[str, torch.Tensor], held: Ranges) -> None:
        """Tensors of which each process gets the elements that it holds."""
        for rows in rows_of(gradients, self._group.size, self._replicas):
            room = self._memory.borrow((self._group.size - 1) * rows.width * rows.dtype.itemsize)
            if room is None:
                some = {name: gradients[name] for name in rows.widths}
                self._otherwise.start_scatter(transfer, some, {name: held[name] for name in some})
                continue
            scatter = _Scatter(self._memory, room, rows, gradients, self._averaged)
            types = {name: gradients[name].dtype for name in rows.widths}
            transfer.add(scatter, partial(_own_elements, scatter, rows, types, held))

    def gather(self, tensors: Mapping[str, torch.Tensor], held: Ranges) -> None:
        """Complete tensors, in place, of which each process has only the elements in ``held``."""
        for rows in rows_of(tensors, self._group.size, self._replicas, travelling=False):
            room = self._memory.borrow(rows.width * rows.dtype.itemsize)
            if room is None:
                some = {name: tensors[name] for name in rows.widths}
                self._otherwise.gather(some, {name: held[name] for name in some})
                continue
            for name, part in rows.parts(room.own(rows.width, rows.dtype).view(1, -1)):
                start, stop = held[name]
                part[0, : stop - start] = tensors[name].reshape(-1)[start:stop]
            self._group.start_meeting().wait()
            for member, values in enumerate(room.all(rows.width, rows.dtype)):
                if member != self._group.index:
                    _take_row(tensors, rows, member, values)
            room.has_been_read()
            self._memory.give_back(room)

    def _buckets_for(self, gradients: Mapping[str, torch.Tensor]) -> Sequence[tuple[Bucket, Room]] | None:
        """The buckets of these gradients, made once; ``None`` if there is no room for all of them."""
        key = tuple(gradients)
        if key not in self._buckets:
            rooms: list[Room] = []

            def in_a_room(elements: int, dtype: torch.dtype) -> torch.Tensor:
                room = self._memory.room(elements * dtype.itemsize)
                if room is None:
                    raise _NoRoom
                rooms.append(room)
                return room.own(elements, dtype)

            try:
                self._buckets[key] = list(zip(make_buckets(gradients, room=in_a_room), rooms, strict=True))
            except _NoRoom:
                for room in rooms:
                    self._memory.give_back(room)
                self._buckets[key] = None
        return self._buckets[key]


class _NoRoom(Exception):
    """There is no place for a bucket."""


class _Scatter:
    """Rows of gradients, one for each process, of which each process sums its own. A room has those of all others."""

    def __init__(
        self, memory: SharedMemory, room: Room, rows: Rows, gradients: Mapping[str, torch.Tensor], averaged: bool
    ) -> None:
        self._memory = memory
        self._averaged = averaged
        group = memory.group
        self._elements = (group.size - 1) * rows.width
        self._room: Room | None = room
        self.own = torch.empty(1, rows.width, dtype=rows.dtype)
        others = room.own(self._elements, rows.dtype).view(-1, rows.width)
        for member in range(group.size):
            row = self.own if member == group.index else others[_place(member, group.index)].view(1, -1)
            for name, part in rows.parts(row):
                elements = _elements_of(member, gradients[name].reshape(-1), rows.widths[name])
                part[0, : elements.numel()] = elements
        self._filled = group.start_meeting()

    def advance(self) -> None:
        """Wait until all have filled their rooms, and sum the own row."""
        if self._room is None:
            return
        self._filled.wait()
        group = self._memory.group
        for member, values in enumerate(self._room.all(self._elements, self.own.dtype)):
            if member != group.index:
                self.own.add_(values.view(-1, self.own.shape[1])[_place(group.index, member)])
        if self._averaged:
            self.own.div_(group.size)
        self._room.has_been_read()
        self._memory.give_back(self._room)
        self._room = None

    def wait(self) -> None:
        """The same: what the others do with their rows does not matter here."""
        self.advance()


def _own_elements(
    scatter: _Scatter, rows: Rows, types: Mapping[str, torch.dtype], held: Ranges
) -> Mapping[str, torch.Tensor]:
    return own_elements(rows, scatter.own, types, held)


def _take_row(tensors: Mapping[str, torch.Tensor], rows: Rows, member: int, values: torch.Tensor) -> None:
    """Write the elements that another process holds to their places."""
    for name, part in rows.parts(values.view(1, -1)):
        tensor = tensors[name]
        flat = tensor.reshape(-1)  # a copy of what lies otherwise, such as channels_last
        elements = _elements_of(member, flat, rows.widths[name])
        elements.copy_(part[0, : elements.numel()])
        if not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))


def _elements_of(member: int, flat: torch.Tensor, width: int) -> torch.Tensor:
    """What a process holds of a tensor; nothing, or less than the others, at the end of a small one."""
    return flat[member * width : (member + 1) * width]


def _place(member: int, process: int) -> int:
    """Where the row of a member is in the room of a process, which has none for itself."""
    return member - (member > process)
