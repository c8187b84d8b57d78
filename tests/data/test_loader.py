"""``poptorch.DataLoader``: sizes, order, modes, left-overs."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from typing import Any

import pytest
import torch
from observing import joined
from sample_sets import (
    Labelled,
    Named,
    Numbers,
    SizedStream,
    Stream,
    give_each_worker_its_slice,
)

import poptorch
from poptorch import DataLoader, DataLoaderMode, Options
from poptorch.runtime.engine import Engine

MODES = list(DataLoaderMode)


def options(iterations: int = 1, replicas: int = 1, accumulation: int = 1) -> Options:
    opts = Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    return opts


def values(loader: Any) -> list[list[int]]:
    return [batch.flatten().int().tolist() for batch in loader]


@pytest.fixture
def loaders() -> Any:
    """A factory whose loaders end with the test."""
    made: list[DataLoader] = []

    def make(*args: Any, **kwargs: Any) -> DataLoader:
        made.append(DataLoader(*args, **kwargs))
        return made[-1]

    yield make
    for loader in made:
        loader.terminate()


# --- sizes and order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("batch_size", "iterations", "replicas", "accumulation", "workers"),
    [(1, 2, 1, 1, 0), (2, 3, 2, 1, 0), (3, 1, 2, 2, 2), (2, 2, 1, 1, 8)],
)
def test_batches_have_the_combined_size_in_order(
    loaders: Any, mode: DataLoaderMode, batch_size: int, iterations: int, replicas: int, accumulation: int,
    workers: int,
) -> None:  # fmt: skip
    opts = options(iterations, replicas, accumulation)
    combined = batch_size * iterations * replicas * accumulation
    loader = loaders(opts, Numbers(100), batch_size=batch_size, num_workers=workers, mode=mode)
    assert loader.combinedBatchSize == combined
    assert loader.options is opts
    assert len(loader) == 100 // combined
    expected = [list(range(i * combined, (i + 1) * combined)) for i in range(100 // combined)]
    for _ in range(3):
        assert values(loader) == expected


def test_input_groups_divide_the_replicas() -> None:
    opts = options(replicas=4).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert DataLoader(opts, Numbers(16), batch_size=2).combinedBatchSize == 4


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_without_batching_items_pass_through(loaders: Any, mode: DataLoaderMode) -> None:
    loader = loaders(options(3), Numbers(5, (2,)), batch_size=None, drop_last=False, mode=mode)
    assert loader.combinedBatchSize is None
    assert isinstance(loader.options, Options)
    assert len(loader) == 5
    for _ in range(3):
        assert [tuple(item.shape) for item in loader] == [(2,)] * 5


def test_options_are_frozen_and_a_copy_is_not() -> None:
    opts = Options()
    DataLoader(opts, Numbers(4))
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        opts.deviceIterations(2)
    copy.deepcopy(opts).deviceIterations(2)


def test_options_of_another_type_are_refused() -> None:
    with pytest.raises(AssertionError):
        DataLoader({}, Numbers(4))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("deviceIterations", 0), ("replicationFactor", -1)])
def test_sizes_that_make_no_batch_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        DataLoader(getattr(Options(), name)(value), Numbers(4))


def test_a_list_is_a_data_set() -> None:
    first, second = next(iter(DataLoader(options(2), [(i, -i) for i in range(4)], batch_size=2)))
    assert first.tolist() == [0, 1, 2, 3]
    assert second.tolist() == [0, -1, -2, -3]


@pytest.mark.parametrize("mode", MODES)
def test_dictionaries_keep_their_keys(loaders: Any, mode: DataLoaderMode) -> None:
    for batch in loaders(options(4), Named(20), mode=mode):
        assert list(batch) == ["value", "double"]
        assert all(len(tensor) == 4 for tensor in batch.values())
        assert torch.equal(batch["double"], 2 * batch["value"].long())


@pytest.mark.parametrize("mode", MODES)
def test_labelled_items_unpack_in_two(loaders: Any, mode: DataLoaderMode) -> None:
    for data, label in loaders(options(5), Labelled(20, (3,)), mode=mode):
        assert data.shape == (5, 3)
        assert label.dtype == torch.int64
        assert torch.equal(data[:, 0].long(), label)


def test_inherited_members_speak_of_the_combined_size(loaders: Any) -> None:
    assert DataLoader(options(4), Numbers(20), batch_size=2).batch_size == 8
    rebatched = loaders(
        options(4), Numbers(20), batch_size=2, mode=DataLoaderMode.AsyncRebatched, rebatched_worker_size=3
    )
    assert rebatched.batch_size == 3
    assert rebatched.drop_last is False


# --- left-overs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drop_last", [True, False])
def test_incomplete_last_batch(loaders: Any, mode: DataLoaderMode, drop_last: bool) -> None:
    loader = loaders(options(4), Numbers(11), drop_last=drop_last, mode=mode)
    expected = [[0, 1, 2, 3], [4, 5, 6, 7]] + ([] if drop_last else [[8, 9, 10]])
    assert len(loader) == len(expected)
    for _ in range(2):
        assert values(loader) == expected


def test_an_indivisible_data_set_is_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    DataLoader(options(4), Numbers(12), drop_last=False)
    assert not caplog.records
    DataLoader(options(4), Numbers(11), drop_last=False)
    assert "is not divisible by" in caplog.text
    assert "drop_last=False" in caplog.text


def test_strict_compatibility_refuses_what_the_original_refused() -> None:
    with pytest.raises(AssertionError, match="only works if 'rebatched_size' is specified too"):
        DataLoader(options(2).strictCompatibility(True), Numbers(5), drop_last=False, mode=DataLoaderMode.Async)


# --- iterable data sets ----------------------------------------------------------------------------------------


def stream_loader(make: Any, mode: DataLoaderMode, batch: int, drop_last: bool, **kwargs: Any) -> Any:
    return make(
        options(batch),
        kwargs.pop("dataset", None) or Stream(101),
        mode=mode,
        num_workers=7,
        drop_last=drop_last,
        worker_init_fn=give_each_worker_its_slice,
        **kwargs,
    )


@pytest.mark.parametrize(
    ("mode", "batches"),
    [(DataLoaderMode.Sync, 20), (DataLoaderMode.Async, 20), (DataLoaderMode.AsyncRebatched, 25)],
)
def test_workers_drop_their_own_left_overs(loaders: Any, mode: DataLoaderMode, batches: int) -> None:
    loader = stream_loader(loaders, mode, 4, drop_last=True)
    for _ in range(2):
        found = values(loader)
        assert [len(batch) for batch in found] == [4] * batches
        assert len(set(joined(found))) == 4 * batches


def test_kept_left_overs_of_workers(loaders: Any) -> None:
    found = values(stream_loader(loaders, DataLoaderMode.Sync, 6, drop_last=False))
    assert sorted(map(len, found)) == [3] * 6 + [5] + [6] * 13
    found = values(stream_loader(loaders, DataLoaderMode.AsyncRebatched, 6, drop_last=False))
    assert [len(batch) for batch in found] == [6] * 16 + [5]
    assert sorted(joined(found)) == list(range(101))


@pytest.mark.parametrize("worker_size", [1, 2, 3, 4, None])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("iterable", [True, False])
def test_any_worker_size_gives_the_same_items(
    loaders: Any, worker_size: int | None, drop_last: bool, iterable: bool
) -> None:
    kwargs: Any = {"rebatched_worker_size": worker_size, "drop_last": drop_last}
    if iterable:
        loader = stream_loader(loaders, DataLoaderMode.AsyncRebatched, 4, **kwargs)
    else:
        loader = loaders(options(4), Numbers(101), mode=DataLoaderMode.AsyncRebatched, num_workers=7, **kwargs)
    for _ in range(2):
        found = values(loader)
        assert [len(batch) for batch in found] == [4] * 25 + ([] if drop_last else [1])
        assert len(set(joined(found))) == 100 + (not drop_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("iterable", [True, False])
@pytest.mark.parametrize("mode", [DataLoaderMode.Async, DataLoaderMode.AsyncRebatched])
def test_workers_may_be_kept_or_not(
    loaders: Any, dtype: torch.dtype, persistent: bool, iterable: bool, mode: DataLoaderMode
) -> None:
    dataset = Stream(24, dtype) if iterable else Numbers(24, dtype=dtype)
    loader = loaders(
        options(4), dataset, num_workers=2, persistent_workers=persistent, mode=mode,
        worker_init_fn=give_each_worker_its_slice if iterable else None,
    )  # fmt: skip
    for _ in range(4):
        batches = [batch.clone() for batch in loader]
        assert {batch.dtype for batch in batches} == {dtype}
        assert sorted(torch.cat(batches).int().tolist()) == list(range(24))


def test_length_of_iterables(loaders: Any) -> None:
    assert len(DataLoader(options(4), SizedStream(11))) == 2
    assert len(DataLoader(options(4), SizedStream(11), drop_last=False)) == 3
    assert len(loaders(options(4), SizedStream(11), mode=DataLoaderMode.AsyncRebatched)) == 2
    for mode in MODES:
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(loaders(options(4), Stream(11), mode=mode))


def test_every_element_once_per_worker_is_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(Options(), Stream(3), num_workers=2)
    assert "IterableDataset used with num_workers=2" in caplog.text
    assert "no worker_init_fn specified" in caplog.text
    assert sorted(joined(values(loader))) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("mode", MODES)
def test_too_many_workers_are_worth_one_warning(mode: DataLoaderMode, loaders: Any, capfd: Any) -> None:
    workers = len(os.sched_getaffinity(0)) + 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = loaders(options(2), Numbers(8), mode=mode, num_workers=workers)
        assert [len(list(loader)) for _ in range(2)] == [4, 4]
    assert len([w for w in caught if "worker processes in total" in str(w.message)]) == 1
    assert "worker processes in total" not in capfd.readouterr().err, "none from the background process"


# --- arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"rebatched_worker_size": 5}, "must be <= to the combined batch size"),
        ({"async_options": {"rebatched_size": 4}}, "manually specify the rebatched_size"),
        (
            {"async_options": {"rebatched_size": 4}, "mode": DataLoaderMode.Async},
            "manually specify the rebatched",
        ),
    ],
)
def test_sizes_that_do_not_go_together(kwargs: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        DataLoader(options(4), Numbers(8), **({"mode": DataLoaderMode.AsyncRebatched} | kwargs))


def test_one_row_cannot_be_rebatched() -> None:
    with pytest.raises(AssertionError, match="rebatched_size must be None or greater than 1"):
        DataLoader(Options(), Numbers(8), mode=DataLoaderMode.AsyncRebatched)


def test_arguments_without_effect_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    DataLoader(Options(), Numbers(8), async_options={"buffer_size": 4}, rebatched_worker_size=2)
    assert "async_options={'buffer_size': 4} has no effect" in caplog.text
    assert "rebatched_worker_size=2 has no effect" in caplog.text


def test_workers_are_persistent_by_default() -> None:
    assert DataLoader(Options(), Numbers(8), num_workers=1).persistent_workers
    assert not DataLoader(Options(), Numbers(8)).persistent_workers
    with pytest.raises(ValueError, match="persistent_workers"):
        DataLoader(Options(), Numbers(8), persistent_workers=True)


def test_terminating_a_synchronous_loader_does_nothing() -> None:
    loader = DataLoader(options(2), Numbers(4))
    loader.terminate()
    assert values(loader) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("mode", [DataLoaderMode.Async, DataLoaderMode.AsyncRebatched])
def test_shuffling_follows_the_seed_in_every_mode(loaders: Any, mode: DataLoaderMode) -> None:
    torch.manual_seed(7)
    expected = values(DataLoader(options(4), Numbers(20), shuffle=True))
    torch.manual_seed(7)
    loader = loaders(options(4), Numbers(20), shuffle=True, mode=mode)
    first, second = values(loader), values(loader)
    assert first == expected
    assert first != second
    assert sorted(joined(second)) == list(range(20))


def test_two_loaders_do_not_shuffle_alike(loaders: Any) -> None:
    torch.manual_seed(7)
    pair = [loaders(options(20), Numbers(20), shuffle=True, mode=DataLoaderMode.Async) for _ in range(2)]
    assert values(pair[0]) != values(pair[1])


def test_a_generator_of_the_users_own_reaches_the_process(loaders: Any) -> None:
    expected = values(DataLoader(options(4), Numbers(20), shuffle=True, generator=torch.Generator().manual_seed(3)))
    generator = torch.Generator().manual_seed(3)
    assert values(loaders(options(4), Numbers(20), shuffle=True, generator=generator, mode=DataLoaderMode.Async)) == (
        expected
    )


def test_the_for_loop_alone_keeps_a_loader_alive() -> None:
    assert values(DataLoader(options(4), Numbers(8), mode=DataLoaderMode.Async)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_a_loader_is_a_context_manager() -> None:
    with DataLoader(options(4), Numbers(8), mode=DataLoaderMode.Async) as loader:
        assert len(list(loader)) == 2
    with pytest.raises(AssertionError, match="terminated"):
        next(iter(loader))


def test_left_over_lines_go_to_the_package_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        DataLoader(options(2), Numbers(3), drop_last=False)
    assert {record.name for record in caplog.records} == {"poptorch::python"}


# --- on the way to the model -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_a_batch_reaches_the_device_without_a_copy(
    loaders: Any, mode: DataLoaderMode, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = poptorch.inferenceModel(torch.nn.ReLU())
    taken: list[int] = []
    real = Engine.run
    monkeypatch.setattr(Engine, "run", lambda self, inputs: taken.append(inputs[0].data_ptr()) or real(self, inputs))
    loader = loaders(Options(), torch.arange(24.0).view(12, 2), batch_size=4, mode=mode, num_workers=workers)
    for index, batch in enumerate(loader):
        expected = torch.arange(8.0 * index, 8.0 * index + 8).view(4, 2)
        assert torch.equal(model(batch), expected)
        assert taken.pop() == batch.data_ptr()


def test_workers_are_started_once_for_all_epochs(loaders: Any) -> None:
    loader = loaders(Options(), torch.arange(12.0), batch_size=4, num_workers=2)
    seen = []
    for _ in range(3):
        assert len(list(loader)) == 3
        seen.append([worker.pid for worker in loader._iterator._workers])
    assert seen[0] == seen[1] == seen[2]
