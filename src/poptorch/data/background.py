"""The background process: iterates over the data set and fills the ring."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from types import FrameType
from typing import Any, NoReturn

import numpy
import torch
from torch.utils.data import DataLoader, default_collate

from poptorch._logging import logger
from poptorch.arg_parsers import register_with, registerCustomArgParser
from poptorch.data.collating import collate_into
from poptorch.data.items import ItemStructure
from poptorch.data.line import Line
from poptorch.data.messages import Began, Begin, Ended, Failed, Filled, GoTo, Ready, Release, Settings, Stop
from poptorch.data.parcel import PackedParcel, Parcel
from poptorch.data.ring import Ring, RingLayout, Rows, anonymous_file
from poptorch.data.shared_segments import remove_segments

_PARENT_CHECK_S = 1.0
_KILLED_S = 0.5
"""How long a killed worker may take to be gone."""


def serve(
    parcel: Parcel | PackedParcel,
    settings: Settings,
    connection: Connection,
    lifeline: Connection,
    others: Any = (),
) -> None:
    """Run in the new process until told to stop, interrupted, or left alone.

    ``others`` are the consumer's ends, which a forked process inherits and must close to notice its death.
    """
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)  # one group for this process and its workers, so that one signal reaches them all
    signal.signal(signal.SIGINT, _leave_silently)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # held back until there was somebody to handle it
    for other in others:
        other.close()
    threading.Thread(target=_leave_with_parent, args=(lifeline, settings.parent_pid), daemon=True).start()
    torch.set_num_threads(1)  # the other cores belong to the model; also makes a forked process safe to use
    # This process may have been spawned; that its own workers are too would only make them slow to start.
    multiprocessing.set_start_method(settings.start_method, force=True)
    _seed(settings)
    try:
        dataset, parsers = parcel.unpack()
        for library, parser in parsers:
            register_with(library, functools.partial(_register, parser))
        gc.freeze()  # what is there now stays: do not look through all of torch again and again
        Producer(dataset, settings, connection).run()
        _end_workers(dataset)
    except _ConsumerGone:
        leave_now()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer must hear of it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's handler raises once more for each worker
        summary = "".join(traceback.format_exception_only(error)).strip()
        with contextlib.suppress(OSError):
            Line(connection).send(Failed(summary, "".join(traceback.format_exception(error))))
        leave_now(1)


def _register(parser: bytes) -> None:
    registerCustomArgParser(*pickle.loads(parser))


# --- leaving -----------------------------------------------------------------------------------------------


def leave_now(code: int = 0) -> NoReturn:
    """End this process and its workers at once, without a word."""
    workers = [worker for worker in list(multiprocessing.process._children) if worker.pid]  # type: ignore[attr-defined]
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(_KILLED_S)
    remove_segments(worker.pid for worker in workers)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _end_workers(dataset: Any) -> None:
    """Let the persistent workers of a loader finish; else multiprocessing would kill them in the middle of a batch."""
    iterator: Any = getattr(dataset, "_iterator", None)
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
        remove_segments(worker.pid for worker in iterator._workers)


def _leave_silently(number: int, frame: FrameType | None) -> None:
    leave_now()


def _leave_with_parent(lifeline: Connection, parent_pid: int) -> None:
    """Wait for the consumer to hang up or die, while the main thread may be stuck in the data set."""
    while not lifeline.poll(_PARENT_CHECK_S):
        try:
            os.kill(parent_pid, 0)
        except ProcessLookupError:  # its end of the lifeline may live on in processes that it forked
            break
    leave_now()


def _seed(settings: Settings) -> None:
    """Continue the consumer's random numbers: after the same seed, Async shuffles as Sync does."""
    torch.set_rng_state(torch.frombuffer(bytearray(settings.rng_state), dtype=torch.uint8))
    random.seed(settings.seed)
    numpy.random.seed(settings.seed % 2**32)


# --- loading -----------------------------------------------------------------------------------------------


class _NextEpoch(Exception):
    """The consumer wants a later epoch."""


class _StopRequested(Exception):
    """The consumer wants no more data."""


class _ConsumerGone(Exception):
    """Nobody is listening any more. An exception of its own: data sets raise EOFError and OSError, too."""


class Producer:
    """Fills free slots with items, one epoch after the other."""

    def __init__(self, dataset: Any, settings: Settings, connection: Connection) -> None:
        self._dataset = dataset
        self._settings = settings
        self._line = Line(connection)
        self._ring: Ring | None = None
        self._free: deque[int] = deque(range(settings.buffer_size))
        self._epoch = 0
        self._wanted = 0
        self._begun = settings.early_preload
        self._sent = 0
        self._reserved: int | None = None
        """A free slot that is being filled."""
        if (
            isinstance(dataset, DataLoader)
            and dataset.num_workers == 0
            and dataset.collate_fn is default_collate
            and settings.rebatched_size is None
        ):
            dataset.collate_fn = self._collate_into_slot

    def run(self) -> None:
        """Load until :class:`Stop` arrives."""
        with contextlib.suppress(_StopRequested):
            while True:
                sent_before = self._sent
                with contextlib.suppress(_NextEpoch):
                    self._load_epoch()
                    self._end_epoch(empty=self._sent == sent_before)
                self._epoch = max(self._epoch + 1, self._wanted)

    def _load_epoch(self) -> None:
        if (announce := getattr(self._dataset, "announceEpochs", None)) is not None:
            announce(lambda start: self._say(Began(self._epoch, start)))
        items = iterate(self._dataset)
        try:
            if self._settings.rebatched_size is None:
                for item in items:
                    self._pass_on(item)
            else:
                self._rebatch(items, self._settings.rebatched_size)
        finally:
            items.close()  # ends the workers of a loader that does not keep them

    def _end_epoch(self, *, empty: bool) -> None:
        too_few = self._settings.rebatched_size is not None and self._ring is not None
        if self._sent == 0 and not too_few:
            raise ValueError(
                "The Dataset is empty: it yields no item or, with drop_last=True, fewer rows than one full batch."
            )
        self._say(Ended(self._epoch))
        # An epoch without items takes no slot: starting the next one at once could go on for ever.
        if empty or not self._settings.load_indefinitely:
            while True:
                self._obey(wait=True)

    def _pass_on(self, item: Any) -> None:
        tensors, ring = self._accept(item)
        slot = self._free_slot()
        targets = ring.slots[slot]
        places = {target.data_ptr() for target in targets}
        for index, (target, tensor) in enumerate(zip(targets, tensors, strict=True)):
            if tensor.data_ptr() != target.data_ptr() and tensor.data_ptr() in places:
                tensors[index] = tensor.clone()  # was collated into the place of another, which comes next
        complete = True
        for target, tensor in zip(targets, tensors, strict=True):
            if target.shape != tensor.shape:
                complete = False
                if tensor.shape[0] > target.shape[0]:
                    ring.layout.check(tensors, rows_may_vary=False)  # raises: more rows than a slot has
                target = target[: tensor.shape[0]]
            if tensor.data_ptr() != target.data_ptr():
                target.copy_(tensor)
        self._reserved = None
        self._send(slot, None if complete else tuple(len(tensor) if tensor.ndim else 0 for tensor in tensors))

    def _collate_into_slot(self, items: Any) -> Any:
        """Stack the tensors of a batch where the consumer will read them."""
        if self._ring is None:
            return default_collate(items)
        vacant = list(zip(self._ring.layout.specs, range(len(self._ring.layout.specs)), strict=True))
        ring = self._ring

        def room(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
            for spec, index in vacant:
                if spec.shape == shape and spec.dtype is dtype:
                    vacant.remove((spec, index))
                    self._reserved = self._free_slot()
                    return ring.slots[self._reserved][index].detach()
            return None

        return collate_into(items, room)

    def _rebatch(self, items: Iterator[Any], size: int) -> None:
        """Copy rows into a slot until it holds ``size`` of them, across the borders of incoming batches."""
        slot, filled = -1, 0
        try:
            for item in items:
                tensors, ring = self._accept(item)
                available = _common_rows(tensors)
                taken = 0
                while taken < available:
                    if slot < 0:
                        slot = self._free_slot()
                    count = min(size - filled, available - taken)
                    for target, tensor in zip(ring.slots[slot], tensors, strict=True):
                        target[filled : filled + count].copy_(tensor[taken : taken + count])
                    filled, taken = filled + count, taken + count
                    if filled == size:
                        self._send(slot, None)
                        slot, filled = -1, 0
            if filled and self._settings.keep_incomplete:
                assert self._ring is not None
                self._send(slot, (filled,) * len(self._ring.layout.specs))
                slot = -1
        finally:
            if slot >= 0:
                self._free.appendleft(slot)

    def _accept(self, item: Any) -> tuple[list[torch.Tensor], Ring]:
        ring = self._ring or self._make_ring(item)
        tensors = ring.layout.structure.flatten(item)
        may_vary = self._settings.rows_may_vary or self._settings.rebatched_size is not None
        ring.layout.check(tensors, rows_may_vary=may_vary)
        return tensors, ring

    def _make_ring(self, first: Any) -> Ring:
        structure = ItemStructure.of(first)
        size = self._settings.rebatched_size
        layout = RingLayout.for_item(structure, structure.flatten(first), self._settings.buffer_size, size)
        descriptor = anonymous_file(layout.total_bytes)
        try:
            self._say(Ready(layout))
            send_handle(self._line.connection, descriptor, self._settings.parent_pid)
            self._ring = Ring(layout, descriptor)
        finally:
            os.close(descriptor)
        return self._ring

    def _send(self, slot: int, rows: Rows | None) -> None:
        self._say(Filled(self._epoch, slot, rows))
        self._sent += 1

    # --- listening -----------------------------------------------------------------------------------------

    def _free_slot(self) -> int:
        if self._reserved is not None:
            return self._reserved
        self._obey(wait=False)
        while not self._free or (self._sent and not self._begun):
            self._obey(wait=True)
        return self._free.pop()  # the one released last: its memory is still in the cache

    def _obey(self, *, wait: bool) -> None:
        """Carry out what the consumer has asked for; with ``wait``, until it has asked for something."""
        if wait:
            while self._settings.busy_wait and not self._line.pending():
                pass
            self._carry_out(self._hear())
        while self._line.pending():
            self._carry_out(self._hear())
        if self._wanted > self._epoch:
            raise _NextEpoch

    def _say(self, message: object) -> None:
        try:
            self._line.send(message)
        except OSError:
            raise _ConsumerGone from None

    def _hear(self) -> object:
        try:
            return self._line.receive()
        except (EOFError, OSError):
            raise _ConsumerGone from None

    def _carry_out(self, command: object) -> None:
        match command:
            case Release(slot):
                self._free.append(slot)
            case Begin():
                self._begun = True
            case GoTo(epoch):
                self._begun = True
                self._wanted = max(self._wanted, epoch)
            case Stop():
                raise _StopRequested
            case _:
                raise RuntimeError(f"The background process does not understand {command!r}.")


def iterate(dataset: Any) -> Generator[Any, None, None]:
    """One epoch of any iterable, or of an indexable data set up to its length or its first ``IndexError``.

    >>> class Squares:
    ...     def __len__(self): return 4
    ...     def __getitem__(self, index): return index * index
    >>> list(iterate(Squares()))
    [0, 1, 4, 9]
    """
    if hasattr(dataset, "__iter__") or not hasattr(dataset, "__len__"):
        yield from iter(dataset)
        return
    length = len(dataset)
    for index in range(length):
        try:
            item = dataset[index]
        except (IndexError, StopIteration) as error:
            logger.warning(
                "The data set says that it has %d items, but item %d raised %r: the epoch ends there.",
                length, index, error,
            )  # fmt: skip
            return
        yield item


def _common_rows(tensors: Sequence[torch.Tensor]) -> int:
    counts = {len(tensor) for tensor in tensors}
    if len(counts) != 1:
        raise ValueError(
            f"The tensors of a batch have {sorted(counts)} rows. To be re-batched they must all have the same number."
        )
    return counts.pop()
