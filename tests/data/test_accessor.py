"""``AsynchronousDataAccessor``: iteration, lifetime, buffers, structures, strategies."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_sets import (
    Labelled,
    MadeBy,
    Named,
    Numbers,
    Pair,
    PairParser,
    SizedStream,
    Stream,
    WhetherImported,
    WithoutEnd,
    collate_pairs,
)

import poptorch
from poptorch import AsynchronousDataAccessor, DataLoader, DataLoaderMode, Options, SharingStrategy


def values(items: Any) -> list[int]:
    return [int(item) for item in items]


def wait_until(condition: Any, what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


# --- iterating -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indefinitely", [True, False])
@pytest.mark.parametrize("dataset", [Numbers(7), SizedStream(7), WithoutEnd(7)], ids=["map", "iterable", "sized"])
def test_one_loop_is_one_epoch(dataset: Any, indefinitely: bool) -> None:
    with AsynchronousDataAccessor(dataset, load_indefinitely=indefinitely) as accessor:
        assert len(accessor) == len(dataset) == 7
        for _ in range(4):
            assert values(accessor) == list(range(7))


def test_an_exhausted_iterator_stays_exhausted() -> None:
    with AsynchronousDataAccessor(Numbers(2)) as accessor:
        assert iter(accessor) is accessor
        assert int(next(accessor)) == 0
        assert int(next(accessor)) == 1
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(accessor)
        assert values(accessor) == [0, 1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("indefinitely", [True, False])
def test_a_partial_iteration_is_started_over(workers: int, persistent: bool, indefinitely: bool) -> None:
    loader = DataLoader(
        Options().deviceIterations(2), Numbers(20), num_workers=workers,
        persistent_workers=persistent and workers > 0, mode=DataLoaderMode.Async,
        async_options={"load_indefinitely": indefinitely},
    )  # fmt: skip
    with loader:
        for taken in (1, 3, 9, 10):  # 10 is all of them, without the StopIteration
            for count, _ in enumerate(loader, start=1):
                if count == taken:
                    break
            assert [batch.tolist()[0] for batch in loader] == list(range(0, 20, 2))


def test_asking_for_an_iterator_twice_skips_nothing() -> None:
    with AsynchronousDataAccessor(Numbers(3)) as accessor:
        iter(accessor)
        iter(accessor)
        assert values(accessor) == [0, 1, 2]


def test_an_epoch_may_turn_out_to_be_empty() -> None:
    exhausted_by_one_pass = iter([torch.tensor(1), torch.tensor(2)])
    accessor = AsynchronousDataAccessor(exhausted_by_one_pass, sharing_strategy=SharingStrategy.Fork)
    with accessor:
        assert values(accessor) == [1, 2]
        for _ in range(3):
            assert values(accessor) == []


def test_items_live_until_the_next_one_is_asked_for() -> None:
    with AsynchronousDataAccessor(Numbers(6, (4,)), buffer_size=1) as accessor:
        first = next(accessor)
        kept = first.clone()
        next(accessor)
        assert torch.equal(kept, torch.zeros(4))
        assert torch.equal(first, torch.ones(4)), "one slot: the same memory"


def test_the_last_item_of_an_epoch_outlives_it() -> None:
    with AsynchronousDataAccessor(Numbers(4, (4,)), buffer_size=3) as accessor:
        for item in accessor:
            last = item
        wait_until(lambda: accessor.buffered == 2, "the next epoch is loaded into the other slots")
        assert torch.equal(last, torch.full((4,), 3.0))


def test_what_happens_to_a_yielded_tensor_does_not_stick_to_the_slot() -> None:
    with AsynchronousDataAccessor(Numbers(3, (2,)), buffer_size=1) as accessor:
        for item in accessor:
            assert not item.requires_grad
            item.requires_grad_(True)


def test_using_a_terminated_accessor_is_refused() -> None:
    accessor = AsynchronousDataAccessor(Numbers(3))
    accessor.terminate()
    accessor.terminate()
    for use in (iter, next):
        with pytest.raises(AssertionError, match="terminated"):
            use(accessor)  # type: ignore[operator]


@pytest.mark.parametrize(("early", "filled"), [(False, 1), (True, 5)])
def test_early_preload_fills_the_ring(early: bool, filled: int) -> None:
    with AsynchronousDataAccessor(Numbers(100), buffer_size=5, early_preload=early) as accessor:
        wait_until(lambda: accessor.buffered >= filled, "slots are filled")
        time.sleep(0.2)  # time enough to fill too many
        assert accessor.buffered == filled
        iter(accessor)
        wait_until(lambda: accessor.buffered == 5, "the ring is full once iteration begins")
        assert values(accessor) == list(range(100))


@pytest.mark.parametrize("pause", [0, -1, 0.1, 5])
def test_the_length_of_the_pause_does_not_matter(pause: float, caplog: pytest.LogCaptureFixture) -> None:
    poptorch.setLogLevel("INFO")
    with AsynchronousDataAccessor(Numbers(10), miss_sleep_time_in_ms=pause) as accessor:
        assert values(accessor) == list(range(10))
    assert ("miss_sleep_time_in_ms=5" in caplog.text) == (pause == 5)


def test_the_next_epoch_is_loaded_ahead_only_if_asked_for() -> None:
    with AsynchronousDataAccessor(Numbers(2), load_indefinitely=False, buffer_size=3) as accessor:
        assert values(accessor) == [0, 1]
        time.sleep(0.2)
        assert accessor.buffered == 0
        assert values(accessor) == [0, 1]


# --- structures ------------------------------------------------------------------------------------------------


def test_tuples_come_back_as_lists() -> None:
    with AsynchronousDataAccessor([(torch.tensor(1), torch.tensor(2))]) as accessor:
        item = next(accessor)
        assert isinstance(item, list)
        assert values(item) == [1, 2]


A_LIBRARY = """
import torch
import poptorch

class Point:
    def __init__(self, x):
        self.x = x

class PointParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x

    def reconstruct(self, original_structure, tensor_iterator):
        return Point(next(tensor_iterator))
"""


def test_a_parser_is_imported_where_its_values_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing a library of graphs takes seconds: only a process whose data set has graphs does so."""
    (tmp_path / "points_library.py").write_text(A_LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    library = importlib.import_module("points_library")
    poptorch.registerCustomArgParser(library.Point, library.PointParser())
    try:
        with AsynchronousDataAccessor(WhetherImported("points_library")) as accessor:
            assert values(accessor) == [0, 0]
        with AsynchronousDataAccessor(MadeBy("points_library", "Point")) as accessor:
            points = list(accessor)
        assert all(isinstance(point, library.Point) for point in points)
        assert [int(point.x) for point in points] == [0, 1]
    finally:
        poptorch.registerCustomArgParser(library.Point, None)
        monkeypatch.delitem(sys.modules, "points_library")


def test_dictionaries_come_back_in_the_order_of_the_first() -> None:
    items = [{"a": torch.tensor(1), "b": torch.tensor(2)}, {"b": torch.tensor(4), "a": torch.tensor(3)}]
    with AsynchronousDataAccessor(items) as accessor:
        assert [list(map(int, item.values())) for item in accessor] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("strategy", [SharingStrategy.ForkServer, SharingStrategy.Fork])
def test_types_of_the_users_own_are_rebuilt_by_their_parser(strategy: SharingStrategy) -> None:
    poptorch.registerCustomArgParser(Pair, PairParser())
    try:
        loader = DataLoader(
            Options().deviceIterations(2), Numbers(6), collate_fn=collate_pairs, mode=DataLoaderMode.Async,
            async_options={"sharing_strategy": strategy},
        )  # fmt: skip
        with loader:
            for _ in range(2):
                pairs = [(pair.left.tolist(), pair.right.tolist()) for pair in loader]
                assert pairs == [([i, i + 1], [-i, -i - 1]) for i in (0, 2, 4)]
                assert all(isinstance(pair, Pair) for pair in loader)
    finally:
        poptorch.registerCustomArgParser(Pair, None)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([True, False]),
        torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
        torch.tensor([1 + 2j]),
        torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
        torch.tensor(3),
        torch.zeros(0, 4),
        torch.arange(12).view(3, 4).t(),
        torch.arange(6)[::2],
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_every_dense_tensor_survives_the_journey(tensor: torch.Tensor) -> None:
    with AsynchronousDataAccessor([tensor] * 4, sharing_strategy=SharingStrategy.Fork) as accessor:
        for item in accessor:
            assert item.dtype == tensor.dtype
            assert item.shape == tensor.shape
            assert item.tolist() == tensor.tolist()


# --- sources ---------------------------------------------------------------------------------------------------


def test_a_synchronous_loader_can_be_wrapped() -> None:
    loader = DataLoader(Options().deviceIterations(5), Labelled(20, (2,)), num_workers=1)
    with AsynchronousDataAccessor(loader) as accessor:
        assert len(accessor) == 4
        for _ in range(2):
            assert [label.tolist() for _, label in accessor] == torch.arange(20).view(4, 5).tolist()


def test_a_plain_torch_loader_can_be_wrapped() -> None:
    loader = torch.utils.data.DataLoader(Named(8), batch_size=4)
    with AsynchronousDataAccessor(loader) as accessor:
        assert [batch["value"].tolist() for batch in accessor] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_asynchronous_loader_cannot_be_wrapped() -> None:
    with (
        DataLoader(Options(), Numbers(4), mode=DataLoaderMode.Async) as loader,
        pytest.raises(poptorch.Error, match="The DataLoader already uses an AsynchronousDataAccessor internally"),
    ):
        AsynchronousDataAccessor(loader)


def test_incomplete_batches_need_rebatching() -> None:
    loader = DataLoader(Options().deviceIterations(2), Numbers(5), drop_last=False)
    with pytest.raises(AssertionError, match="only works if 'rebatched_size' is specified too"):
        AsynchronousDataAccessor(loader)
    with AsynchronousDataAccessor(loader, rebatched_size=2) as accessor:
        assert [item.tolist() for item in accessor] == [[0, 1], [2, 3]]
    with AsynchronousDataAccessor(DataLoader(Options(), Numbers(5), drop_last=False)) as accessor:
        assert len(list(accessor)) == 5


def test_rebatching_crosses_borders_and_drops_the_rest() -> None:
    loader = torch.utils.data.DataLoader(Labelled(10), batch_size=4)
    with AsynchronousDataAccessor(loader, rebatched_size=3) as accessor:
        assert len(accessor) == 4  # by the formula: 3 batches of 4 rows; the last one has fewer
        for _ in range(3):
            assert [label.tolist() for _, label in accessor] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("size", [0, 1, -3])
def test_sizes_too_small_to_rebatch(size: int) -> None:
    with pytest.raises(AssertionError, match="rebatched_size must be None or greater than 1"):
        AsynchronousDataAccessor(Numbers(4), rebatched_size=size)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_a_ring_needs_slots(size: Any) -> None:
    with pytest.raises(ValueError, match="buffer_size must be a positive number"):
        AsynchronousDataAccessor(Numbers(4), buffer_size=size)


def test_no_length_without_a_length() -> None:
    with AsynchronousDataAccessor(Stream(4)) as accessor, pytest.raises(TypeError, match=r"has no len\(\)"):
        len(accessor)


# --- the process -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", list(SharingStrategy), ids=lambda strategy: strategy.name)
def test_every_strategy_delivers(strategy: SharingStrategy) -> None:
    rows = torch.arange(3000.0).view(1000, 3)
    with AsynchronousDataAccessor(list(rows), sharing_strategy=strategy) as accessor:  # a thousand views of one storage
        assert torch.equal(torch.stack([item.clone() for item in accessor]), rows)


def test_it_can_be_created_in_a_thread() -> None:
    found: list[int] = []

    def load() -> None:
        with AsynchronousDataAccessor(Numbers(4)) as accessor:
            found.extend(values(accessor))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join(60)
    assert found == [0, 1, 2, 3]


def test_process_ids_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    poptorch.setLogLevel("DEBUG")
    with caplog.at_level(logging.DEBUG), AsynchronousDataAccessor(Numbers(4)) as accessor:
        assert accessor._process is not None
        pid = accessor._process.pid
    assert "AsynchronousDataAccessor parent process: " in caplog.text
    assert f"AsynchronousDataAccessor worker process: {pid}" in caplog.text


def test_dropping_the_object_ends_the_process() -> None:
    for make in (
        lambda: AsynchronousDataAccessor(Numbers(4)),
        lambda: DataLoader(Options(), Numbers(4), mode=DataLoaderMode.Async),
    ):
        owner: Any = make()
        accessor = owner if isinstance(owner, AsynchronousDataAccessor) else owner._accessor
        process = accessor._process._process
        gc.disable()  # counting references must do
        try:
            assert process.is_alive()
            del accessor, owner
            with pytest.raises(ValueError, match="closed"):
                process.is_alive()
        finally:
            gc.enable()


SCRIPT = """
import poptorch
from sample_sets import Numbers
if __name__ == "__main__":
    loader = poptorch.DataLoader(
        poptorch.Options(), Numbers(64), num_workers={workers}, mode=poptorch.DataLoaderMode.Async
    )
    for number, batch in enumerate(loader):
        if number == {stop}:
            break
    print("done", number)
"""


@pytest.mark.parametrize(("workers", "stop"), [(0, 5), (2, 5), (32, 1000)])
def test_a_program_ends_without_a_word(workers: int, stop: int, tmp_path: Any) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.format(workers=workers, stop=stop))
    path = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"done {min(stop, 63)}\n"


def test_the_process_is_started_once_for_all_epochs() -> None:
    with AsynchronousDataAccessor(Numbers(4)) as accessor:
        seen = []
        for _ in range(3):
            assert len(list(accessor)) == 4
            seen.append(accessor._process.pid)
    assert len(set(seen)) == 1
