"""Data sets that raise, hang, kill their process or do not fit: a clear error, nothing left behind, no hang."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from observing import descendants, leftovers, parent_of, wait_for_nothing_more, wait_until
from sample_sets import (
    Broken,
    CannotBePickled,
    CannotBeUnpickled,
    Growing,
    Hanging,
    NotTensors,
    Numbers,
    Retyped,
    Stubborn,
    Suicidal,
    WithGradient,
)

import poptorch
from poptorch import AsynchronousDataAccessor, DataLoader, DataLoaderMode, Options, SharingStrategy

HERE = os.pathsep.join(str(folder) for folder in Path(__file__).parents[:2])


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Fork server and resource tracker stay for good; so they are started before the first look."""
    AsynchronousDataAccessor(Numbers(1)).terminate()
    gc.collect()
    before = leftovers()
    yield
    gc.collect()
    wait_for_nothing_more(before)


def in_background(dataset: Any, batch: int = 2, **kwargs: Any) -> DataLoader:
    return DataLoader(Options().deviceIterations(batch), dataset, mode=DataLoaderMode.Async, **kwargs)


def raised(action: Callable[[], object], kind: type[BaseException]) -> str:
    """The message of what ``action`` raises, with no reference to its frames."""
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


# --- a data set that raises ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", list(SharingStrategy), ids=lambda strategy: strategy.name)
def test_raising_at_once(strategy: SharingStrategy, capfd: pytest.CaptureFixture[str]) -> None:
    text = raised(lambda: AsynchronousDataAccessor(Broken(10, at=0), sharing_strategy=strategy), poptorch.Error)
    assert "worker thread failed to start" in text
    assert "AssertionError: Broken dataset" in text
    assert 'raise self._error("Broken dataset")' in text, "the original traceback"
    assert "AssertionError: Broken dataset" in capfd.readouterr().err


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [ValueError, EOFError, BrokenPipeError, KeyboardInterrupt, SystemExit])
def test_raising_later(workers: int, error: type[Exception]) -> None:
    if workers and error in (KeyboardInterrupt, SystemExit):
        error = OSError  # PyTorch's workers give these two a meaning of their own
    loader = in_background(Broken(10, at=5, error=error), num_workers=workers)
    batches = iter(loader)
    good = [next(batches).tolist(), next(batches).tolist()]
    text = raised(lambda: next(batches), AssertionError)
    assert good == [[0, 1], [2, 3]]
    assert "An error occurred in the data fetcher" in text
    assert f"{error.__name__}: Broken dataset" in text
    assert 'raise self._error("Broken dataset")' in text
    assert "failed" in raised(lambda: iter(loader), AssertionError)


@pytest.mark.parametrize("workers", [0, 2])
def test_raising_in_a_synchronous_loader(workers: int) -> None:
    loader = DataLoader(Options().deviceIterations(2), Broken(10, at=5), num_workers=workers)
    assert "Broken dataset" in raised(lambda: list(loader), AssertionError)


def test_raising_before_a_rebatched_item_is_complete() -> None:
    loader = torch.utils.data.DataLoader(Broken(10, at=2), batch_size=1)
    text = raised(lambda: AsynchronousDataAccessor(loader, rebatched_size=4), poptorch.Error)
    assert "Broken dataset" in text


@pytest.mark.parametrize("drop_last", [True, False])
def test_nothing_to_load(drop_last: bool) -> None:
    assert "The Dataset is empty" in raised(lambda: in_background([], drop_last=drop_last), poptorch.Error)


def test_fewer_rows_than_a_batch() -> None:
    assert "The Dataset is empty" in raised(lambda: in_background(Numbers(3), batch=4), poptorch.Error)


# --- a process that is killed ----------------------------------------------------------------------------------


def test_a_background_process_killed_while_it_starts() -> None:
    text = raised(lambda: AsynchronousDataAccessor(Suicidal(10, at=0)), poptorch.Error)
    assert "worker thread failed to start" in text
    assert "killed by signal 9 (SIGKILL)" in text


@pytest.mark.parametrize("strategy", list(SharingStrategy), ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_background_process_killed_while_it_loads(strategy: SharingStrategy, workers: int) -> None:
    loader = in_background(Numbers(1000), num_workers=workers, async_options={"sharing_strategy": strategy})
    batches: Any = iter(loader)
    next(batches)
    os.kill(batches._process.pid, signal.SIGKILL)
    text = raised(lambda: [next(batches) for _ in range(1000)], AssertionError)
    assert "An error occurred in the data fetcher" in text
    assert "killed by signal 9 (SIGKILL)" in text


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_a_worker_that_is_killed(mode: DataLoaderMode) -> None:
    kind = RuntimeError if mode == DataLoaderMode.Sync else AssertionError
    loader = DataLoader(Options().deviceIterations(2), Suicidal(100, at=41), num_workers=2, mode=mode)
    text = raised(lambda: list(loader), kind)
    assert "killed by signal: Killed" in text


def test_the_last_data_is_delivered_before_the_bad_news() -> None:
    accessor = AsynchronousDataAccessor(Suicidal(10, at=3), buffer_size=5, early_preload=True)
    found: list[int] = []

    def load() -> None:
        for item in accessor:
            found.append(int(item))

    assert "killed by signal 9" in raised(load, AssertionError)
    assert found == [0, 1, 2]


# --- hanging ---------------------------------------------------------------------------------------------------


def test_a_background_process_that_hangs_is_given_up(tmp_path: Path) -> None:
    mark = tmp_path / "stuck"
    loader = in_background(Hanging(10, at=4, mark=mark), timeout=5.0)
    text = raised(lambda: list(loader), AssertionError)
    assert "An error occurred in the data fetcher" in text
    assert "timeout=5.0" in text
    wait_until(lambda: parent_of(int(mark.read_text())) is None, "the stuck process is gone")


def test_hanging_at_the_first_item_is_given_up() -> None:
    text = raised(lambda: AsynchronousDataAccessor(Hanging(10, at=0), timeout=1.0), poptorch.Error)
    assert "worker thread failed to start" in text
    assert "no item within timeout=1.0 s" in text


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async])
def test_a_worker_that_hangs_is_given_up(mode: DataLoaderMode, tmp_path: Path) -> None:
    mark = tmp_path / "stuck"
    kind = RuntimeError if mode == DataLoaderMode.Sync else AssertionError
    dataset = Hanging(10, at=4, mark=mark)
    loader = DataLoader(Options().deviceIterations(2), dataset, num_workers=1, timeout=1, mode=mode)
    assert "timed out after 1 seconds" in raised(functools.partial(list, loader), kind)
    del loader
    gc.collect()
    wait_until(lambda: parent_of(int(mark.read_text())) is None, "the stuck worker is gone")


def test_dropping_a_loader_does_not_wait_for_a_hanging_data_set(tmp_path: Path) -> None:
    mark = tmp_path / "stuck"
    loader = in_background(Stubborn(10, at=4, mark=mark), async_options={"early_preload": True})
    wait_until(lambda: mark.exists() and bool(mark.read_text()), "the process is stuck")
    del loader
    wait_until(lambda: parent_of(int(mark.read_text())) is None, "the stuck process is gone")


@pytest.mark.slow
def test_terminate_escalates(tmp_path: Path) -> None:
    mark = tmp_path / "stuck"
    accessor = AsynchronousDataAccessor(Hanging(10, at=4, mark=mark), early_preload=True, buffer_size=9)
    wait_until(lambda: mark.exists() and bool(mark.read_text()), "the process is stuck")
    accessor.terminate()
    assert parent_of(int(mark.read_text())) is None


# --- data that does not fit ------------------------------------------------------------------------------------


def test_items_of_another_shape_than_the_first_one() -> None:
    loader = DataLoader(Options(), Growing(10), batch_size=2, mode=DataLoaderMode.Async, sampler=[0, 1, 2, 3, 5, 6])
    message = raised(lambda: list(loader), AssertionError)
    assert "An error occurred in the data fetcher" in message
    assert "float32[2, 4], but the ring buffer holds float32[2, 3]" in message
    assert "pad in collate_fn" in message


@pytest.mark.parametrize("mode", [DataLoaderMode.Async, DataLoaderMode.AsyncRebatched])
@pytest.mark.parametrize("workers", [0, 2])
def test_items_of_another_type_are_converted(mode: DataLoaderMode, workers: int) -> None:
    with DataLoader(Options(), Retyped(10), batch_size=2, mode=mode, num_workers=workers) as loader:
        batches = [batch.clone() for batch in loader]
    assert {batch.dtype for batch in batches} == {torch.float32}
    assert torch.equal(torch.cat(batches)[:, 0], torch.arange(10.0) / 2)


def test_numbers_of_another_type_in_a_tuple_are_converted() -> None:
    items = [(torch.tensor([1, 2]), torch.tensor([0.5])), (torch.tensor([3.0, 4.0]), torch.tensor([1]))]
    with AsynchronousDataAccessor(items) as accessor:
        found = [(left.tolist(), right.tolist(), left.dtype, right.dtype) for left, right in accessor]
    assert found == [([1, 2], [0.5], torch.int64, torch.float32), ([3, 4], [1.0], torch.int64, torch.float32)]


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([{"a": torch.ones(1)}, {"b": torch.ones(1)}], "a mapping with the keys ['b']"),
        ([torch.ones(1), [torch.ones(1)]], "a later one is list"),
        ([[torch.ones(1)], torch.ones(1)], "a later one is Tensor"),
        ([[torch.ones(1)], [torch.ones(1), torch.ones(1)]], "has 2 tensors, but the first one had 1"),
    ],
)
def test_containers_unlike_the_first_one(items: list[Any], text: str) -> None:
    accessor = AsynchronousDataAccessor(items)
    assert text in raised(lambda: list(accessor), AssertionError)


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (WithGradient(4), "Tensor at index 0 requires grad"),
        (NotTensors(4), "Tensor at index 0 is not a torch tensor"),
        (["text"], "Tensor at index 0 is not a torch tensor"),
        ([{"x": [torch.ones(1)]}], "Tensor at index 0 ('x') is not a torch tensor"),
        ([torch.eye(2).to_sparse()], "only dense CPU tensors"),
    ],
    ids=["gradient", "text in a list", "text", "nested", "sparse"],
)
def test_items_that_cannot_be_shared(dataset: Any, text: str) -> None:
    accessor: Any = lambda: AsynchronousDataAccessor(dataset, sharing_strategy=SharingStrategy.Fork)  # noqa: E731
    message = raised(accessor, poptorch.Error)
    assert "worker thread failed to start" in message
    assert text in message


def test_gradients_of_a_worker_s_batch() -> None:
    message = raised(lambda: in_background(WithGradient(8), num_workers=1), poptorch.Error)
    assert "requires_grad" in message or "requires grad" in message


def test_a_data_set_that_cannot_be_pickled() -> None:
    for dataset in (CannotBePickled(4), [lambda: None], (number for number in range(3))):
        message = raised(lambda dataset=dataset: AsynchronousDataAccessor(dataset), poptorch.Error)  # type: ignore[misc]
        assert "worker thread failed to start" in message
        assert "must be picklable" in message
        assert "SharingStrategy.Fork" in message
    with AsynchronousDataAccessor(CannotBePickled(4), sharing_strategy=SharingStrategy.Fork) as accessor:
        assert len(list(accessor)) == 4


def test_a_data_set_that_cannot_be_unpickled() -> None:
    message = raised(lambda: AsynchronousDataAccessor(CannotBeUnpickled(4)), poptorch.Error)
    assert "worker thread failed to start" in message
    assert "I refuse to be unpickled" in message


# --- signals and the end of the program ------------------------------------------------------------------------

PROGRAM = """
import sys, time, poptorch
from sample_sets import Hanging, Numbers
if __name__ == "__main__":
    poptorch.setLogLevel("OFF")
    dataset = Hanging(64, at=int(sys.argv[2]))
    print("starting", flush=True)
    loader = poptorch.DataLoader(
        poptorch.Options(), dataset, num_workers=int(sys.argv[1]), mode=poptorch.DataLoaderMode.Async,
        async_options=dict(sharing_strategy=poptorch.SharingStrategy[sys.argv[3]]),
    )
    batches = iter(loader)
    next(batches)
    print("ready", flush=True)
    for batch in batches:
        pass
    while True:
        time.sleep(0.05)
"""


@contextlib.contextmanager
def running(tmp_path: Path, *args: str, until: str = "ready\n") -> Iterator[subprocess.Popen[str]]:
    """A program that loads data; it is in a group of its own, like a command in a terminal."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    path = os.pathsep.join([HERE, os.environ["PYTHONPATH"]])
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), *args], env=os.environ | {"PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line == until:
                break
        else:
            pytest.fail(f"the program has ended: {process.communicate()}")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate(timeout=20)


def all_gone(processes: frozenset[int]) -> bool:
    return all(parent_of(pid) is None for pid in processes)


AT_ONCE_S = 8.0
"""A second or two on an idle machine, and less than whoever waits for a process to end by itself is patient."""

WAITING, WORKING = "20", "-1"
"""Where the data set hangs: the program waits for data, or has all of it and goes on."""


@pytest.mark.parametrize(
    ("strategy", "workers", "hang_at", "whole_group"),
    [
        ("ForkServer", "0", WAITING, True),
        ("ForkServer", "2", WAITING, False),
        ("ForkServer", "2", WORKING, True),
        ("ForkServer", "0", WORKING, False),
        ("Fork", "2", WAITING, True),
        ("Fork", "2", WORKING, False),
        ("SharedMemory", "2", WAITING, False),
    ],
)
def test_ctrl_c_ends_everything_at_once(
    tmp_path: Path, strategy: str, workers: str, hang_at: str, whole_group: bool
) -> None:
    with running(tmp_path, workers, hang_at, strategy) as process:
        time.sleep(0.3)  # into the loop
        below = descendants(process.pid)
        loading = frozenset(pid for pid in below if os.getpgid(pid) != process.pid)
        assert len(loading) == 1 + int(workers), "a group of its own: the background process and its workers"
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        wait_until(lambda: all_gone(below | {process.pid}), "program, loading processes and fork server end", AT_ONCE_S)
        assert process.wait() in (-signal.SIGINT, 1, 130)


@pytest.mark.parametrize("strategy", ["ForkServer", "SharedMemory"])
@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_while_a_loader_starts(tmp_path: Path, strategy: str, whole_group: bool) -> None:
    with running(tmp_path, "2", WAITING, strategy, until="starting\n") as process:
        wait_until(lambda: len(descendants(process.pid)) >= 2, "resource tracker and fork server or process start")
        time.sleep(0.2)  # importing torch takes longer than that
        below = descendants(process.pid)
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        wait_until(lambda: all_gone(below | {process.pid}), "program and new processes end", AT_ONCE_S)
        _, errors = process.communicate()
        assert errors.count("Traceback") == 1, "only the program itself says so"


@pytest.mark.parametrize(
    ("strategy", "number", "hang_at"),
    [
        ("ForkServer", signal.SIGKILL, WAITING),
        ("ForkServer", signal.SIGTERM, WORKING),
        ("Fork", signal.SIGKILL, WAITING),
        ("Fork", signal.SIGKILL, WORKING),
        ("SharedMemory", signal.SIGKILL, WAITING),
    ],
)
def test_no_process_outlives_a_killed_program(
    tmp_path: Path, strategy: str, number: signal.Signals, hang_at: str
) -> None:
    with running(tmp_path, "2", hang_at, strategy) as process:
        time.sleep(0.3)
        below = descendants(process.pid)
        assert len(below) >= 3
        process.send_signal(number)
        process.wait(timeout=20)
        wait_until(lambda: all_gone(below), "no orphan is left")


LOGGED = """
import os, signal, sys, time, poptorch
from observing import descendants, wait_until
from sample_sets import Numbers
if __name__ == "__main__":
    loader = poptorch.DataLoader(
        poptorch.Options(), Numbers(8), num_workers=2, mode=poptorch.DataLoaderMode.Async,
        async_options=dict(sharing_strategy=poptorch.SharingStrategy[sys.argv[1]]),
    )
    if sys.argv[2] == "iterate":
        list(loader)

    def processes():
        found = []
        for pid in descendants(os.getpid()):
            try:
                found += [pid] if os.getpgid(pid) != os.getpgrp() else []
            except ProcessLookupError:  # it ended meanwhile
                pass
        return found

    wait_until(lambda: len(processes()) == 3, "background process and two workers")  # each starts in its own time
    loading = processes()
    for pid in loading:
        os.kill(pid, signal.SIGINT)
    wait_until(lambda: not set(loading) & descendants(os.getpid()), "the loading processes end")
    loader.terminate()
"""


@pytest.mark.parametrize("iterate", ["iterate", "wait"])
@pytest.mark.parametrize("strategy", ["ForkServer", "Fork", "SharedMemory"])
def test_interrupted_processes_log_nothing_above_debug(tmp_path: Path, strategy: str, iterate: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(LOGGED)
    settings = {"PYTHONPATH": os.pathsep.join([HERE, os.environ["PYTHONPATH"]]), "POPTORCH_LOG_LEVEL": "DEBUG"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), strategy, iterate],
        env=os.environ | settings, text=True, capture_output=True, timeout=100, check=True, start_new_session=True,
    )  # fmt: skip
    lines = (done.stdout + done.stderr).splitlines()
    assert lines, "debug lines are on"
    assert [line for line in lines if "[debug]" not in line.lower()] == []


@pytest.mark.parametrize("strategy", [SharingStrategy.ForkServer, SharingStrategy.Fork])
@pytest.mark.parametrize("iterate", [True, False])
def test_an_interrupted_background_process_says_nothing(
    strategy: SharingStrategy, iterate: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    accessor = AsynchronousDataAccessor(Numbers(1000), sharing_strategy=strategy)
    if iterate:
        next(iter(accessor))
    assert accessor._process is not None
    os.kill(accessor._process.pid, signal.SIGINT)  # type: ignore[arg-type]
    wait_until(lambda: not accessor._process.is_alive(), "the process ends")  # type: ignore[union-attr]
    assert capfd.readouterr() == ("", "")
    assert "was interrupted" in raised(lambda: [next(accessor) for _ in range(9)], AssertionError)
