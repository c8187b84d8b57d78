"""Splitting a data set between processes: nothing lost, nothing doubled, everything reached."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from observing import joined
from sample_sets import Numbers, Stream

import poptorch
from poptorch import DataLoader, DataLoaderMode, Options
from poptorch.data.partition import PartitionedDataset, Share


def options(process: int, processes: int, factors: tuple[int, int, int] = (1, 1, 1), seed: int | None = 0) -> Options:
    opts = Options().deviceIterations(factors[0]).replicationFactor(factors[2])
    opts.Training.gradientAccumulation(factors[1])
    opts.Distributed.configureProcessId(process, processes)
    if seed is not None:
        opts.randomSeed(seed)
    return opts


def items(loader: Any) -> list[int]:
    return [int(value) for batch in loader for value in batch.flatten().tolist()]


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(1, 150),
    batch_size=st.integers(1, 5),
    factors=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    processes=st.integers(1, 4),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_union_over_processes_and_epochs(
    total: int, batch_size: int, factors: tuple[int, int, int], processes: int, drop_last: bool, shuffle: bool,
    seed: int,
) -> None:  # fmt: skip
    combined = batch_size * math.prod(factors)

    def make(process: int) -> DataLoader:
        return DataLoader(
            options(process, processes, factors, seed), Numbers(total), batch_size=batch_size, shuffle=shuffle,
            drop_last=drop_last,
        )  # fmt: skip

    if drop_last and processes > 1 and total < combined * processes:
        with pytest.raises(poptorch.Error, match="fewer than the"):
            make(0)
        return
    loaders = [make(process) for process in range(processes)]
    used = total // (combined * processes) * combined * processes if drop_last else total
    seen: list[set[int]] = []
    for _ in range(4):
        parts = [items(loader) for loader in loaders]
        together = joined(parts)
        assert len(together) == len(set(together)) == used, "nothing doubled, and as many as the specification says"
        assert set(together) <= set(range(total))
        if drop_last:
            assert {len(part) for part in parts} == {used // processes}
        else:
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        if not shuffle:
            assert together == list(range(used)), "in order, and the tail is never used"
        seen.append(set(together))
    if shuffle and processes > 1:
        for first, second in itertools.pairwise(seen):
            assert first | second == set(range(total)), "what one epoch leaves out, the next one uses"


@pytest.mark.parametrize("mode", list(DataLoaderMode))
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [True, False])
def test_workers_and_the_background_process_follow_the_order(
    mode: DataLoaderMode, workers: int, persistent: bool
) -> None:
    loaders = [
        DataLoader(
            options(process, 2, (2, 1, 1), seed=3), Numbers(103), batch_size=5, shuffle=True, num_workers=workers,
            persistent_workers=persistent and workers > 0, mode=mode,
        )
        for process in range(2)
    ]  # fmt: skip
    reference = [
        DataLoader(options(process, 2, (2, 1, 1), seed=3), Numbers(103), batch_size=5, shuffle=True)
        for process in range(2)
    ]
    try:
        for _ in range(3):
            parts, expected = [items(loader) for loader in loaders], [items(loader) for loader in reference]
            assert parts == expected
            assert len(set(parts[0] + parts[1])) == 100
    finally:
        for loader in loaders:
            loader.terminate()


def test_five_epochs_are_pairwise_different() -> None:
    loader = DataLoader(options(1, 4, seed=1), Numbers(400), shuffle=True)
    epochs = [frozenset(items(loader)) for _ in range(5)]
    assert len(set(epochs)) == 5


def test_left_overs_larger_than_a_share_are_reached_too() -> None:
    loaders = [DataLoader(options(p, 2, (30, 1, 1), seed=5), Numbers(100), shuffle=True) for p in range(2)]
    epochs = [set(items(loaders[0]) + items(loaders[1])) for _ in range(4)]
    assert all(len(epoch) == 60 for epoch in epochs)
    assert epochs[0] | epochs[1] == epochs[1] | epochs[2] == set(range(100))


def test_the_first_epoch_is_the_permutation_of_the_seed() -> None:
    expected = torch.randperm(100, generator=torch.Generator().manual_seed(9)).tolist()
    shift = 100 % 48
    for process in range(2):
        loader = DataLoader(options(process, 2, (16, 1, 1), seed=9), Numbers(100), shuffle=True)
        start = process * 48 + shift
        assert items(loader) == expected[start : start + 48]


def test_the_data_set_is_the_view_of_the_process() -> None:
    loader = DataLoader(options(1, 2, (4, 1, 1)), Numbers(20))
    assert len(loader.dataset) == 8  # type: ignore[arg-type]
    assert int(loader.dataset[0]) == int(loader.dataset[-8]) == 8
    with pytest.raises(IndexError, match="has 8 items"):
        loader.dataset[8]


def test_without_partitioning_each_process_has_everything() -> None:
    loader = DataLoader(options(1, 2, seed=None), Numbers(6), auto_distributed_partitioning=False)
    assert items(loader) == list(range(6))


def test_indivisible_shares_are_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    DataLoader(options(0, 2, (2, 1, 1)), Numbers(9), drop_last=False)
    assert "is not divisible by" in caplog.text


@pytest.mark.parametrize(
    ("dataset", "kwargs", "text"),
    [
        (Stream(8), {}, "auto_distributed_partitioning not supported for IterableDataset"),
        (Numbers(8), {"shuffle": True}, r"you must set poptorch.Options.randomSeed\(\)"),
        (
            Numbers(8),
            {"batch_size": None, "drop_last": False},
            "batch_size=None not allowed when using auto_distributed_partitioning",
        ),
    ],
)
def test_what_cannot_be_partitioned(dataset: Any, kwargs: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        DataLoader(options(0, 2, seed=None), dataset, **kwargs)


def test_iterables_can_be_partitioned_by_the_user() -> None:
    loader = DataLoader(options(0, 2), Stream(3), auto_distributed_partitioning=False)
    assert items(loader) == [0, 1, 2]


def test_a_process_id_out_of_range_is_refused() -> None:
    with pytest.raises(poptorch.Error, match="process ID 2 is not in the range 0 to 1"):
        DataLoader(options(2, 2), Numbers(8))


def test_a_view_without_a_seed_does_not_shuffle() -> None:
    view = PartitionedDataset(Numbers(8), Share.of(8, 0, 2, 1, True), shuffle=True)
    with pytest.raises(AssertionError, match="Seed must be set when shuffling"):
        view.next_epoch()


class Batched(Numbers):
    """Answers a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.tensor(index + 1000) for index in indices]


def test_batched_access_is_used_where_there_is_any() -> None:
    assert items(DataLoader(options(1, 2, (2, 1, 1)), Batched(8))) == [1004, 1005, 1006, 1007]


def test_processes_that_share_replicas_read_the_same_items() -> None:
    def read(process: int) -> list[int]:
        opts = options(process, 4)
        opts.Distributed.processesPerReplica(2)
        return items(DataLoader(opts, Numbers(24), batch_size=3, shuffle=True))

    first, second, third, fourth = (read(process) for process in range(4))
    assert first == second
    assert third == fourth
    assert sorted(first + third) == list(range(24))
