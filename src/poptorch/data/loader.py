"""``poptorch.DataLoader``: PyTorch's loader with the batch size that one call of a model consumes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from poptorch._logging import logger
from poptorch.data.accessor import AsynchronousDataAccessor
from poptorch.data.combining import grouped
from poptorch.data.metered import MeteredIterator, watched_iterator
from poptorch.data.partition import PartitionedDataset, Share
from poptorch.data.plan import LoadingPlan, length_or_none
from poptorch.data.resuming import (
    SkippingSampler,
    State,
    checked,
    discard,
    epoch_start,
    is_stream,
    random_numbers_of,
    restore,
    state_of,
    whole_batches,
)
from poptorch.data.tracing import traced
from poptorch.data.waiting import WaitMeter, WaitReport
from poptorch.enums import DataLoaderMode
from poptorch.errors import createPoptorchError
from poptorch.options import Options


class DataLoader(TorchDataLoader[Any]):
    """Load batches of the size that one call of a model with the same ``options`` consumes.

    That size, the combined batch size, is ``batch_size`` times device iterations, replicas (divided by the
    input group size) and gradient accumulation. With several processes a map-style data set is split
    between them.

    Args:
        options: The options of the model. They can no longer be changed afterwards.
        dataset: A map-style data set (anything with a length and items by index) or an ``IterableDataset``.
        batch_size: The size of a micro-batch; ``None`` passes single items through.
        shuffle: Draw a new order in each epoch.
        num_workers: Number of PyTorch's worker processes.
        drop_last: Leave out an incomplete last batch, which a compiled model would refuse.
        persistent_workers: Keep the workers between epochs; by default if there are any.
        auto_distributed_partitioning: Split the data set between the processes of a distributed run.
        mode: Load in this process (``Sync``), ahead of time in another one (``Async``), or there with batches
            put together across workers (``AsyncRebatched``).
        async_options: Keyword arguments for the :class:`AsynchronousDataAccessor` of the asynchronous modes.
        rebatched_worker_size: Rows per worker batch in ``AsyncRebatched``; by default a full batch.
        batch_sampler: Yields the indices of each micro-batch, in place of ``batch_size`` and ``shuffle``.
        **kwargs: Anything else that PyTorch's loader takes. ``timeout`` also holds without workers in the
            asynchronous modes.

    >>> import torch
    >>> opts = Options().deviceIterations(2).replicationFactor(2)
    >>> loader = DataLoader(opts, [torch.tensor(i) for i in range(20)], batch_size=2)
    >>> loader.combinedBatchSize, len(loader)
    (8, 2)
    >>> next(iter(loader))
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """

    if not TYPE_CHECKING:  # type checkers see the missing argument

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is DataLoader and len(args) == 1 and "dataset" not in kwargs and not isinstance(args[0], Options):
                raise TypeError(
                    "poptorch.DataLoader needs the options first, because they say how many rows a call takes: "
                    "poptorch.DataLoader(poptorch.Options(), dataset, batch_size=...)."
                )
            return super().__new__(cls)

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: Mapping[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Iterable[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        assert isinstance(options, Options), (
            f"Invalid type: 'options' is of type {type(options).__name__} (expected poptorch.Options). Options "
            "come first: poptorch.DataLoader(poptorch.Options(), dataset, batch_size=...)"
        )
        self._accessor: AsynchronousDataAccessor | None = None
        self._skipping: SkippingSampler | None = None
        self._start: State | None = None
        self._resume: State | None = None
        self._at_end = False
        self._announce: Callable[[State], None] | None = None
        options._freeze()
        self._options = options
        parts = options.Distributed.numDataParts
        partition = auto_distributed_partitioning and parts > 1
        if batch_sampler is not None:
            _check_batch_sampler(batch_size, shuffle, partition)
            batch_size = getattr(batch_sampler, "batch_size", None) or 1
        plan = LoadingPlan.make(
            options,
            batch_size,
            drop_last,
            mode,
            async_options,
            rebatched_worker_size,
            batch_sampler is not None,
        )
        self._plan = plan
        self._meter: WaitMeter | None = None
        iterable = isinstance(dataset, IterableDataset)
        if iterable:
            _check_iterable(dataset, partition, num_workers, kwargs.get("worker_init_fn"))
        else:
            dataset = traced(dataset)
        if partition and not iterable:
            dataset = _partition(options, dataset, plan, shuffle=bool(shuffle))
            shuffle = False
        elif batch_sampler is None and not iterable and not _fills_up(kwargs.get("collate_fn")):
            _warn_about_left_overs(kwargs.get("sampler") or dataset, plan, parts if partition else 1)
        deadline_s = 0.0
        if plan.asynchronous and num_workers == 0:
            deadline_s = kwargs.pop("timeout", 0.0)  # PyTorch watches its workers; without any, we watch
        if batch_sampler is not None:
            _warn_about_left_over_groups(batch_sampler, plan)
            kwargs["batch_sampler"] = batch_sampler
        else:
            kwargs |= {
                "batch_size": plan.worker_rows,
                "shuffle": shuffle,
                "drop_last": plan.workers_drop_last,
            }
        super().__init__(
            dataset,
            num_workers=num_workers,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            **kwargs,
        )
        self._in_background = (dict(async_options or {}), deadline_s)
        if plan.asynchronous:
            self._accessor = self._load_in_background()
        else:
            self._meter = WaitMeter("poptorch.DataLoader", "use num_workers > 0 or mode=DataLoaderMode.Async")
        self._warn_if_nothing_comes()

    def _load_in_background(self, passed: int = 0) -> AsynchronousDataAccessor:
        plan, (async_options, deadline_s) = self._plan, self._in_background
        return AsynchronousDataAccessor(
            self,
            rebatched_size=plan.rebatched_rows,
            _keep_incomplete=not plan.drop_last,
            _rows_may_vary=plan.grouped,
            _length=_length_of(weakref.ref(self)),  # weak: dropping the loader must end the process at once
            _passed=passed,
            **{"timeout": deadline_s, **async_options},
        )

    # --- members -------------------------------------------------------------------------------------------

    @property
    def combinedBatchSize(self) -> int | None:
        """Rows in each batch: what one call of the model consumes. ``None`` when nothing is batched."""
        return self._plan.combined

    @property
    def options(self) -> Options:
        """The options given to the loader."""
        return self._options

    def waitReport(self) -> WaitReport:
        """How long the program waited for batches, over all epochs so far: is loading the bottleneck?

        The same is logged after each epoch at level DEBUG.

        >>> loader = DataLoader(Options(), list(range(10)), batch_size=5)
        >>> _ = list(loader)
        >>> loader.waitReport().batches
        2
        """
        if self._accessor is not None:
            return self._accessor.waitReport()
        return self._meter.total() if self._meter is not None else WaitReport(0, 0, 0.0, 0.0, 0.0)

    def terminate(self) -> None:
        """End the background process of an asynchronous loader; without effect in ``Sync`` mode."""
        if self._accessor is not None:
            self._accessor.terminate()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._accessor is not None:
            self._accessor.__exit__(kind, error, trace)

    def _warn_if_nothing_comes(self) -> None:
        """A loop over a loader without a batch ends at once, and looks like success."""
        rows, plan = length_or_none(self.dataset), self._plan
        if rows and plan.combined is not None and length_or_none(self) == 0:
            logger.warning(
                "The loop over this data loader will never run: the dataset has %d rows for this process, and one "
                "call takes %d (batch_size x deviceIterations x replicationFactor x gradientAccumulation). Make one of "
                "these smaller, or pad the data.",
                rows, plan.combined,
            )  # fmt: skip

    def __len__(self) -> int:
        plan = self._plan
        if plan.grouped:
            assert self.batch_sampler is not None
            return plan.count(len(self.batch_sampler), plan.factor)  # type: ignore[arg-type]
        if plan.rebatched_rows is not None:
            rows = len(self.dataset) if isinstance(self.dataset, IterableDataset) else len(self.sampler)  # type: ignore[arg-type]
            return plan.count(rows, plan.rebatched_rows)
        return super().__len__()

    # --- iterating -----------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        if self._accessor is not None:
            if self._at_end:  # of the epoch whose last batch was taken before
                self._at_end = False
                return iter(())
            return iter(self._accessor)
        resume, self._resume = self._resume, None
        if resume is not None:
            restore(self, resume["start"])
            if resume["finished"]:
                self._pass_over_an_epoch(resume["start"])
                resume = None
        self._start = epoch_start(self) if resume is None else resume["start"]
        if self._announce is not None:
            self._announce(self._start)
        passed = 0 if resume is None else resume["batches"]
        batches = self._begin_epoch(passed, resume)
        if self._meter is not None:
            self._meter.begin_epoch(passed)
        if not self._plan.grouped:
            return batches
        groups = grouped(batches, self._plan.factor, drop_last=self._plan.drop_last)
        return groups if self._meter is None else MeteredIterator(groups, self._meter)

    def _begin_epoch(self, passed: int | None = 0, resume: State | None = None) -> Any:
        """An iterator over an epoch without its first batches; over none of them, if ``passed`` is ``None``."""
        if isinstance(self.dataset, PartitionedDataset):
            self.dataset.next_epoch()
        stream, rows = is_stream(self), self._plan.rebatched_rows
        if resume is not None and not stream:
            actions = random_numbers_of(self, resume)
            if passed is not None and rows is not None:
                self._index_sampler.skip(0, passed * rows, *actions)
            else:
                each = self._plan.factor if self._plan.grouped else 1
                self._index_sampler.skip(None if passed is None else passed * each, 0, *actions)
        batches = super().__iter__()
        if passed and stream:
            discard(batches, passed if rows is None else whole_batches(passed * rows, self._plan.worker_rows))
            if resume is not None and resume["now"] is not None:
                torch.set_rng_state(resume["now"])
        return batches

    def _pass_over_an_epoch(self, start: State) -> None:
        """Draw the random numbers that an epoch draws for its order."""
        if not is_stream(self):
            discard(self._begin_epoch(None, {"start": start, "now": None}), 1)

    @property
    def _index_sampler(self) -> Any:
        """What gives each batch its indices: torch's own, which can be told to begin later."""
        base = super()._index_sampler
        if self._skipping is None or self._skipping.base is not base:
            self._skipping = SkippingSampler(base)
        return self._skipping

    # --- going on in the middle of an epoch ----------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where this loader is: how the current epoch began, and how many batches the program has taken from it.

        Batches that were loaded ahead do not count. In a job of several processes, each has a state of its own.
        """
        if self._resume is not None:
            return dict(self._resume)
        if self._accessor is not None:
            start, batches, finished = self._accessor.position()
            if start is None:
                raise createPoptorchError("The background process did not say yet how this epoch begins: take a batch.")
            return state_of(self, start, batches, finished, None)
        assert self._meter is not None
        batches = self._meter.position
        if self._start is None or batches == 0:
            return state_of(self, epoch_start(self), 0, False, None)
        return state_of(self, self._start, batches, False, torch.get_rng_state())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a loader with the same arguments was when its state was taken.

        Batches come in the same order as without an interruption, in this epoch and in those that follow.

        >>> loader = DataLoader(Options(), list(range(6)), batch_size=2)
        >>> batches = iter(loader)
        >>> _ = next(batches)
        >>> again = DataLoader(Options(), list(range(6)), batch_size=2)
        >>> again.load_state_dict(loader.state_dict())
        >>> [batch.tolist() for batch in again]
        [[2, 3], [4, 5]]
        """
        self._resume = checked(self, state_dict)
        if self._accessor is not None:
            self._accessor.terminate()
            self._accessor = None
            if not self._resume["finished"] and (length_or_none(self) or math.inf) <= self._resume["batches"]:
                self._resume["finished"] = self._at_end = True
            finished = self._resume["finished"]
            self._accessor = self._load_in_background(0 if finished else self._resume["batches"])
            self._resume = None

    def announceEpochs(self, announce: Callable[[dict[str, Any]], None]) -> None:
        """Call ``announce`` at the beginning of each epoch, with what decides about its order."""
        self._announce = announce

    def _get_iterator(self) -> Any:
        return watched_iterator(self, None if self._plan.grouped else self._meter)

    # --- being loaded by an accessor -----------------------------------------------------------------------

    def checkBackgroundLoading(self, rebatched_size: int | None) -> None:
        """Refuse to be the source of an accessor that could not pass on this loader's batches."""
        if self._accessor is not None:
            raise createPoptorchError(
                "The DataLoader already uses an AsynchronousDataAccessor internally. Iterate over it as it "
                "is, or "
                "create it with mode=poptorch.DataLoaderMode.Sync."
            )
        fits = self._plan.drop_last or self._plan.combined in (None, 1) or self._plan.grouped
        assert fits or rebatched_size is not None, (
            "A DataLoader with drop_last=False only works if 'rebatched_size' is specified too: the ring "
            "buffer holds "
            "batches of one shape. Keep drop_last=True, or use mode=poptorch.DataLoaderMode.AsyncRebatched."
        )

    def __getstate__(self) -> dict[str, Any]:
        # What reaches the background process is a plain synchronous loader that nobody times.
        return self.__dict__ | {"_accessor": None, "_iterator": None, "_meter": None, "_in_background": None}


def _length_of(loader: weakref.ref[DataLoader]) -> Any:
    def length() -> int:
        alive = loader()
        if alive is None:
            raise TypeError("object of type 'AsynchronousDataAccessor' has no len(): its DataLoader is gone")
        return len(alive)

    return length


# --- checks ------------------------------------------------------------------------------------------------


def _check_batch_sampler(batch_size: int | None, shuffle: bool | None, partition: bool) -> None:
    if batch_size != 1 or shuffle:
        raise createPoptorchError(
            "`batch_sampler` option is mutually exclusive with batch_size, shuffle: the sampler decides on "
            "both. "
            f"Got batch_size={batch_size}, shuffle={shuffle}."
        )
    if partition:
        raise createPoptorchError(
            "`batch_sampler` option is mutually exclusive with auto_distributed_partitioning=True when "
            "there are "
            "several processes. Pass False and let the sampler of each process yield its own indices."
        )


def _check_iterable(dataset: Any, partition: bool, num_workers: int, worker_init_fn: Any) -> None:
    assert not partition, (
        "auto_distributed_partitioning not supported for IterableDataset: pass "
        "auto_distributed_partitioning=False "
        "and let the data set of each process yield its own items."
    )
    if num_workers > 1 and worker_init_fn is None:
        logger.warning(
            "IterableDataset used with num_workers=%d but no worker_init_fn specified: every element of %s "
            "will be "
            "returned %d times, once per worker, unless its __iter__ looks at "
            "torch.utils.data.get_worker_info().",
            num_workers, type(dataset).__name__, num_workers,
        )  # fmt: skip


def _partition(options: Options, dataset: Any, plan: LoadingPlan, *, shuffle: bool) -> PartitionedDataset:
    seed = options.random_seed if options.exists("random_seed") else None
    assert not shuffle or seed is not None, (
        "When shuffling a data set that is split between processes, you must set "
        "poptorch.Options.randomSeed(), "
        "to the same value in all of them."
    )
    assert plan.combined is not None, "batch_size=None not allowed when using auto_distributed_partitioning"
    distributed = options.Distributed
    share = Share.of(len(dataset), distributed.dataPart, distributed.numDataParts, plan.combined, plan.drop_last)
    if not plan.drop_last:
        _warn_about_left_overs(dataset, plan, distributed.numDataParts)
    return PartitionedDataset(dataset, share, shuffle=shuffle, seed=seed)


def _fills_up(collate: Any) -> bool:
    """Whether a collate function makes full batches of fewer items, as those for graphs do."""
    return bool(getattr(collate, "fills_up", False))


def _warn_about_left_overs(dataset: Any, plan: LoadingPlan, processes: int) -> None:
    if plan.drop_last or plan.combined is None or plan.rebatched_rows is not None:
        return
    items, step = length_or_none(dataset), plan.combined * processes
    if items is not None and items % step:
        logger.warning(
            "The number of elements in the dataset (%d) is not divisible by the number of elements "
            "processed per "
            "step (%d) and drop_last=False: the last batch will be smaller and a compiled model refuses it. "
            "Pad it, or use drop_last=True.",
            items, step,
        )  # fmt: skip


def _warn_about_left_over_groups(batch_sampler: Any, plan: LoadingPlan) -> None:
    if plan.drop_last or plan.factor == 1:
        return
    count = length_or_none(batch_sampler)
    if count is None:
        logger.warning(
            "The `batch_sampler` __len__ method is not implemented: with drop_last=False the last batch "
            "will be "
            "smaller than the others unless the sampler yields a multiple of %d micro-batches.",
            plan.factor,
        )
    elif count % plan.factor:
        logger.warning(
            "The number of micro-batches (%d) generated by the batch sampler is not divisible by the number "
            "processed per step (%d) and drop_last=False: the last batch will be smaller.",
            count, plan.factor,
        )  # fmt: skip
