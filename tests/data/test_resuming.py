"""A loader that goes on in the middle of an epoch gives the batches that an uninterrupted one gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sample_sets import Numbers, Stream
from torch.utils.data import BatchSampler, RandomSampler

import poptorch
from poptorch import DataLoader, DataLoaderMode, Options

ITEMS, BATCHES, EPOCHS = 24, 6, 3
MODES = list(DataLoaderMode)


def make(data: Any = None, **kwargs: Any) -> DataLoader:
    options = kwargs.pop("options", None) or Options().deviceIterations(2)
    data = Numbers(ITEMS) if data is None else data
    return DataLoader(options, data, **{"batch_size": 2, "shuffle": True, **kwargs})


def rows(batch: torch.Tensor) -> list[int]:
    return batch.int().tolist()


def uninterrupted(**kwargs: Any) -> list[list[list[int]]]:
    """The batches of three epochs; the model draws random numbers meanwhile."""
    torch.manual_seed(3)
    with make(**kwargs) as loader:
        return [[model(batch) for batch in loader] for _ in range(EPOCHS)]


def model(batch: torch.Tensor) -> list[int]:
    torch.rand(3)
    return rows(batch)


def interrupted(epoch: int, batches: int, **kwargs: Any) -> list[list[list[int]]]:
    """The same, by two loaders: the first one stops in ``epoch`` after so many batches, or after all."""
    torch.manual_seed(3)
    found: list[list[list[int]]] = []
    with make(**kwargs) as loader:
        for _ in range(epoch):
            found.append([model(batch) for batch in loader])
        part: list[list[int]] = []
        if batches:
            iterator = iter(loader)
            part = [model(next(iterator)) for _ in range(batches)]
        state = loader.state_dict()
    torch.manual_seed(99)  # another process
    with make(**kwargs) as loader:
        loader.load_state_dict(state)
        found.append(part + [model(batch) for batch in loader])
        while len(found) < EPOCHS:
            found.append([model(batch) for batch in loader])
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("epoch", "batches"), [(0, 0), (0, 1), (1, 4), (1, BATCHES), (2, 0)])
def test_the_order_is_the_same(epoch: int, batches: int, mode: DataLoaderMode, workers: int) -> None:
    kwargs = {"mode": mode, "num_workers": workers}
    assert interrupted(epoch, batches, **kwargs) == uninterrupted(**kwargs)


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_a_generator_of_one_s_own(mode: DataLoaderMode) -> None:
    def run(how: Any, *where: int) -> Any:
        return how(*where, mode=mode, generator=torch.Generator().manual_seed(5))

    assert run(interrupted, 1, 2) == run(uninterrupted)


class Batches:
    """A batch sampler of the user's."""

    batch_size = 2

    def __iter__(self) -> Any:
        return iter(BatchSampler(RandomSampler(range(ITEMS)), 2, True))

    def __len__(self) -> int:
        return ITEMS // 2


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_micro_batches_that_are_joined(mode: DataLoaderMode) -> None:
    kwargs = {"mode": mode, "shuffle": False, "batch_size": 1, "batch_sampler": Batches()}
    assert interrupted(1, 3, **kwargs) == uninterrupted(**kwargs)


def test_workers_whose_batches_do_not_end_with_those_of_the_model() -> None:
    kwargs = {"mode": DataLoaderMode.AsyncRebatched, "rebatched_worker_size": 3, "num_workers": 2}
    assert interrupted(1, 2, **kwargs) == uninterrupted(**kwargs)


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_a_part_of_the_data_in_each_process(mode: DataLoaderMode) -> None:
    seen = []
    for process in range(2):
        options = Options().deviceIterations(2).randomSeed(7)
        options.Distributed.configureProcessId(process, 2)
        kwargs = {"data": Numbers(ITEMS + 4), "options": options, "mode": mode}
        found = interrupted(1, 2, **kwargs)
        assert found == uninterrupted(**kwargs)
        seen += [row for batch in found[1] for row in batch]
    assert len(set(seen)) == ITEMS


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_a_stream_is_read_up_to_there(mode: DataLoaderMode) -> None:
    kwargs = {"data": Stream(ITEMS), "mode": mode, "shuffle": False}
    assert interrupted(1, 2, **kwargs) == uninterrupted(**kwargs)


class Counting(Numbers):
    """Counts what is loaded."""

    loaded = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        type(self).loaded += 1
        return super().__getitem__(index)


def test_nothing_is_loaded_for_what_is_passed_over() -> None:
    loader = make(Counting(ITEMS))
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    again = make(Counting(ITEMS))
    again.load_state_dict(loader.state_dict())
    Counting.loaded = 0
    assert len(list(again)) == 2
    assert Counting.loaded == 8


def test_a_state_can_be_saved_and_is_safe_to_load(tmp_path: Any) -> None:
    loader = make()
    next(iter(loader))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    again = make()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.state_dict()["batches"] == 1


def test_another_loader_s_state_is_refused() -> None:
    with pytest.raises(poptorch.Error, match=r"no state of a poptorch\.DataLoader"):
        make().load_state_dict({"epoch": 1})
    with pytest.raises(poptorch.Error, match="loads 4 rows at a time; this one loads 6"):
        make(batch_size=3).load_state_dict(make().state_dict())
    state = make(generator=torch.Generator()).state_dict()
    loader = make()
    loader.load_state_dict(state)
    with pytest.raises(poptorch.Error, match="with another generator"):
        iter(loader)
