"""Batches on their way out of a worker: slots of shared memory that are used again and again.

torch's workers make a new segment for every tensor of every batch and pass on a descriptor for each, which
takes longer than many a transform. Here a worker keeps a pool of slots that the receiver maps once. A slot is
leased to the receiver until the last tensor in it is gone, however long that takes; while no slot is free, and
for everything that does not fit, batches travel in torch's way.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import torch
from torch.utils.data import default_collate, get_worker_info

from poptorch.data.collating import collate_into
from poptorch.data.ring import aligned, anonymous_file

_FREE, _LEASED, _RETIRED = 0, 1, 2
_MAPPED_AT, _STATES_AT = 0, 64
_HEADER_BYTES = 4096
_SPARE_SLOTS = 5
"""Beyond what is on its way: the batch in use, the two before it, and the one being made."""


def slots_for(prefetch_factor: int | None) -> int:
    """How many slots a worker's pool has.

    >>> slots_for(2)
    7
    """
    return min((prefetch_factor or 0) + _SPARE_SLOTS, _HEADER_BYTES - _STATES_AT)


# --- in the worker -----------------------------------------------------------------------------------------


class PooledCollate:
    """A ``collate_fn`` for workers: collates with the given one and ships the batch in a slot."""

    def __init__(self, collate_fn: Callable[[Any], Any], slots: int) -> None:
        self._collate = collate_fn
        self._slots = slots
        self._pool: _Pool | None = None
        self._wanted = 0

    def __call__(self, items: Any) -> Any:
        if get_worker_info() is None:
            return self._collate(items)
        slot = self._free_slot()
        if self._collate is default_collate and slot is not None:
            batch = collate_into(items, slot.room)
        else:
            batch = self._collate(items)
        return _ship(self, batch, slot)

    def _free_slot(self) -> _Slot | None:
        if self._wanted and (self._pool is None or self._pool.slot_bytes < self._wanted or self._pool.worn_out()):
            try:
                self._pool = _Pool(self._wanted, self._slots)
            except OSError:  # no room: torch's way may still work
                self._pool, self._wanted = None, 0
        return self._pool.take() if self._pool is not None else None

    def want(self, size: int) -> None:
        """A batch needed ``size`` bytes: make the slots of the next pool that large."""
        self._wanted = max(self._wanted, size)


class _Pool:
    """The worker's side of a pool."""

    def __init__(self, slot_bytes: int, slots: int) -> None:
        self.key = os.urandom(8)
        self.slot_bytes, self._slots = aligned(slot_bytes), slots
        size = _HEADER_BYTES + slots * self.slot_bytes
        self._descriptor = anonymous_file(size)
        weakref.finalize(self, os.close, self._descriptor)
        self._memory = mmap.mmap(self._descriptor, size)

    def take(self) -> _Slot | None:
        """Lease the first free slot: low ones are used most, so the others may never cost any memory."""
        at = self._memory.find(_FREE.to_bytes(), _STATES_AT, _STATES_AT + self._slots)
        if at < 0:
            return None
        self._memory[at] = _LEASED
        number = at - _STATES_AT
        return _Slot(self, number, self._memory, _HEADER_BYTES + number * self.slot_bytes)

    def give_back(self, number: int) -> None:
        """A slot that was not needed after all."""
        self._memory[_STATES_AT + number] = _FREE

    def worn_out(self) -> bool:
        """Whether half of the slots are out of use for good."""
        states = self._memory[_STATES_AT : _STATES_AT + self._slots]
        return 2 * states.count(_RETIRED) >= self._slots

    def ticket(self) -> Any:
        """The descriptor for the receiver, until it says that it has mapped the pool."""
        return None if self._memory[_MAPPED_AT] else DupFd(self._descriptor)


class _Slot:
    """One slot, being filled."""

    def __init__(self, pool: _Pool, number: int, memory: mmap.mmap, start: int) -> None:
        self.pool, self.number = pool, number
        self._memory, self._end = memory, start + pool.slot_bytes
        self._next = start
        self._places: dict[int, int] = {}

    def room(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """The next free part of the slot as a tensor."""
        size = shape.numel() * dtype.itemsize
        if size == 0 or self._next + size > self._end:
            return None
        raw = torch.frombuffer(self._memory, dtype=torch.uint8, count=size, offset=self._next)
        self._places[raw.data_ptr()] = self._next
        self._next += aligned(size)
        return raw.view(dtype).view(shape)

    def place_of(self, tensor: torch.Tensor) -> int | None:
        """Where ``tensor`` is in the pool, after copying it there if it was not made there."""
        place = self._places.get(tensor.data_ptr())
        if place is None:
            target = self.room(tensor.shape, tensor.dtype)
            if target is None:
                return None
            target.copy_(tensor)
            place = self._places[target.data_ptr()]
        return place

    @property
    def used(self) -> bool:
        """Whether anything is in it."""
        return bool(self._places)


class _ShippingPickler(ForkingPickler):
    """Leaves plain tensors in the slot and everything else to torch."""

    def __init__(self, stream: io.BytesIO, slot: _Slot | None) -> None:
        super().__init__(stream, 5)
        self._slot = slot
        self.size = 0

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or not _can_be_placed(obj):
            return NotImplemented
        self.size += aligned(obj.nbytes)
        if obj.is_shared():  # passed on without a copy, and what the user shares stays shared
            return NotImplemented
        place = self._slot.place_of(obj) if self._slot is not None else None
        if place is None:
            return NotImplemented
        return _tensor_at, (place, obj.nbytes, obj.dtype, tuple(obj.shape))


def _can_be_placed(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and tensor.is_contiguous()
        and tensor.nbytes > 0
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


class _Shipment:
    """Pickled by the worker's queue, unpickled as the batch itself."""

    def __init__(self, slot: _Slot | None, payload: bytes) -> None:
        self._slot, self._payload = slot, payload

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._slot is None:
            return pickle.loads, (self._payload,)
        pool = self._slot.pool
        return _open_shipment, (pool.key, os.getpid(), self._slot.number, self._payload, pool.ticket())


def _ship(sender: PooledCollate, batch: Any, slot: _Slot | None) -> _Shipment:
    stream = io.BytesIO()
    pickler = _ShippingPickler(stream, slot)
    pickler.dump(batch)
    sender.want(pickler.size)
    if slot is not None and not slot.used:
        slot.pool.give_back(slot.number)
        slot = None
    return _Shipment(slot, stream.getvalue())


# --- in the receiving process ------------------------------------------------------------------------------


class _MappedPool:
    """The receiver's side of a pool."""

    def __init__(self, descriptor: int, worker_pid: int) -> None:
        self.worker_pid = worker_pid
        self.memory = mmap.mmap(descriptor, 0)
        self.memory[_MAPPED_AT] = 1
        self.leases: dict[int, _Lease] = {}

    def free_unused(self) -> None:
        """Give back the slots whose last tensor has gone."""
        for number, lease in list(self.leases.items()):
            if lease.is_over:
                del self.leases[number]
                self.memory[_STATES_AT + number] = _FREE

    def retire_leases(self) -> None:
        """Never free what is in use now: a process that is being forked may use it for longer than this one."""
        self.free_unused()
        for number in list(self.leases):
            self.memory[_STATES_AT + number] = _RETIRED
            del self.leases[number]


class _Lease:
    """Knows when the last tensor in a slot has gone.

    Tensors go at any time, also in the middle of somebody else's work, where no Python of ours may run: a Ctrl-C that
    arrives in the callback of a weak reference is lost. So the callback is the ``append`` of a deque, which is no
    Python, and slots are given back when the next batch is opened.
    """

    def __init__(self) -> None:
        self._gone: deque[Any] = deque()
        self._references: list[Any] = []
        self._complete = False

    def tensor(
        self, pool: _MappedPool, place: int, size: int, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> torch.Tensor:
        # The tensor's storage keeps this very object, so the storage has gone when the object has.
        part = memoryview(pool.memory)[place : place + size]
        self._references.append(weakref.ref(part, self._gone.append))
        return torch.frombuffer(part, dtype=torch.uint8).view(dtype).view(shape)

    def completed(self) -> None:
        """All tensors of the batch are there."""
        self._complete = True

    @property
    def is_over(self) -> bool:
        """Whether there will be no more tensors, and none is left."""
        return self._complete and len(self._gone) == len(self._references)


_pools: dict[bytes, _MappedPool] = {}
_opening = threading.local()


def _open_shipment(key: bytes, worker_pid: int, number: int, payload: bytes, ticket: Any) -> Any:
    if ticket is not None:
        descriptor = ticket.detach()
        try:
            if key not in _pools:
                _pools[key] = _MappedPool(descriptor, worker_pid)
        finally:
            os.close(descriptor)
    pool = _pools[key]
    pool.free_unused()
    lease = pool.leases[number] = _Lease()
    _opening.tensor = partial(lease.tensor, pool)
    try:
        return pickle.loads(payload)
    finally:
        _opening.tensor = None
        lease.completed()


def _tensor_at(place: int, size: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    tensor: torch.Tensor = _opening.tensor(place, size, dtype, shape)
    return tensor


def forget_pools(worker_pids: Iterable[int | None]) -> None:
    """Let go of the pools of workers that have ended; tensors that are still in use keep theirs.

    >>> forget_pools([])
    """
    gone = set(worker_pids)
    for key in [key for key, pool in _pools.items() if pool.worker_pid in gone]:
        del _pools[key]


def _retire_all() -> None:
    for pool in _pools.values():
        pool.retire_leases()


os.register_at_fork(before=_retire_all, after_in_child=_pools.clear)
