"""Is the input pipeline the bottleneck? Measures how long the consumer waits and how long it works."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from poptorch._logging import logger

_KEEPS_UP = 0.05
_BOTTLENECK = 0.25


@dataclass(frozen=True)
class WaitReport:
    """The time that a loader's consumer spent waiting for batches and working on them.

    >>> report = WaitReport(epochs=1, batches=100, waited_s=0.5, worked_s=1.5, first_wait_s=0.1)
    >>> report.share
    0.25
    >>> print(report)
    100 batches; the consumer waited 0.50 s of 2.00 s (25.0 %), ...: loading is the bottleneck
    """

    epochs: int
    """Epochs that were iterated to their end."""
    batches: int
    waited_s: float
    """Seconds inside ``next()``."""
    worked_s: float
    """Seconds between one ``next()`` and the following one, within an epoch."""
    first_wait_s: float
    """The part of ``waited_s`` spent on the first batch of each epoch, where worker start-up shows."""

    @property
    def share(self) -> float:
        """The share of time that the consumer waited: 0 never, 1 always."""
        total = self.waited_s + self.worked_s
        return self.waited_s / total if total > 0 else 0.0

    @property
    def verdict(self) -> str:
        """The answer in words."""
        if self.batches == 0:
            return "nothing has been loaded yet"
        if self.share < _KEEPS_UP:
            return "loading keeps up"
        if self.share < _BOTTLENECK:
            return "loading slows the program down a little"
        return "loading is the bottleneck"

    def __str__(self) -> str:
        return (
            f"{self.batches} batches; the consumer waited {self.waited_s:.2f} s of "
            f"{self.waited_s + self.worked_s:.2f} s "
            f"({100 * self.share:.1f} %), {self.first_wait_s:.2f} s of it for first batches: {self.verdict}"
        )


class WaitMeter:
    """A stopwatch for one consumer: ``start`` and ``stop`` around each ``next()``.

    >>> meter = WaitMeter("loader", advice="use more workers")
    >>> meter.begin_epoch(); meter.start(); meter.stop()
    >>> meter.total().batches
    1
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._advice = advice
        self._past = WaitReport(0, 0, 0.0, 0.0, 0.0)
        self._passed = 0
        self._reset()

    def _reset(self) -> None:
        self._batches = 0
        self._waited = self._worked = self._first = 0.0
        self._left_at: float | None = None
        self._entered_at = 0.0

    def begin_epoch(self, passed: int = 0) -> None:
        """Forget the open span, keep the sums: what happens between epochs counts as neither.

        ``passed`` batches were taken from this epoch before, by somebody else.
        """
        self._past = self.total()
        self._reset()
        self._passed = passed

    @property
    def position(self) -> int:
        """Batches that were taken from the current epoch; none between epochs."""
        return self._passed + self._batches

    def start(self) -> None:
        """The consumer asks for a batch."""
        now = time.perf_counter()
        if self._left_at is not None:
            self._worked += now - self._left_at
        self._entered_at = now

    def stop(self) -> None:
        """The consumer has its batch."""
        now = time.perf_counter()
        waited = now - self._entered_at
        if self._batches == 0:
            self._first += waited
        self._waited += waited
        self._batches += 1
        self._left_at = now

    def end_epoch(self) -> None:
        """There are no more batches: say how the epoch went."""
        now = time.perf_counter()
        self._waited += now - self._entered_at
        self._left_at = None
        epoch = self._current(epochs=1)
        advice = f" ({self._advice})" if epoch.share >= _BOTTLENECK else ""
        if os.getpid() == self._pid:  # a forked copy of the loader times nobody
            logger.debug("%s: epoch %d: %s%s", self._name, self._past.epochs + 1, epoch, advice)
        self._past = _sum(self._past, epoch)
        self._reset()
        self._passed = 0

    def total(self) -> WaitReport:
        """Everything measured so far."""
        return _sum(self._past, self._current(epochs=0))

    def _current(self, epochs: int) -> WaitReport:
        return WaitReport(epochs, self._batches, self._waited, self._worked, self._first)


def _sum(left: WaitReport, right: WaitReport) -> WaitReport:
    return WaitReport(
        left.epochs + right.epochs,
        left.batches + right.batches,
        left.waited_s + right.waited_s,
        left.worked_s + right.worked_s,
        left.first_wait_s + right.first_wait_s,
    )
