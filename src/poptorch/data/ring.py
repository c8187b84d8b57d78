"""A ring of slots in shared memory: the background process fills them, the consumer reads them in place.

The memory is one anonymous file that both processes map. It has no name, so the system frees it when the
last of them ends, however it ends.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from poptorch.data.items import ItemStructure

ALIGNMENT = 64
"""Bytes: a cache line, and enough for every vector instruction."""

Rows = tuple[int, ...]
"""How many rows of each tensor of a slot are filled."""


def aligned(size: int) -> int:
    """``size`` rounded up to the alignment.

    >>> aligned(1), aligned(64), aligned(65)
    (64, 64, 128)
    """
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


def anonymous_file(size: int, *, on_disk: bool = False) -> int:
    """A descriptor of a nameless file of ``size`` bytes, in memory or ``on_disk``; the caller closes it."""
    on_disk = on_disk or not hasattr(os, "memfd_create")
    room = shutil.disk_usage(tempfile.gettempdir()).free if on_disk else _physical_memory()
    if size > room:  # checked first: memory that is promised and missing kills the process that touches it
        where = f"the directory {tempfile.gettempdir()}" if on_disk else "memory"
        raise OSError(errno.ENOSPC, f"Cannot reserve {size / 2**20:.1f} MiB in {where}: no room for that much")
    if on_disk:
        with tempfile.TemporaryFile(prefix="poptorch-") as file:
            descriptor = os.dup(file.fileno())
    else:
        descriptor = os.memfd_create("poptorch", os.MFD_CLOEXEC)
    try:
        _reserve(descriptor, size, on_disk)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _reserve(descriptor: int, size: int, on_disk: bool) -> None:
    """Give a file its size, on a disk with all of its blocks: if it filled up later, touching the rest would kill."""
    if on_disk and size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        else:
            return
    os.ftruncate(descriptor, size)


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class TensorSpec:
    """Shape and type of one tensor of an item."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """The size of the tensor's data."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class RingLayout:
    """Everything both processes must agree on: the item's structure, its tensors, the number of slots."""

    structure: ItemStructure
    specs: tuple[TensorSpec, ...]
    slots: int

    @classmethod
    def for_item(
        cls, structure: ItemStructure, tensors: Sequence[torch.Tensor], slots: int, rows: int | None = None
    ) -> RingLayout:
        """The layout for items like ``tensors``; ``rows`` replaces the size of dimension 0."""
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if rows is not None:
            for index, shape in enumerate(shapes):
                if not shape:
                    raise ValueError(f"{structure.describe(index)} has no dimension 0 to re-batch along.")
            shapes = [(rows, *shape[1:]) for shape in shapes]
        specs = tuple(TensorSpec(shape, t.dtype) for shape, t in zip(shapes, tensors, strict=True))
        return cls(structure, specs, slots)

    @property
    def slot_bytes(self) -> int:
        """The size of one slot."""
        return sum(aligned(spec.nbytes) for spec in self.specs)

    @property
    def total_bytes(self) -> int:
        """The size of the whole ring; at least one byte, since nothing empty can be mapped."""
        return max(1, self.slots * self.slot_bytes)

    def check(self, tensors: Sequence[torch.Tensor], *, rows_may_vary: bool) -> None:
        """Refuse an item that differs from the first one in shape; another type is converted on the way in."""
        if len(tensors) != len(self.specs):
            raise ValueError(
                f"An item has {len(tensors)} tensors, but the first one had {len(self.specs)}. "
                "All items must look the same."
            )
        for index, (tensor, spec) in enumerate(zip(tensors, self.specs, strict=True)):
            if tensor.shape == spec.shape:
                continue
            found = TensorSpec(tuple(tensor.shape), tensor.dtype)
            if rows_may_vary and found.shape and found.shape[1:] == spec.shape[1:]:
                continue
            raise ValueError(
                f"{self.structure.describe(index)} is {found}, but the ring buffer holds {spec}, as in the "
                "first item. "
                "Shapes must be fixed: pad in collate_fn, keep drop_last=True, or use "
                "DataLoaderMode.AsyncRebatched for an incomplete last batch."
            )


class Ring:
    """The slots, mapped into this process. Their tensors keep the mapping alive.

    >>> layout = RingLayout.for_item(ItemStructure("tensor"), [torch.zeros(2, 3)], slots=2)
    >>> descriptor = anonymous_file(layout.total_bytes)
    >>> writer, reader = Ring(layout, descriptor), Ring(layout, descriptor)
    >>> os.close(descriptor)
    >>> _ = writer.slots[1][0].fill_(7)
    >>> reader.read(1).sum().item()
    42.0
    """

    def __init__(self, layout: RingLayout, descriptor: int) -> None:
        self.layout = layout
        memory = mmap.mmap(descriptor, layout.total_bytes)
        self.slots = [self._map_slot(memory, slot) for slot in range(layout.slots)]

    def _map_slot(self, memory: mmap.mmap, slot: int) -> list[torch.Tensor]:
        tensors, offset = [], slot * self.layout.slot_bytes
        for spec in self.layout.specs:
            if spec.nbytes == 0:
                tensors.append(torch.empty(spec.shape, dtype=spec.dtype))
                continue
            raw = torch.frombuffer(memory, dtype=torch.uint8, count=spec.nbytes, offset=offset)
            tensors.append(raw.view(spec.dtype).view(spec.shape))
            offset += aligned(spec.nbytes)
        return tensors

    def read(self, slot: int, rows: Rows | None = None) -> object:
        """The item in ``slot``, without a copy; ``rows`` cuts each tensor to what is filled."""
        # New tensor objects each time: what the user does to one (requires_grad_) must not stick to the slot.
        views = [tensor.detach() for tensor in self.slots[slot]]
        if rows is not None:
            views = [view[:count] for view, count in zip(views, rows, strict=True)]
        return self.layout.structure.rebuild(views)
