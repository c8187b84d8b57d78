"""How a loader loads: the sizes of its batches and the mode, worked out once from its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poptorch._logging import logger
from poptorch.enums import DataLoaderMode
from poptorch.options import Options


def batch_factor(options: Options) -> int:
    """How many micro-batches one call of a model consumes.

    >>> batch_factor(Options().deviceIterations(4).replicationFactor(2))
    8
    """
    factors = {
        "deviceIterations": options.device_iterations,
        "replicationFactor": options.replication_factor // options.input_group_size,
        "Training.gradientAccumulation": options.Training.gradient_accumulation,
    }
    for name, value in factors.items():
        if value < 1:
            raise ValueError(f"poptorch.Options().{name} must be positive to load data with it, got {value}.")
    return math.prod(factors.values())


def length_or_none(sized: Any) -> int | None:
    """``len(sized)``, or ``None`` where that is not implemented.

    >>> length_or_none([1, 2]), length_or_none(iter([]))
    (2, None)
    """
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


@dataclass(frozen=True)
class LoadingPlan:
    """The numbers behind one loader."""

    factor: int
    """Micro-batches per batch."""
    combined: int | None
    """Rows per batch."""
    drop_last: bool
    """What the user asked for."""
    asynchronous: bool
    rebatched_rows: int | None
    """Rows that the background process packs together; ``None`` when it passes batches on as they are."""
    worker_rows: int | None
    """Rows per batch of PyTorch's own loader."""
    workers_drop_last: bool
    grouped: bool
    """Whether a batch sampler makes micro-batches that are joined afterwards."""

    @classmethod
    def make(
        cls,
        options: Options,
        batch_size: int | None,
        drop_last: bool,
        mode: DataLoaderMode,
        async_options: Mapping[str, Any] | None,
        rebatched_worker_size: int | None,
        grouped: bool,
    ) -> LoadingPlan:
        """Work out the plan, or say which arguments do not go together."""
        mode = DataLoaderMode(mode)
        asynchronous = mode != DataLoaderMode.Sync
        factor = batch_factor(options)
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be a positive number of rows or None, got {batch_size}.")
        combined = None if batch_size is None else batch_size * factor
        rebatched = None
        if combined is not None and not grouped:
            if mode == DataLoaderMode.AsyncRebatched:
                rebatched = combined
            elif mode == DataLoaderMode.Async and not drop_last and combined != 1:
                # The original refused this until it learned to pack an incomplete last batch.
                assert not options._strict_compatibility, (
                    "DataLoaderMode.Async with drop_last=False only works if 'rebatched_size' is specified "
                    "too: "
                    "use DataLoaderMode.AsyncRebatched."
                )
                rebatched = combined
        assert rebatched is None or rebatched > 1, (
            f"rebatched_size must be None or greater than 1, but the combined batch size is {rebatched}: "
            "use DataLoaderMode.Async."
        )
        _check_asynchronous_arguments(mode, async_options, rebatched_worker_size, rebatched)
        return cls(
            factor=factor,
            combined=combined,
            drop_last=drop_last and combined is not None,
            asynchronous=asynchronous,
            rebatched_rows=rebatched,
            worker_rows=combined if rebatched is None else rebatched_worker_size or combined,
            workers_drop_last=drop_last and combined is not None and rebatched is None,
            grouped=grouped,
        )

    def count(self, items: int, size: int) -> int:
        """How many batches of ``size`` come out of ``items``."""
        return items // size if self.drop_last else math.ceil(items / size)


def _check_asynchronous_arguments(
    mode: DataLoaderMode,
    async_options: Mapping[str, Any] | None,
    worker_size: int | None,
    rebatched_rows: int | None,
) -> None:
    if mode == DataLoaderMode.Sync:
        if async_options:
            logger.warning("async_options=%s has no effect in DataLoaderMode.Sync.", dict(async_options))
    else:
        assert "rebatched_size" not in (async_options or {}), (
            "You cannot manually specify the rebatched_size: it is the combined batch size. "
            "Use DataLoaderMode.AsyncRebatched to have batches put together across workers."
        )
    if worker_size is None:
        return
    if mode != DataLoaderMode.AsyncRebatched or rebatched_rows is None:
        logger.warning("rebatched_worker_size=%s has no effect in DataLoaderMode.%s.", worker_size, mode.name)
        return
    assert worker_size <= rebatched_rows, (
        f"rebatched_worker_size ({worker_size}) must be <= to the combined batch size ({rebatched_rows})"
    )
    if worker_size < 1:
        raise ValueError(f"rebatched_worker_size must be a positive number of rows, got {worker_size}.")
