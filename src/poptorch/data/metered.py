"""PyTorch's own iterators, with a stopwatch around ``next()`` and the names of workers that die."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from poptorch import profiling
from poptorch.data.pool import PooledCollate, forget_pools, slots_for
from poptorch.data.shared_segments import remove_segments
from poptorch.data.waiting import WaitMeter
from poptorch.data.workers import WorkerStart, WorkerWatch, describe, kill_stopped
from poptorch.profiling import channel

_CHANNEL = profiling.Channel("poptorch.DataLoader")
_DEATH_NOTICE_S = 0.5
"""How long after its connection broke a worker may still be dying."""


class _Metered:
    _meter: WaitMeter | None

    def __next__(self) -> Any:
        if self._meter is None:
            return super().__next__()  # type: ignore[misc]
        self._meter.start()
        try:
            with _CHANNEL.tracepoint("__next__") if channel.enabled else nullcontext():
                batch = super().__next__()  # type: ignore[misc]
        except StopIteration:
            self._meter.end_epoch()
            raise
        self._meter.stop()
        return batch


class _Lean(_BaseDataLoaderIter):
    """Marks each batch for torch's profiler only while one is running: a mark takes as long as loading a few items."""

    def __next__(self) -> Any:
        counted = self._IterableDataset_len_called is not None  # torch compares the count with this length
        if counted or torch._C._autograd._profiler_enabled():
            return super().__next__()
        if self._sampler_iter is None:
            self._reset()  # type: ignore[call-arg]  # as in torch
        batch = self._next_data()  # type: ignore[var-annotated]
        self._num_yielded += 1
        return batch


class _InProcess(_Metered, _Lean, _SingleProcessDataLoaderIter):
    def __init__(self, loader: DataLoader[Any], meter: WaitMeter | None) -> None:
        self._meter = meter
        super().__init__(loader)


class _WithWorkers(_Metered, _Lean, _MultiProcessingDataLoaderIter):
    def __init__(self, loader: DataLoader[Any], meter: WaitMeter | None) -> None:
        self._meter = meter
        self._slots = slots_for(loader.prefetch_factor)
        self._watch = WorkerWatch(loader.timeout)
        super().__init__(loader)
        self._watch.pids = [worker.pid for worker in self._workers]

    @property
    def _collate_fn(self) -> Any:
        """What the workers are started with."""
        return self._pooled_collate

    @_collate_fn.setter
    def _collate_fn(self, collate_fn: Any) -> None:
        self._pooled_collate = PooledCollate(collate_fn, self._slots)

    @property
    def _worker_init_fn(self) -> Any:
        """What the workers call first."""
        return self._worker_start

    @_worker_init_fn.setter
    def _worker_init_fn(self, function: Any) -> None:
        self._worker_start = WorkerStart(function)

    def _shutdown_workers(self) -> None:
        kill_stopped(worker.pid for worker in self._workers)  # they would never hear that they are to end
        super()._shutdown_workers()
        forget_pools(worker.pid for worker in self._workers)

    def _next_data(self) -> Any:
        self._watch.waits = True
        try:
            return self._next_or_cause()
        except (EOFError, OSError, RuntimeError) as error:
            if not self._watch.problem:
                raise
            self._give_up()
            raise RuntimeError(self._watch.problem) from error
        finally:
            self._watch.waits = False

    def _next_or_cause(self) -> Any:
        try:
            return super()._next_data()
        except (EOFError, ConnectionError, FileNotFoundError) as error:
            # A worker that dies while its batch is being fetched shows as a broken connection: name the cause.
            if (cause := self._how_a_worker_ended(_DEATH_NOTICE_S)) is None:
                raise
            self._give_up()
            raise RuntimeError(cause) from error
        except RuntimeError as error:
            if str(error).startswith("DataLoader timed out"):
                raise RuntimeError(f"{error}: {describe(worker.pid for worker in self._workers)}.") from error
            if (cause := self._how_a_worker_ended(0.0)) is None:
                raise
            self._give_up()
            if not _is_unexplained_death(error):
                raise
            raise RuntimeError(cause) from error

    def _how_a_worker_ended(self, patience_s: float) -> str | None:
        end = time.monotonic() + patience_s
        while True:
            for worker in self._workers:
                if worker.exitcode:
                    return f"DataLoader worker (pid {worker.pid}) {_describe_end(worker.exitcode)}."
            if time.monotonic() >= end:
                return None
            time.sleep(0.02)

    def _give_up(self) -> None:
        """End the other workers now; PyTorch would keep them, and raise once more at a time of its choosing."""
        if self._worker_pids_set:
            signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
            self._worker_pids_set = False
        self._shutdown_workers()
        remove_segments(worker.pid for worker in self._workers if worker.exitcode and worker.pid)


def _is_unexplained_death(error: RuntimeError) -> bool:
    """Whether PyTorch noticed a dead worker by its silence, before the signal that tells of what it died."""
    return str(error).startswith("DataLoader worker (pid(s)")


def _describe_end(exit_code: int) -> str:
    if exit_code > 0:
        return f"exited unexpectedly with code {exit_code}"
    return f"is killed by signal: {signal.strsignal(-exit_code) or -exit_code}"


def watched_iterator(loader: DataLoader[Any], meter: WaitMeter | None) -> _InProcess | _WithWorkers:
    """A new iterator over ``loader`` that ``meter`` times, if there is one."""
    if loader.num_workers == 0:
        return _InProcess(loader, meter)
    return _WithWorkers(loader, meter)


class _Plain:
    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._batches)


class MeteredIterator(_Metered, _Plain):
    """Any other iterator, timed in the same way.

    >>> meter = WaitMeter("loader", advice="")
    >>> list(MeteredIterator(iter([1, 2]), meter))
    [1, 2]
    >>> meter.total().batches
    2
    """

    def __init__(self, batches: Iterator[Any], meter: WaitMeter) -> None:
        self._meter = meter
        super().__init__(batches)
