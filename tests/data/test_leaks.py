"""Starting and stopping loaders again and again leaves nothing behind."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from observing import leftovers, wait_for_nothing_more
from sample_sets import Labelled

from poptorch import DataLoader, DataLoaderMode, Options, SharingStrategy


def cycle(number: int, **kwargs: Any) -> None:
    """Start, use for a while, and stop in one of the ways there are."""
    loader = DataLoader(Options().deviceIterations(2), Labelled(20, (3,)), **kwargs)
    for count, _ in enumerate(loader):
        if count == number % 12:
            break
    if number % 3 == 0:
        loader.terminate()
    elif number % 3 == 1:
        loader.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("cycles", "workers", "strategy"),
    [
        (20, 0, SharingStrategy.ForkServer),
        (20, 0, SharingStrategy.Fork),
        (6, 2, SharingStrategy.ForkServer),
        (2, 0, SharingStrategy.SharedMemory),
        (2, 0, SharingStrategy.FileSystem),
        (6, 2, SharingStrategy.Fork),
        pytest.param(200, 0, SharingStrategy.ForkServer, marks=pytest.mark.exhaustive),  # one leak in 20 cycles shows
        pytest.param(200, 2, SharingStrategy.Fork, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("mode", [DataLoaderMode.Async, DataLoaderMode.AsyncRebatched])
def test_cycles_leave_nothing_behind(
    cycles: int, workers: int, strategy: SharingStrategy, mode: DataLoaderMode
) -> None:
    settings: dict[str, Any] = {
        "mode": mode,
        "num_workers": workers,
        "async_options": {"sharing_strategy": strategy},
    }
    cycle(0, **settings)  # starts what stays for good: the fork server and Python's resource tracker
    gc.collect()
    before = leftovers()
    for number in range(cycles):
        cycle(number, **settings)
    gc.collect()
    wait_for_nothing_more(before)
