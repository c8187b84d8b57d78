"""``AsynchronousDataAccessor``: any iterable, loaded by a process of its own while the model runs."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from poptorch._logging import logger
from poptorch.data.messages import Began, Begin, Ended, Failed, Filled, GoTo, Ready, Release, Settings
from poptorch.data.process import (
    AT_ONCE_S,
    PATIENT_S,
    BackgroundProcess,
    DataTimeout,
    ProcessDied,
    random_state,
)
from poptorch.data.ring import Ring
from poptorch.data.waiting import WaitMeter, WaitReport
from poptorch.enums import SharingStrategy
from poptorch.errors import LoaderStartError, createPoptorchError, misuse

_DEFAULT_PAUSE_MS = 0.1


class AsynchronousDataAccessor:
    """Load the items of ``dataset`` in a separate process and hand them over through shared memory.

    The process starts at once and loads the first item; from the first iteration on it keeps ``buffer_size``
    items ready. Iterating yields one epoch; iterate again for the next one.

    The tensors are views of the ring buffer: they hold their values until the next ``next()``. Clone what
    must live longer.

    Args:
        dataset: An iterable (a loader, an ``IterableDataset``, a list) or an indexable data set, whose items
            are tensors, flat tuples, lists or dicts of tensors, or of a type registered with
            ``registerCustomArgParser``. All items must have the shapes and types of the first.
        buffer_size: Number of items in the ring.
        miss_sleep_time_in_ms: Pause of the process between looks at a full ring. The pause ends as soon as an
            item is released, so all positive values act alike; zero or less makes the process spin instead.
        load_indefinitely: Start on the next epoch as soon as one is loaded, rather than when it is asked for.
        early_preload: Fill the whole ring straight away, rather than when iteration begins.
        sharing_strategy: How ``dataset`` reaches the process. All but ``Fork`` need it to be picklable.
        rebatched_size: Cut and join incoming batches into batches of this many rows.
        timeout: Seconds to wait for one item before the process is given up; 0 waits for ever.

    >>> import torch
    >>> items = [torch.tensor([i]) for i in range(3)]
    >>> accessor = AsynchronousDataAccessor(items, sharing_strategy=SharingStrategy.Fork)
    >>> [item.item() for item in accessor]
    [0, 1, 2]
    >>> accessor.terminate()
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = _DEFAULT_PAUSE_MS,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
        *,
        timeout: float = 0.0,
        _keep_incomplete: bool = False,
        _rows_may_vary: bool = False,
        _length: Callable[[], int] | None = None,
        _passed: int = 0,
    ) -> None:
        self._process: BackgroundProcess | None = None  # first, for a constructor that fails
        _check_arguments(dataset, buffer_size, rebatched_size, timeout)
        if miss_sleep_time_in_ms > 0 and miss_sleep_time_in_ms != _DEFAULT_PAUSE_MS:
            logger.info(
                "miss_sleep_time_in_ms=%s: the background process sleeps until a slot of the ring is free "
                "and is "
                "woken at that moment, so the length of the pause makes no difference.",
                miss_sleep_time_in_ms,
            )
        self._dataset: Any = dataset if _length is None else None
        self._rebatched_size = rebatched_size
        self._length = _length
        self._passed = _passed
        self._timeout_s = timeout or None
        self._pending: deque[Filled | Ended | Failed] = deque()
        self._held: int | None = None
        self._epoch = 0
        self._taken = 0
        self._exhausted = False
        self._begun = early_preload
        self._starts: dict[int, dict[str, Any]] = {}
        self._meter = WaitMeter(
            "poptorch.AsynchronousDataAccessor",
            "use more num_workers, larger worker batches or a cheaper transform; see docs/data.md",
        )
        rng_state, seed = random_state()
        settings = Settings(
            buffer_size=buffer_size,
            load_indefinitely=load_indefinitely,
            early_preload=early_preload,
            busy_wait=miss_sleep_time_in_ms <= 0,
            rebatched_size=rebatched_size,
            keep_incomplete=_keep_incomplete,
            rows_may_vary=_rows_may_vary,
            rng_state=rng_state,
            seed=seed,
            parent_pid=os.getpid(),
            start_method=multiprocessing.get_start_method(allow_none=True),
        )
        logger.debug("AsynchronousDataAccessor parent process: %d", os.getpid())
        self._process = BackgroundProcess(dataset, settings, SharingStrategy(sharing_strategy))
        logger.debug("AsynchronousDataAccessor worker process: %s", self._process.pid)
        try:
            self._ring = self._meet(self._process)
        except BaseException:
            self._process.kill()
            self._end(AT_ONCE_S)
            raise

    # --- iterating -----------------------------------------------------------------------------------------

    def __iter__(self) -> AsynchronousDataAccessor:
        process = self._running()
        if self._taken or self._exhausted:
            self._epoch += 1
            self._taken, self._exhausted = 0, False
            process.send(GoTo(self._epoch))  # a process that is there already goes on
        self._begin(process)
        self._meter.begin_epoch(self._passed)
        self._passed = 0
        self._starts = {epoch: start for epoch, start in self._starts.items() if epoch >= self._epoch}
        return self

    def __next__(self) -> Any:
        process = self._running()
        if self._exhausted:
            raise StopIteration
        self._begin(process)
        self._meter.start()
        if self._ring.layout.slots == 1:
            self._release(process)
        message = self._next_message(process)
        if isinstance(message, Ended):
            self._exhausted = True
            self._meter.end_epoch()
            raise StopIteration
        self._release(process)  # only now: the last item of an epoch stays valid until the next epoch begins
        self._held = message.slot
        self._taken += 1
        item = self._ring.read(message.slot, message.rows)
        self._meter.stop()
        return item

    def __len__(self) -> int:
        if self._length is not None:
            return self._length()
        if self._rebatched_size is None:
            return len(self._dataset)
        rows = getattr(self._dataset, "batch_size", None)
        if rows is None:
            raise TypeError(
                f"object of type '{type(self).__name__}' has no len(): with rebatched_size it needs the "
                "batch_size "
                f"of the data set, and {type(self._dataset).__name__} has none"
            )
        return len(self._dataset) * int(rows) // self._rebatched_size

    @property
    def buffered(self) -> int:
        """How many items wait in the ring to be taken."""
        process = self._running()
        while process.pending():
            self._pending.append(self._receive(process))
        return sum(isinstance(message, Filled) and message.epoch >= self._epoch for message in self._pending)

    def position(self) -> tuple[dict[str, Any] | None, int, bool]:
        """How the current epoch began, how many batches were taken from it, and whether there are no more."""
        return self._starts.get(self._epoch), self._passed + self._meter.position, self._exhausted

    def waitReport(self) -> WaitReport:
        """The share of time that the consumer waited for data, over all epochs so far."""
        return self._meter.total()

    # --- ending --------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """End the background process: ask, interrupt after 10 s, kill 10 s later. May be repeated."""
        self._end(PATIENT_S)

    def __enter__(self) -> AsynchronousDataAccessor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(PATIENT_S if kind is None else AT_ONCE_S)

    def _end(self, patience_s: float) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop(patience_s)

    # --- talking with the process --------------------------------------------------------------------------

    def _running(self) -> BackgroundProcess:
        if self._process is None:
            raise AssertionError(
                "This AsynchronousDataAccessor has been terminated, or its background process has failed. "
                "Create a new one to load more data."
            )
        return self._process

    def _begin(self, process: BackgroundProcess) -> None:
        if not self._begun:
            self._begun = True
            process.send(Begin())

    def _release(self, process: BackgroundProcess) -> None:
        if self._held is not None:
            process.send(Release(self._held))
            self._held = None

    def _meet(self, process: BackgroundProcess) -> Ring:
        """Wait for the first item and map the ring."""
        try:
            message = self._receive(process)
            if isinstance(message, Ready):
                descriptor = process.receive_descriptor()
                try:
                    ring = Ring(message.layout, descriptor)
                finally:
                    os.close(descriptor)
                message = self._receive(process)
        except ProcessDied as death:
            raise misuse(LoaderStartError, f"{_FAILED_TO_START}: {death}") from None
        except DataTimeout:
            raise misuse(
                LoaderStartError, f"{_FAILED_TO_START}: the data set gave no item within timeout={self._timeout_s} s"
            ) from None
        if isinstance(message, Failed):
            _show(message)
            raise misuse(LoaderStartError, f"{_FAILED_TO_START}: {_in_full(message)}")
        self._pending.append(message)
        return ring

    def _next_message(self, process: BackgroundProcess) -> Filled | Ended:
        """The next item or end of the current epoch; what is left of earlier ones is dropped."""
        try:
            while True:
                message = self._pending.popleft() if self._pending else self._receive(process)
                if isinstance(message, Failed):
                    _show(message)
                    raise AssertionError(f"{_FAILED_LATER}: {_in_full(message)}")
                if message.epoch == self._epoch:
                    return message
                if isinstance(message, Filled):
                    process.send(Release(message.slot))
        except ProcessDied as death:
            self._end(AT_ONCE_S)
            raise AssertionError(f"{_FAILED_LATER}: {death}. Create a new loader to go on.") from None
        except DataTimeout:
            self._end(AT_ONCE_S)
            raise AssertionError(
                f"{_FAILED_LATER}: no item for {self._timeout_s} s (timeout={self._timeout_s}). The data "
                "set hangs or "
                "needs longer than that for one item."
            ) from None
        except BaseException:  # the process has failed, or the user has pressed Ctrl-C: nobody waits for data now
            self._end(AT_ONCE_S)
            raise

    def _receive(self, process: BackgroundProcess) -> Any:
        while isinstance(message := process.receive(self._timeout_s), Began):
            self._starts[message.epoch] = message.start
        return message


_FAILED_TO_START = "AsynchronousDataAccessor worker thread failed to start"
_FAILED_LATER = "An error occurred in the data fetcher"
_TRACEBACK_LINES = 60


def _in_full(failure: Failed) -> str:
    """The cause and its traceback, short enough to stay in the message: longer ones are moved to a file."""
    lines = failure.traceback.rstrip().splitlines()
    if len(lines) > _TRACEBACK_LINES:
        lines = ["[...]", *lines[-_TRACEBACK_LINES:]]
    summary = failure.summary.splitlines()[0] if failure.summary else "unknown cause"
    return "\n".join([summary, "--- traceback in the background process ---", *lines])


def _show(failure: Failed) -> None:
    """Print the traceback where the user looks for it, even if somebody swallows the exception."""
    print(failure.traceback, file=sys.stderr, flush=True)


def _check_arguments(dataset: Any, buffer_size: int, rebatched_size: int | None, timeout: float) -> None:
    check_source = getattr(dataset, "checkBackgroundLoading", None)  # poptorch.DataLoader has its own conditions
    if check_source is not None:
        check_source(rebatched_size)
    if isinstance(dataset, AsynchronousDataAccessor):
        raise createPoptorchError("The data set is an AsynchronousDataAccessor already. Iterate over it as it is.")
    assert rebatched_size is None or rebatched_size > 1, (
        f"rebatched_size must be None or greater than 1, got {rebatched_size}"
    )
    if isinstance(buffer_size, bool) or not isinstance(buffer_size, int) or buffer_size < 1:
        raise ValueError(f"buffer_size must be a positive number of items, got {buffer_size!r}")
    if timeout < 0:
        raise ValueError(f"timeout must be a number of seconds, or 0 for no deadline, got {timeout!r}")
    if isinstance(dataset, TorchDataLoader) and dataset.num_workers == 0 and dataset.timeout:
        raise ValueError("A PyTorch loader without workers takes no timeout; pass timeout to the accessor instead.")
