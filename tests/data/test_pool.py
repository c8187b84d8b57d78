"""Batches in reused slots: they hold their values for as long as anybody looks, and nothing else changes."""

from __future__ import annotations

import gc
import multiprocessing
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from observing import leftovers, wait_for_nothing_more
from sample_sets import Labelled, Numbers, Pair, collate_pairs
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from poptorch import DataLoader, DataLoaderMode, Options
from poptorch.data import pool
from poptorch.data.collating import collate_into

Named = namedtuple("Named", ["values", "name"])


class Mixed(Dataset[Any]):
    """Items of many kinds, of growing length."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return {
            "named": Named(torch.full((index // 3 + 1, 5), index), "text"),
            "nested": [torch.tensor(index, dtype=torch.bfloat16), (numpy.full(3, index), 0.5 * index)],
            "empty": torch.empty(0, 2),
            "flag": torch.tensor(index % 2 == 0),
            "complex": torch.tensor(complex(index, 1)),
        }


def stack_transposed(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(items).T  # not contiguous


def expand_first(items: list[torch.Tensor]) -> torch.Tensor:
    return items[0].expand(4, *items[0].shape)


def with_gradient(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(items).requires_grad_()


def passed_through(items: list[Any]) -> list[Any]:
    return items


@pytest.fixture
def two_workers() -> dict[str, Any]:
    return {"batch_size": 3, "num_workers": 2, "drop_last": True, "persistent_workers": True}


def same(left: Any, right: Any) -> None:
    """Equal in values, types, shapes and containers."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape, left.requires_grad) == (right.dtype, right.shape, right.requires_grad)
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            same(one, other)
    elif isinstance(left, Pair):
        same([left.left, left.right], [right.left, right.right])
    elif isinstance(left, numpy.ndarray):
        numpy.testing.assert_array_equal(left, right)
    else:
        assert left == right


@pytest.mark.parametrize(
    ("dataset", "collate_fn"),
    [
        (Mixed(), None),
        (Mixed(), passed_through),
        (Labelled(30, (4, 5)), None),
        (Numbers(30, (4,)), stack_transposed),
        (Numbers(30, (4,)), expand_first),
        (Numbers(30, (4,)), with_gradient),
        (Numbers(30, (4,)), collate_pairs),
    ],
)
def test_batches_are_those_of_torch(dataset: Any, collate_fn: Any, two_workers: dict[str, Any]) -> None:
    ours = DataLoader(Options(), dataset, collate_fn=collate_fn, **two_workers)
    theirs = TorchDataLoader(dataset, collate_fn=collate_fn, **two_workers)
    for _ in range(3):
        for mine, expected in zip(ours, theirs, strict=True):
            same(mine, expected)


def test_kept_batches_keep_their_values(two_workers: dict[str, Any]) -> None:
    loader = DataLoader(Options(), Numbers(300, (50,)), **two_workers)
    rows = [row for _ in range(2) for batch in loader for row in batch[1:2]]  # views of parts of batches
    assert [int(row[0]) for row in rows] == [3 * batch + 1 for _ in range(2) for batch in range(100)]


def test_dropped_batches_are_overwritten_rather_than_piled_up(two_workers: dict[str, Any]) -> None:
    loader = DataLoader(Options(), Numbers(300, (50,)), **two_workers)
    places = [batch.data_ptr() for batch in loader]
    assert len(set(places)) <= 2 * (1 + pool.slots_for(2)), "the first batch of a worker comes without a slot"


class Shared(Dataset[torch.Tensor]):
    """Every item is the same tensor in shared memory."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(5).share_memory_()

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensor


def test_what_the_user_shares_stays_shared(two_workers: dict[str, Any]) -> None:
    dataset = Shared()
    for batch in DataLoader(Options(), dataset, collate_fn=passed_through, **two_workers):
        batch[0].add_(1)
    assert dataset.tensor.tolist() == [10.0] * 5


def keep_looking(batch: torch.Tensor, go: Any, answer: Any) -> None:
    go.wait(60)
    answer.send(batch.tolist())


def test_a_forked_process_may_keep_a_batch_that_its_parent_has_dropped(two_workers: dict[str, Any]) -> None:
    context = multiprocessing.get_context("fork")
    go, (receiver, sender) = context.Event(), context.Pipe(duplex=False)
    batches = iter(DataLoader(Options(), Numbers(300, (2,)), **two_workers))
    for _ in range(4):
        batch = next(batches)
    expected = batch.tolist()
    child = context.Process(target=keep_looking, args=(batch, go, sender))
    child.start()
    del batch
    for _ in batches:
        pass
    go.set()
    assert receiver.recv() == expected
    child.join(60)
    receiver.close(), sender.close()


def test_slots_come_back_after_the_parent_forked(two_workers: dict[str, Any]) -> None:
    batches = iter(DataLoader(Options(), Numbers(900, (50,)), **two_workers))
    for batch in batches:
        if batch[0, 0] < 300:
            child = multiprocessing.get_context("fork").Process(target=int)
            child.start()  # each fork takes a slot out of use
            child.join(60)
        last = int(batch[-1, -1])
    assert last == 899


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_pools_go_with_their_workers(mode: DataLoaderMode, two_workers: dict[str, Any]) -> None:
    def load() -> None:
        loader = DataLoader(Options(), Numbers(60, (50,)), mode=mode, **two_workers)
        assert sum(len(batch) for batch in loader) == 60
        loader.terminate()

    load()
    gc.collect()
    before = leftovers()
    for _ in range(3):
        load()
    gc.collect()
    assert not pool._pools
    wait_for_nothing_more(before)


# --- stacking in place -----------------------------------------------------------------------------------------


class Swapping(Dataset[Any]):
    """Dictionaries whose keys change places."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        item = {"x": torch.full((2,), index), "y": torch.full((2,), -index)}
        return item if index < 4 else dict(reversed(item.items()))


def test_keys_may_change_places() -> None:
    with DataLoader(Options(), Swapping(), batch_size=2, mode=DataLoaderMode.Async) as loader:
        for _ in range(2):
            seen = [(batch["x"].tolist(), batch["y"].tolist()) for batch in loader]
            assert seen == [([[2 * i] * 2, [2 * i + 1] * 2], [[-2 * i] * 2, [-2 * i - 1] * 2]) for i in range(6)]


def rows(*dtypes: torch.dtype) -> Iterator[torch.Tensor]:
    return (torch.ones(2, dtype=dtype) for dtype in dtypes)


@pytest.mark.parametrize(
    "items",
    [
        list(rows(torch.float32, torch.float64)),
        [torch.ones(2, requires_grad=True), torch.ones(2)],
        [torch.nn.Parameter(torch.ones(2))] * 2,
    ],
)
def test_what_torch_promotes_or_differentiates_is_left_to_torch(items: Any) -> None:
    same(collate_into(items, lambda shape, dtype: torch.empty(shape, dtype=dtype)), torch.stack(items))


def test_shapes_that_differ_are_refused_as_by_torch() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        collate_into([torch.ones(2), torch.ones(3)], lambda shape, dtype: torch.empty(shape, dtype=dtype))
