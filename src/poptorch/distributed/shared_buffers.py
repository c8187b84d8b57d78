"""Memory that the processes of one host share.

A *room* is memory of equal size in each process of a group, and each process sees the rooms of all. Processes tell each
other that they have written, or read, by meeting (:meth:`ProcessGroup.start_meeting`): so whatever ends a process, the
others hear of it as in any other operation. The memory has no name: nothing of it is left when processes end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence

import torch

from poptorch import environment
from poptorch._logging import logger
from poptorch.distributed import descriptors
from poptorch.distributed.process_group import Pending, ProcessGroup

_PORTION_BYTES = 1 << 19
"""How much is summed at a time: the result is still in the cache of the processor when it is copied."""

LEAST_BYTES = 1 << 26
_SMALLER = 16
_ADDRESSES = 1 << 45
"""How many bytes the memory of all processes together may take of the addresses of each of them."""

_LINE_BYTES = 64
"""Processes write to different lines of the processor's cache."""


class SharedMemory:
    """The rooms of a group of processes. All members ask for the same rooms in the same order.

    Each process has one file, which all map when they meet. It is as long as there could ever be rooms, and takes no
    memory before it is written: so later rooms need no descriptors, and nothing that could fail in one process only.
    """

    def __init__(self, group: ProcessGroup, everybody: Sequence[mmap.mmap]) -> None:
        self.group = group
        self._own = everybody[group.index]
        self._everybody = [torch.frombuffer(memory, dtype=torch.uint8) for memory in everybody]
        self._heap = Heap(len(self._own))
        self._idle: list[Room] = []

    @staticmethod
    def of(group: ProcessGroup) -> SharedMemory | None:
        """The memory of a group; ``None`` where processes are on several hosts, or one of them cannot share memory."""
        pids = group.pids
        if pids is None or group.size == 1:
            return None
        wanted = environment.SHARED_MEMORY.read() and hasattr(os, "memfd_create")
        sizes = [int(said) for said in group.gather_values(most_bytes(group.size) if wanted else 0)]
        size, problem = min(sizes), ""
        if size == 0:
            return None
        while size >= LEAST_BYTES:
            found = _everybodys(group, pids, size)
            if not isinstance(found, str):
                return SharedMemory(group, found)
            problem, size = found, size // _SMALLER  # perhaps the address space of a process is limited
        logger.warning("Gradients travel over network connections, although all processes are on one host. %s", problem)
        return None

    def room(self, size: int) -> Room | None:
        """A new room of at least some bytes; ``None``, for all members, where there is no place left for it."""
        place = self._heap.take(max(size, 1))
        if place is None:
            return None
        return Room(self.group, [memory[place.start : place.stop] for memory in self._everybody], place)

    def borrow(self, size: int) -> Room | None:
        """A room of at least some bytes, for one operation."""
        fitting = [room for room in self._idle if room.size >= size]
        if fitting:
            room = min(fitting, key=lambda room: room.size)
            self._idle.remove(room)
            room.await_readers()
            return room
        idle, self._idle = self._idle, []  # too small for this; the larger ones serve all others
        for room in idle:
            room.await_readers()
            self._own.madvise(mmap.MADV_REMOVE, room.place.start, len(room.place))
            self._heap.give_back(room.place)
        return self.room(size)

    def give_back(self, room: Room) -> None:
        """Others may still read it, but this process has met them, or is about to."""
        self._idle.append(room)


class Heap:
    """Places of whole pages in memory of some size, the first that fits: the same for all who ask in the same order.

    >>> heap = Heap(4 * mmap.PAGESIZE)
    >>> one, two = heap.take(1), heap.take(2 * mmap.PAGESIZE)
    >>> heap.take(2 * mmap.PAGESIZE) is None
    True
    >>> heap.give_back(one)
    >>> heap.take(mmap.PAGESIZE) == one
    True
    """

    def __init__(self, size: int) -> None:
        self._free = [range(size)]

    def take(self, size: int) -> range | None:
        """A place of at least some bytes."""
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        for number, free in enumerate(self._free):
            if len(free) >= pages:
                self._free[number : number + 1] = [free[pages:]] if len(free) > pages else []
                return free[:pages]
        return None

    def give_back(self, place: range) -> None:
        """A place is free again, and one with free places beside it."""
        joined: list[range] = []
        for free in sorted([*self._free, place], key=lambda free: free.start):
            if joined and joined[-1].stop == free.start:
                joined[-1] = range(joined[-1].start, free.stop)
            else:
                joined.append(free)
        self._free = joined


class Room:
    """Memory of equal size in each process of a group."""

    def __init__(self, group: ProcessGroup, everybody: Sequence[torch.Tensor], place: range) -> None:
        self.group = group
        self.place = place
        """Where it is in the memory of each process."""

        self.size = everybody[0].numel()
        """In bytes."""

        self._everybody = everybody
        self._readers: Pending | None = None

    def of(self, member: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """The first elements of the room of one of the members, by their order."""
        return self._everybody[member][: elements * dtype.itemsize].view(dtype)

    def own(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """The first elements of the room of this process."""
        return self.of(self.group.index, elements, dtype)

    def all(self, elements: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """The same of all members."""
        return [self.of(member, elements, dtype) for member in range(len(self._everybody))]

    def has_been_read(self) -> None:
        """This process has read what it needs of the others. Their next :meth:`await_readers` waits for that."""
        self._readers = self.group.start_meeting()

    def await_readers(self) -> None:
        """Wait until all members have read what they need of this room."""
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.wait()


class RoomSum:
    """Replaces what the members have in their rooms by the sum over all, or by the mean.

    It begins when a process has filled its room. Each process then sums one part of the rooms and writes the result to
    all of them.
    """

    def __init__(self, values: Sequence[torch.Tensor], group: ProcessGroup, averaged: bool) -> None:
        self._values = values
        self._group = group
        self._averaged = averaged
        self._filled = group.start_meeting()
        self._summed: Pending | None = None

    def advance(self) -> None:
        """Wait until all have filled their rooms, and sum the part of this process."""
        if self._summed is None:
            self._filled.wait()
            self._sum_part()
            self._summed = self._group.start_meeting()

    def wait(self) -> None:
        """Wait for the sums of the others as well."""
        self.advance()
        assert self._summed is not None
        self._summed.wait()

    def _sum_part(self) -> None:
        elements, size = self._values[0].numel(), self._values[0].itemsize
        line, portion = max(1, _LINE_BYTES // size), max(1, _PORTION_BYTES // size)
        share = -(-elements // (self._group.size * line)) * line
        first = self._group.index * share
        last = min(first + share, elements)
        for start in range(first, last, portion):
            total, *others = (values[start : min(start + portion, last)] for values in self._values)
            for other in others:
                total.add_(other)
            if self._averaged:
                total.div_(self._group.size)
            for other in others:
                other.copy_(total)


def most_bytes(processes: int) -> int:
    """How much there could be in the rooms of one process: all memory, as far as addresses suffice for that."""
    memory = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    return max(LEAST_BYTES, min(memory, _ADDRESSES // processes) // mmap.PAGESIZE * mmap.PAGESIZE)


def _everybodys(group: ProcessGroup, pids: Sequence[int], size: int) -> list[mmap.mmap] | str:
    """The memory of all members, or what keeps a process from having it: the same on all."""
    with contextlib.ExitStack() as stack:
        name, problem = None, None
        try:
            own = descriptors.sealed_memory("poptorch-exchange", size)
            stack.callback(os.close, own)  # what is mapped stays
            counter = descriptors.Counter(group.size)
            stack.callback(counter.close)
            name = counter.name
        except OSError as error:
            problem = str(error)
        names = group.gather_values(name)
        mapped = []
        if all(name is not None for name in names):
            try:
                files = descriptors.all_files(own, counter, dict(zip(pids, names, strict=True)))
                found = stack.enter_context(files)
                mapped = [mapped_file(found[pid], pid, size) for pid in pids]
            except (OSError, ValueError) as error:
                problem = str(error)
        problems = group.gather_values(problem)
    for process, text in zip(group.members, problems, strict=True):
        if text is not None:
            return f"Process {process} cannot share {size} bytes of memory with the others: {text}."
    return mapped


def mapped_file(file: int, pid: int, size: int) -> mmap.mmap:
    """The memory that a process of this host has handed over."""
    descriptors.check_memory(file, size, pid)
    return mmap.mmap(file, size)
