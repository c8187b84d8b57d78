"""PyTorch's own iterators, with a stopwatch around ``next()``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from poptorch import profiling
from poptorch.data.waiting import WaitMeter
from poptorch.profiling import channel

_CHANNEL = profiling.Channel("poptorch.DataLoader")


class _Metered:
    _meter: WaitMeter

    def __next__(self) -> Any:
        self._meter.start()
        try:
            with _CHANNEL.tracepoint("__next__") if channel.enabled else nullcontext():
                batch = super().__next__()  # type: ignore[misc]
        except StopIteration:
            self._meter.end_epoch()
            raise
        self._meter.stop()
        return batch


class _InProcess(_Metered, _SingleProcessDataLoaderIter):
    def __init__(self, loader: DataLoader[Any], meter: WaitMeter) -> None:
        self._meter = meter
        super().__init__(loader)


class _WithWorkers(_Metered, _MultiProcessingDataLoaderIter):
    def __init__(self, loader: DataLoader[Any], meter: WaitMeter) -> None:
        self._meter = meter
        super().__init__(loader)


def metered_iterator(loader: DataLoader[Any], meter: WaitMeter) -> _InProcess | _WithWorkers:
    """A new iterator over ``loader`` that ``meter`` times."""
    if loader.num_workers == 0:
        return _InProcess(loader, meter)
    loader.check_worker_number_rationality()
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
